//go:build unix

package hybrid_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// leeway is what docs/guarantees.md allows above the bound for one thing that happened: so many tokens in each window
// that ends at from or later and begins at until or earlier, in microseconds of the wall clock.
type leeway struct {
	from, until int64
	tokens      float64
}

// excessBeyond is excess, less in each window what is allowed there: the largest A - Rate*W - Burst - leeways over all
// windows. Above 0 something was admitted that nothing accounts for.
func excessBeyond(admitted []attempt, lim limit.Limit, allowed []leeway) float64 {
	if len(admitted) == 0 {
		return -float64(lim.Burst)
	}
	r, p := int64(lim.Rate), lim.Period.Microseconds() // amounts are in units of 1/p token
	all := slices.SortedFunc(slices.Values(admitted), func(a, b attempt) int { return cmp.Compare(a.to, b.to) })
	allowed = slices.SortedFunc(slices.Values(allowed), func(a, b leeway) int { return cmp.Compare(a.from, b.from) })
	starts := make([]int64, len(all))
	for i, a := range all {
		starts[i] = a.from
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	origin := starts[0]
	best := newSums(len(starts)) // as in excess
	for i, s := range starts {
		best.add(i, i+1, r*(s-origin)-unborn)
	}
	born := 0
	worst := int64(math.MinInt64)
	for _, a := range all {
		i, _ := slices.BinarySearch(starts, a.from)
		if i+1 > born {
			best.add(born, i+1, unborn)
			born = i + 1
		}
		for len(allowed) > 0 && allowed[0].from <= a.to {
			n, _ := slices.BinarySearch(starts, allowed[0].until+1)
			best.add(0, n, -int64(math.Ceil(allowed[0].tokens*float64(p))))
			allowed = allowed[1:]
		}
		best.add(0, i+1, p*a.cost)
		worst = max(worst, best.max()-r*(a.to-origin))
	}
	return float64(worst)/float64(p) - float64(lim.Burst)
}

// The check must find what a naive one finds.
func TestChaosBoundAgainstAllWindows(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		lim := limit.Limit{Rate: 1 + rng.IntN(50), Period: time.Duration(1+rng.IntN(20)) * time.Microsecond, Burst: rng.IntN(30)}
		all := make([]attempt, 1+rng.IntN(40))
		for i := range all {
			from := 1e15 + rng.Int64N(100)
			all[i] = attempt{from, from + 1 + rng.Int64N(10), 1 + rng.Int64N(10), true, false}
		}
		allowed := make([]leeway, rng.IntN(5))
		for i := range allowed {
			from := 1e15 + rng.Int64N(110)
			allowed[i] = leeway{from, from + rng.Int64N(30), float64(rng.IntN(50))}
		}
		rate := float64(lim.Rate) / float64(lim.Period.Microseconds())
		want := math.Inf(-1)
		for _, a := range all {
			for _, b := range all {
				in := between(all, a.from, b.to)
				if len(in) == 0 {
					continue
				}
				over := float64(tokens(in)) - rate*float64(b.to-a.from) - float64(lim.Burst)
				for _, x := range allowed {
					if b.to >= x.from && a.from <= x.until {
						over -= x.tokens
					}
				}
				want = max(want, over)
			}
		}
		if got := excessBeyond(all, lim, allowed); math.Abs(got-want) > 1e-6 {
			t.Fatalf("seed %d: %v beyond what is allowed, by trying all windows %v", seed, got, want)
		}
	}
}
