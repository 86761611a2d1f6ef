//go:build unix

package hybrid_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

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
