package benchmarks

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

const (
	accuracyTime = 300 * time.Millisecond
	overload     = 2  // times what a perfect bucket would admit
	instances    = 4  // that share the limit
	workers      = 16 // of each instance
)

// tight is a limit that is reached. In windows it is the same rate and the same most at once.
func tight(f form) limit.Limit {
	if f == bucket {
		return limit.PerSecond(4000).WithBurst(1000)
	}
	return limit.Limit{Rate: 1000, Period: 250 * time.Millisecond, Burst: 1000}
}

// BenchmarkAccuracy is how near each mode comes to a perfect bucket when more is asked for than the limit admits. One
// operation is a load of 300 ms on a fresh key.
func BenchmarkAccuracy(b *testing.B) {
	for _, m := range modes() {
		b.Run(m.name, func(b *testing.B) {
			w := new(wire)
			var limiters []limit.Limiter
			n := instances
			if !m.redis {
				n = 1 // in memory, others have limits of their own
			}
			for range n {
				rdb := w.client()
				defer rdb.Close()
				l, err := m.open(rdb, tight(m.form), backend.prefix+"accuracy:"+m.name+":")
				if err != nil {
					b.Fatal(err)
				}
				if _, err := l.Allow(b.Context(), "warm"); err != nil {
					b.Fatal(err)
				}
				limiters = append(limiters, l)
			}
			var sum verdict
			scripts := w.scripts.Scripts()
			b.ResetTimer()
			for range b.N {
				// Fresh each time, also when the benchmark is run again with a larger N.
				key := fmt.Sprint("load:", time.Now().UnixNano())
				v := offer(b, limiters, key)
				if most := m.bound(v.elapsed, limiters[0]); v.admitted > most {
					b.Errorf("admitted %d in %v, want at most %d", v.admitted, v.elapsed, most)
				}
				sum.admitted += v.admitted
				sum.offered += v.offered
				sum.ideal += idealOf(v.elapsed)
			}
			b.StopTimer()
			b.ReportMetric(0, "ns/op") // always the same
			b.ReportMetric(float64(sum.admitted)/sum.ideal, "admitted/ideal")
			b.ReportMetric(float64(sum.offered)/sum.ideal, "offered/ideal")
			if m.redis {
				b.ReportMetric(float64(w.scripts.Scripts()-scripts)/float64(sum.offered), "redis-calls/decision")
			}
			for _, l := range limiters {
				closeLimiter(b, l)
			}
		})
	}
}

// verdict is what came of a load.
type verdict struct {
	admitted, offered int
	elapsed           time.Duration // from before the first call to after the last
	ideal             float64       // Burst + Rate*elapsed
}

// idealOf is what a perfect bucket, full at the start, would admit.
func idealOf(elapsed time.Duration) float64 {
	lim := tight(bucket)
	return float64(lim.Burst) + float64(lim.Rate)*elapsed.Seconds()
}

// bound is the most that the mode may admit within elapsed.
func (m mode) bound(elapsed time.Duration, l limit.Limiter) int {
	if m.edge {
		lim := tight(window)
		return lim.Rate * (int(elapsed/lim.Period) + 2) // that many windows are touched
	}
	return int(idealOf(elapsed))
}

// offer asks for overload times what a perfect bucket would admit. Each worker keeps to a timetable: a flood would
// take the processors from Redis.
func offer(b *testing.B, limiters []limit.Limiter, key string) verdict {
	all := workers * instances
	gap := time.Duration(float64(accuracyTime) * float64(all) / (overload * idealOf(accuracyTime)))
	each := int(math.Ceil(float64(accuracyTime) / float64(gap)))
	var admitted, offered atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for w := range all {
		l := limiters[w%len(limiters)]
		wg.Go(func() {
			due := gap * time.Duration(w) / time.Duration(all)
			for range each {
				time.Sleep(due - time.Since(start))
				due += gap
				r, err := l.Allow(b.Context(), key)
				if err != nil {
					b.Error(err)
					return
				}
				offered.Add(1)
				if r.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return verdict{admitted: int(admitted.Load()), offered: int(offered.Load()), elapsed: time.Since(start)}
}
