package main

import (
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid"
)

// shared is the lab of all tests and benchmarks, opened when the first one needs it.
var shared struct {
	once sync.Once
	lab  *lab
	err  error
}

func testLab(tb testing.TB) *lab {
	tb.Helper()
	shared.once.Do(func() {
		c := config{runs: 1, rounds: 3, pass: 2 * time.Millisecond, short: true, row: regexp.MustCompile("")}
		shared.lab, shared.err = openLab(tb.Context(), c)
	})
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.lab
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.lab != nil {
		shared.lab.backend.Close()
	}
	os.Exit(code)
}

// TestRows runs everything in short. How fast something is says no test.
func TestRows(t *testing.T) {
	l := testLab(t)
	ms, err := l.measure(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, r := range rows() {
		lines += len(r.lines)
	}
	if len(ms) != lines {
		t.Errorf("%d lines were measured, want %d", len(ms), lines)
	}
	for _, m := range ms {
		x := m.value()
		if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 || x == 0 && m.goal > 0 && m.name != "shortfall" {
			t.Errorf("%s, %s: %v, want a positive number", m.name, m.what, x)
		}
		if low, high := m.spread(); low > high {
			t.Errorf("%s, %s: spread from %v to %v", m.name, m.what, low, high)
		}
		if v := m.verdict(true); strings.HasPrefix(v, "void") {
			t.Errorf("%s, %s: %s", m.name, m.what, v)
		}
	}
	var out strings.Builder
	write(&out, ms, true)
	if got := strings.Count(out.String(), "\n"); got != lines+2 {
		t.Errorf("the table has %d lines, want %d:\n%s", got, lines+2, &out)
	}
}

func TestVerdict(t *testing.T) {
	most, least := line{goal: 0.1, floor: 0.2}, line{goal: 100, floor: 50, atLeast: true}
	for _, c := range []struct {
		line line
		x    float64
		want string
	}{
		{most, 0.1, "goal"}, {most, 0.15, "floor"}, {most, 0.21, "missed"},
		{least, 100, "goal"}, {least, 50, "floor"}, {least, 49, "missed"},
		{line{}, 0, "goal"}, {line{}, 0.01, "missed"},
		{line{goal: none, floor: none}, 1, "-"},
	} {
		if got := c.line.verdict(c.x); got != c.want {
			t.Errorf("%v under %+v is %q, want %q", c.x, c.line, got, c.want)
		}
	}
	m := measured{row: row{redis: true}, line: most, results: []result{{values: []float64{0.1}}}}
	if got := m.verdict(false); !strings.HasPrefix(got, "-") {
		t.Errorf("without Redis the verdict is %q, want none", got)
	}
	m.results = append(m.results, result{values: []float64{0.1}, void: "denied"})
	if got := m.verdict(true); got != "void: denied" {
		t.Errorf("of a void run the verdict is %q", got)
	}
}

// TestRatios: rounds with calls to the source are put aside, and what was not decided as meant makes the row void.
func TestRatios(t *testing.T) {
	of := func(nanos ...int) (ps []pass) {
		for _, n := range nanos {
			ps = append(ps, pass{tally: tally{admitted: 10}, elapsed: time.Duration(10 * n)})
		}
		return ps
	}
	ours, theirs := of(900, 10, 500, 30), of(1, 100, 100, 100)
	ours[2].calls = 7
	r := ratios(ours, theirs, false)
	if len(r.values) != 2 || r.values[0] != 0.1 || r.values[1] != 0.3 || r.void != "" {
		t.Errorf("ratios: %+v, want 0.1 and 0.3", r)
	}
	if want := "calls: 7, in 1 of 3 passes; with these 0.3"; r.counts != want {
		t.Errorf("counts: %q, want %q", r.counts, want)
	}
	if r := ratios(ours, theirs, true); r.void == "" {
		t.Error("admissions pass for denials")
	}
	theirs[1].failed++
	if r := ratios(ours, theirs, false); r.void == "" {
		t.Error("a failed request passes for an admission")
	}
}

// TestHits: where all keys fit, the only misses are first requests, and a key that had to go is a miss again.
func TestHits(t *testing.T) {
	tr := newTrace(500, 5000)
	seen := make(map[uint32]bool)
	for _, key := range tr.keys {
		seen[key] = true
	}
	first := 1 - float64(len(seen))/float64(len(tr.keys))
	hits, keys, err := tr.hits(4096)
	if err != nil || hits != first || keys != len(seen) {
		t.Errorf("hits %v, %d keys, %v; want %v and %d", hits, keys, err, first, len(seen))
	}
	lru, err := tr.hitsOfLRU(4096)
	if err != nil || lru != first {
		t.Errorf("hits of an LRU: %v, %v; want %v", lru, err, first)
	}
	hits, keys, err = tr.hits(64)
	if err != nil || hits <= 0 || hits >= first || keys > 64 {
		t.Errorf("hits of 64 keys %v, %d keys, %v; want fewer than %v", hits, keys, err, first)
	}
}

func TestTurns(t *testing.T) {
	a, b := new(subject), new(subject)
	var order []*subject
	takeTurns(2, []*subject{a, b}, func(s *subject, _ int) pass {
		order = append(order, s)
		return pass{}
	})
	for i, want := range []*subject{a, b, b, a} {
		if order[i] != want {
			t.Errorf("turn %d is not that of the other one", i)
		}
	}
}

// TestExcess compares with a count of each window on its own.
func TestExcess(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 0))
		lim := hybrid.Limit{Rate: 1 + rng.IntN(50), Period: time.Microsecond, Burst: 1 + rng.IntN(5)}
		all := make([]admission, 1+rng.IntN(30))
		for i := range all {
			from := rng.Int64N(300)
			all[i] = admission{from, from + 1 + rng.Int64N(30)}
		}
		want := math.Inf(-1)
		for from := range int64(300) {
			for to := from + 1; to < 331; to++ {
				n := 0
				for _, a := range all {
					if from <= a.from && a.to <= to {
						n++
					}
				}
				if n > 0 {
					want = max(want, float64(n)-float64(lim.Rate)*float64(to-from)/1000-float64(lim.Burst))
				}
			}
		}
		if got := excess(all, lim); math.Abs(got-want) > 1e-9 {
			t.Fatalf("seed %d: excess %v, by all windows %v", seed, got, want)
		}
	}
}

// TestIdeal: a bucket that is full, then empty, then refilled.
func TestIdeal(t *testing.T) {
	b := ideal{limit: hybrid.Limit{Rate: 10, Period: time.Second, Burst: 2}, level: 2}
	for i, c := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {0, true}, {0, false}, {99 * time.Millisecond, false}, {101 * time.Millisecond, true}, {5 * time.Second, true}} {
		if got := b.take(c.at); got != c.want {
			t.Errorf("take %d at %v: %t, want %t", i, c.at, got, c.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 0.00004: "4e-05", 0.0312: "0.031", 0.1204: "0.12", 0.995: "0.995", 1.1: "1.1", 25.04: "25", 137.2: "137", 12345: "12 345",
	} {
		if got := number(x); got != want {
			t.Errorf("number(%v) = %q, want %q", x, got, want)
		}
	}
}
