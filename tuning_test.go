package hybrid_test

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

var tuningUpdate = flag.Bool("tuning.update", false, "rewrite the tables of docs/tuning.md instead of comparing them")

// TestTuningTables recomputes every row of the tables of docs/tuning.md that has numbers in it.
func TestTuningTables(t *testing.T) {
	tables := map[string]func(in []string) []string{
		"limit | options | tau | T | life | most lent | slack | dry below | idle":              termsRow,
		"limit | options | processes | lam | lease | mark | calls/s | without leases | saving": savingRow,
		"RTT | shortest B/R":                       shortestRow,
		"B/R | least lam of a process for a lease": leastDemandRow,
		"limit | options | processes | shortest hold-off | longest hold-off | most hold-offs/s of a process": dryRow,
		"limit | options | String()":   stringRow,
		"what you see | what it means": nil, // no numbers
	}
	text, err := os.ReadFile("docs/tuning.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	var table func([]string) []string
	inside := false
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case !inside:
			head := strings.Join(cells(line), " | ")
			f, ok := tables[head]
			if !ok {
				t.Errorf("docs/tuning.md:%d: no test for the table %q", i+1, head)
			}
			delete(tables, head)
			table, inside = f, true
		case strings.HasPrefix(line, "|---") || table == nil:
		default:
			want := "| " + strings.Join(table(cells(line)), " | ") + " |"
			if want = strings.ReplaceAll(want, "|  |", "| |"); line != want && !*tuningUpdate {
				t.Errorf("docs/tuning.md:%d:\n have %s\n want %s", i+1, line, want)
			}
			lines[i] = want
			rows++
		}
	}
	for head := range tables {
		t.Errorf("docs/tuning.md has no table %q", head)
	}
	t.Logf("%d rows", rows)
	if *tuningUpdate {
		if err := os.WriteFile("docs/tuning.md", []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDocsNameTests looks for the tests that docs rely on.
func TestDocsNameTests(t *testing.T) {
	var tests strings.Builder
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		tests.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"docs/guarantees.md", "docs/operations.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(string(text), -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", doc)
		}
		for _, n := range names {
			if !strings.Contains(tests.String(), "\nfunc "+n+"(") {
				t.Errorf("%s: there is no %s", doc, n)
			}
		}
	}
}

func cells(line string) []string {
	c := strings.Split(strings.Trim(line, "|"), "|")
	for i := range c {
		c[i] = strings.TrimSpace(c[i])
	}
	return c
}

// parseTerms reads the columns "limit" and "options".
func parseTerms(in []string) (lease.Terms, hybrid.Options) {
	lim, err := limit.Parse(in[0])
	if err != nil {
		panic(err)
	}
	var o hybrid.Options
	if in[1] != "" {
		name, value, _ := strings.Cut(in[1], " ")
		d, derr := time.ParseDuration(value)
		x, xerr := strconv.ParseFloat(value, 64)
		switch {
		case name == "Refresh" && derr == nil:
			o.Refresh = d
		case name == "LeaseTTL" && derr == nil:
			o.LeaseTTL = d
		case name == "MaxLeased" && xerr == nil:
			o.MaxLeased = x
		case name == "Slack" && xerr == nil:
			o.Slack = x
		case name == "LeaseSize" && xerr == nil:
			o.LeaseSize = int(x)
		case name == "Exact":
			o.Exact = true
		default:
			panic("docs/tuning.md: options " + in[1])
		}
	}
	return lease.NewTerms(lim, lease.Tuning{
		Size: o.LeaseSize, Refresh: o.Refresh, TTL: o.LeaseTTL, MaxLeased: o.MaxLeased, Slack: o.Slack,
	}), o
}

func termsRow(in []string) []string {
	t, _ := parseTerms(in)
	return []string{
		in[0], in[1], t.Tau.String(), t.TTL.String(), lease.Life(t.TTL).String(), fmt.Sprint(t.MaxLeased), fmt.Sprint(t.Slack),
		fmt.Sprint(t.Dry), t.Idle().String(),
	}
}

