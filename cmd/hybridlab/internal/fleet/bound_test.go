package fleet

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
)

// call is one that admitted so many tokens, in microseconds.
type call struct {
	from, to int64
	tokens   int
}

// drawCalls draws calls in the order in which they end, some of them longer than starts are told apart.
func drawCalls(rng *rand.Rand) []call {
	var all []call
	now := rng.Int64N(3_000_000)
	for range 1 + rng.IntN(60) {
		switch rng.IntN(8) {
		case 0:
			now += rng.Int64N(2_000_000)
		default:
			now += rng.Int64N(5000)
		}
		took := rng.Int64N(8000)
		if rng.IntN(8) == 0 {
			took = rng.Int64N(2_000_000)
		}
		all = append(all, call{max(0, now-took), now, 1 + rng.IntN(10)})
	}
	return all
}

// naive tries all windows.
func naive(calls []call, base, perMicro float64) (worst float64) {
	for _, a := range calls {
		for _, b := range calls {
			sum := 0
			for _, c := range calls {
				if a.from <= c.from && c.to <= b.to {
					sum += c.tokens
				}
			}
			if sum > 0 {
				worst = max(worst, float64(sum)-perMicro*float64(b.to-a.from)-base)
			}
		}
	}
	return worst
}

// Of any history the excess is what trying all windows finds when each call is stretched to the moments at which time
// advanced, and so never more than what that finds of the calls themselves.
func TestExcessAgainstAllWindows(t *testing.T) {
	above := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		x := &excess{base: float64(1 + rng.IntN(20)), rate: float64(1+rng.IntN(40)) / math.Exp(rng.Float64()*10)}
		calls := drawCalls(rng)
		var stretched []call
		now := int64(0)
		step := int64(1 + rng.IntN(20)) // milliseconds between looks
		rest := calls
		for len(rest) > 0 {
			last := now
			now += step
			for len(rest) > 0 && rest[0].to <= now*1000 {
				c := rest[0]
				rest = rest[1:]
				from := min(c.from/1000, last)
				x.admit(c.from/1000, c.tokens)
				if from > last-kept {
					stretched = append(stretched, call{from * 1000, now * 1000, c.tokens})
				}
			}
			x.advance(now)
		}
		got, want, most := x.tokensAbove(), naive(stretched, x.base, x.rate/1000), naive(calls, x.base, x.rate/1000)
		if math.Abs(got-want) > 1e-5 {
			t.Fatalf("seed %d: excess %v, by trying all windows %v", seed, got, want)
		}
		if got > most+1e-5 {
			t.Fatalf("seed %d: excess %v was not there: at most %v", seed, got, most)
		}
		if got > 0 {
			above++
		}
	}
	if above < 30 || above > 170 {
		t.Errorf("%d of 200 histories are above the bound: they show little", above)
	}
}

// greedy lets a limiter of the mode decide requests at random moments, and returns the excess above a base that is lower
// by less.
func greedy(t *testing.T, m scenario.Mode, lim limit.Limit, rng *rand.Rand, less float64) float64 {
	t.Helper()
	i, err := newIdeal(m, lim)
	if err != nil {
		t.Fatal(err)
	}
	x := newExcess(m, lim)
	x.base -= less
	const start = 1_800_000_000_000_000 // a multiple of the periods used
	for now := int64(0); now < 2000; now++ {
		if rng.IntN(40) == 0 {
			now += rng.Int64N(2 * lim.Period.Milliseconds())
		}
		x.advance(now)
		x.admit(now, i.ask(start+1000*now, rng.IntN(2*lim.Rate), 1))
		x.advance(now)
	}
	return x.tokensAbove()
}

// What the limiters in memory admit is within the bound of their mode, and comes close to it.
func TestBoundOfEachMode(t *testing.T) {
	for _, m := range scenario.Modes() {
		closest := 0.0
		for seed := range uint64(8) {
			rng := rand.New(rand.NewPCG(seed, 1))
			lim := limit.Limit{Rate: 4 + rng.IntN(20), Period: time.Duration(5+5*rng.IntN(20)) * time.Millisecond}
			lim.Burst = lim.Rate
			if got := greedy(t, m, lim, rand.New(rand.NewPCG(seed, 2)), 0); got > 0 {
				t.Errorf("%s, seed %d: %v has an excess of %v", m, seed, lim, got)
			}
			if greedy(t, m, lim, rand.New(rand.NewPCG(seed, 2)), float64(lim.Rate)/2) > 0 {
				closest++
			}
		}
		if closest == 0 {
			t.Errorf("%s: nothing ever came within half a burst of the bound", m)
		}
	}
}

// A bucket that is twice as large as the bound says is found out.
func TestExcessIsFound(t *testing.T) {
	i, err := newIdeal(scenario.TokenBucket, limit.PerSecond(100).WithBurst(200))
	if err != nil {
		t.Fatal(err)
	}
	x := newExcess(scenario.TokenBucket, limit.PerSecond(100))
	const start = 1_800_000_000_000_000
	for now := range int64(3000) {
		x.admit(now-1, i.ask(start+1000*now, 1, 1))
		x.advance(now)
	}
	if got := x.tokensAbove(); got < 99 || got > 100 {
		t.Errorf("excess %v, want nearly 100", got)
	}
}

func TestIdealIsABucket(t *testing.T) {
	i, err := newIdeal(scenario.Leased, limit.PerSecond(10).WithBurst(5))
	if err != nil {
		t.Fatal(err)
	}
	const start = 1_800_000_000_000_000
	for _, step := range []struct{ at, n, cost, want int }{{0, 10, 1, 5}, {100_000, 10, 1, 1}, {400_000, 10, 2, 1}, {10_000_000, 10, 2, 2}} {
		if got := i.ask(start+int64(step.at), step.n, step.cost); got != step.want {
			t.Errorf("%+v: admitted %d", step, got)
		}
	}
	if r, err := i.lim.AllowN(context.Background(), key, 6); err == nil {
		t.Errorf("%+v, want an error", r)
	}
}