// steady is the estimate of a demand that has been the same for long.
func steady(t lease.Terms, perSecond float64) *lease.Demand {
	var d lease.Demand
	d.Add(0, t.Tau, 0, 0)
	const long = 1e6 // seconds
	d.Add(long*1e9, t.Tau, int64(math.Round(perSecond*long)), 0)
	return &d
}

// roundTrips is the estimate when all take equally long.
func roundTrips(rtt time.Duration) *lease.RTT {
	var r lease.RTT
	for range 1000 {
		r.Add(rtt)
	}
	return &r
}

func savingRow(in []string) []string {
	t, _ := parseTerms(in)
	n, err := strconv.ParseFloat(in[2], 64)
	if err != nil {
		panic(err)
	}
	all := float64(t.Limit.Rate) / t.Limit.Period.Seconds()
	lam := all / n
	d, rtt := steady(t, lam), roundTrips(500*time.Microsecond)
	size := t.Want(d, rtt, 0, math.MaxInt64)
	row := []string{in[0], in[1], in[2], number(lam)}
	if size == 0 {
		return append(row, "none", "", number(all), number(all), "1x")
	}
	mark := t.Mark(d, rtt, size)
	calls := all / float64(size-mark)
	return append(row, fmt.Sprint(size), fmt.Sprint(mark), number(calls), number(all), number(all/calls)+"x")
}

// shortestRow finds the shortest time a burst may last for a key in great demand to be leased.
func shortestRow(in []string) []string {
	d, err := time.ParseDuration(in[0])
	if err != nil {
		panic(err)
	}
	rtt := roundTrips(d)
	lo, hi := 0, 1_000_000 // microseconds: too short, and long enough
	leased := func(us int) bool {
		// A million per second, so that a token is a microsecond of burst.
		t := lease.NewTerms(limit.PerSecond(1_000_000).WithBurst(us), lease.Tuning{})
		return t.Want(steady(t, 1e6), rtt, 0, math.MaxInt64) > 0
	}
	for !leased(hi) {
		hi *= 2
	}
	for lo+1 < hi {
		if mid := (lo + hi) / 2; leased(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return []string{in[0], (time.Duration(hi) * time.Microsecond).Round(time.Millisecond).String()}
}

func leastDemandRow(in []string) []string {
	d, err := time.ParseDuration(in[0])
	if err != nil {
		panic(err)
	}
	t := lease.NewTerms(limit.PerSecond(1_000_000).WithBurst(int(d.Microseconds())), lease.Tuning{})
	rtt := roundTrips(100 * time.Microsecond)
	lo, hi := 0.0, 1e6
	for hi-lo > 1e-4 {
		if mid := (lo + hi) / 2; t.Want(steady(t, mid), rtt, 0, math.MaxInt64) > 0 {
			hi = mid
		} else {
			lo = mid
		}
	}
	return []string{in[0], number(math.Round(hi*100)/100) + "/s"}
}

func dryRow(in []string) []string {
	t, _ := parseTerms(in)
	n, err := strconv.Atoi(in[2])
	if err != nil {
		panic(err)
	}
	g := &lease.Grant{Holders: n}
	hold := func(chance float64) time.Duration {
		return time.Duration(lease.NewRefusal(t, g, 1, 0, chance).Until()).Round(time.Microsecond)
	}
	return []string{in[0], in[1], in[2], hold(0).String(), hold(1).String(), number(1 / hold(0).Seconds())}
}

// nowhere is a source that is never asked.
type nowhere struct{}

func (nowhere) Acquire(context.Context, []lease.Request, []lease.Grant) { panic("asked") }

func stringRow(in []string) []string {
	t, o := parseTerms(in)
	l, err := hybrid.NewFrom(nowhere{}, t.Limit, o)
	if err != nil {
		panic(err)
	}
	return []string{in[0], in[1], l.String()}
}

// number has as many digits as a reader wants.
func number(x float64) string {
	if x >= 9.95 || x == math.Trunc(x) {
		return strconv.FormatFloat(math.Round(x), 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'f', 1, 64)
}
