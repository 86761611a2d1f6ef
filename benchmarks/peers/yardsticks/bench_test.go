package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/hybridlimit/hybrid"
)

// The rows as benchmarks. What the command compares in passes that take turns is here a benchmark for each side, so that
// benchstat can tell two revisions apart.

type named struct {
	name string
	open opener
}

// compare runs each side from so many goroutines.
func compare(b *testing.B, goroutines int, denials bool, sides ...named) {
	for _, side := range sides {
		b.Run(side.name, func(b *testing.B) {
			s, err := side.open()
			if err != nil {
				b.Fatal(err)
			}
			defer s.close()
			runtime.GC()
			b.ReportAllocs()
			b.ResetTimer()
			p := s.run(goroutines, 0, b.N)
			b.StopTimer()
			right := p.admitted
			if denials {
				right = p.denied
			}
			if right < p.all() {
				b.Errorf("%d admitted, %d denied, %d failed", p.admitted, p.denied, p.failed)
			}
			if s.calls != nil {
				b.ReportMetric(float64(p.calls)/float64(p.all()), "redis-calls/op")
			}
		})
	}
}

func BenchmarkHandle(b *testing.B) {
	compare(b, 1, false, named{"hybrid", newHandle}, named{"x-time-rate", newRate})
}

func BenchmarkHotKey64(b *testing.B) {
	compare(b, 64, false, named{"hybrid", newHandle}, named{"x-time-rate", newRate})
}

func BenchmarkDenial(b *testing.B) {
	compare(b, 1, true, named{"hybrid", newDenial}, named{"x-time-rate", newRateDenial})
}

func BenchmarkByKey(b *testing.B) {
	d := newDraws(zipfKeys)
	compare(b, 1, false, named{"hybrid", with(d, newByKey)}, named{"sync-map", with(d, newRateMap)}, named{"golang-lru", with(d, newRateLRU)})
}

// BenchmarkIdleKeys and those below it are loads of their own: an operation is a whole one, and its time says nothing.
func BenchmarkIdleKeys(b *testing.B) {
	var sum float64
	for range b.N {
		r, err := idleBytes(50_000)
		if err != nil || r.void != "" {
			b.Fatal(r.void, err)
		}
		sum += r.values[0]
	}
	reportOnly(b, sum, "B/key")
}

// reportOnly reports the mean of what the operations came to, and not their time.
func reportOnly(b *testing.B, sum float64, unit string) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(sum/float64(b.N), unit)
}

func BenchmarkHitRatio(b *testing.B) {
	t := newTrace(200_000, 200_000)
	for _, capacity := range []int{1000, 10_000} { // as much smaller as the trace is
		b.Run("capacity="+strconv.Itoa(capacity), func(b *testing.B) {
			var sum float64
			for range b.N {
				hits, _, err := t.hits(capacity)
				if err != nil {
					b.Fatal(err)
				}
				sum += hits
			}
			lru, err := t.hitsOfLRU(capacity)
			if err != nil {
				b.Fatal(err)
			}
			reportOnly(b, sum, "hits/decision")
			b.ReportMetric(sum/float64(b.N)/lru, "of-lru")
		})
	}
}

func BenchmarkFixedLease(b *testing.B) {
	for _, size := range leaseSizes {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprintf("lease=%d/goroutines=%d", size, goroutines), func(b *testing.B) {
				l := testLab(b)
				var sum float64
				for range b.N {
					x, t, err := l.perLease(size, goroutines, 100*size)
					if err != nil || t.admitted < t.all() {
						b.Fatal(t, err)
					}
					sum += x
				}
				reportOnly(b, sum, "redis-calls/lease")
			})
		}
	}
}

func BenchmarkBusyKey(b *testing.B) {
	for _, rate := range busyRates {
		b.Run("rate="+strconv.Itoa(rate), func(b *testing.B) {
			l := testLab(b)
			var sum float64
			for range b.N {
				x, _, err := l.busy(rate, 100*time.Millisecond, 300*time.Millisecond)
				if err != nil {
					b.Fatal(err)
				}
				sum += x
			}
			reportOnly(b, sum, "redis-calls/s")
		})
	}
}

func BenchmarkDryKey(b *testing.B) {
	for _, rate := range dryRates {
		b.Run("rate="+strconv.Itoa(rate), func(b *testing.B) {
			l := testLab(b)
			var sum float64
			for range b.N {
				x, t, err := l.dry(rate, 200*time.Millisecond)
				if err != nil || t.failed > 0 {
					b.Fatal(t, err)
				}
				sum += x
			}
			reportOnly(b, sum, "redis-calls/s")
		})
	}
}

func BenchmarkThroughput64(b *testing.B) {
	l := testLab(b)
	compare(b, 64, false, named{"hybrid-lease-1000", l.newBulk}, named{"redis-rate", l.newRedisRate})
}

func BenchmarkExact(b *testing.B) {
	l := testLab(b)
	for _, g := range groups {
		b.Run("goroutines="+strconv.Itoa(g), func(b *testing.B) {
			compare(b, g, false, named{"hybrid-exact", l.newExact}, named{"token-bucket", l.newTokenBucket}, named{"redis-rate", l.newRedisRate})
		})
	}
}

func BenchmarkTail(b *testing.B) {
	l := testLab(b)
	ours := func() (*subject, error) {
		_, s, _, err := l.newPrefetched(0)
		return s, err
	}
	for _, side := range []named{{"hybrid", ours}, {"redis-rate", l.newRedisRate}} {
		b.Run(side.name, func(b *testing.B) {
			s, err := side.open()
			if err != nil {
				b.Fatal(err)
			}
			defer s.close()
			latencies(s, openRate, 100*time.Millisecond)
			var sum float64
			for range b.N {
				all, t := latencies(s, openRate, 200*time.Millisecond)
				if t.admitted < t.all() {
					b.Fatal(t)
				}
				sum += float64(quantile(all, 0.999).Nanoseconds())
			}
			reportOnly(b, sum, "p999-ns")
		})
	}
}

func BenchmarkBound(b *testing.B) {
	l := testLab(b)
	var sum float64
	for range b.N {
		rs, err := l.overAdmission()
		if err != nil {
			b.Fatal(err)
		}
		sum += rs[0].values[0]
	}
	reportOnly(b, sum, "tokens-above")
}

func BenchmarkShortfall(b *testing.B) {
	l := testLab(b)
	var sum float64
	for range b.N {
		rs, err := l.shortfall()
		if err != nil || rs[0].void != "" {
			b.Fatal(rs, err)
		}
		sum += rs[0].values[0]
	}
	reportOnly(b, sum, "admitted/ideal")
}

// BenchmarkScale is for -cpu 1,2,4,...: where decisions do not get in each other's way, twice the processors halve the
// time. The sides with a limiter for each goroutine show whether neighbours in memory do.
func BenchmarkScale(b *testing.B) {
	ctx := context.Background()
	limiter := func(b *testing.B) *hybrid.Limiter {
		l, err := lasting()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(closing(l))
		return l
	}
	// Counted once by each goroutine: a count of all of them would be what is measured.
	var missed atomic.Int64
	parallel := func(b *testing.B, loop func(pb *testing.PB, goroutine int) (missed int)) {
		var goroutines atomic.Int64
		missed.Store(0)
		b.ReportAllocs()
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) { missed.Add(int64(loop(pb, int(goroutines.Add(1)-1)))) })
		b.StopTimer()
		if n := missed.Load(); n > 0 {
			b.Errorf("%d of %d were not admitted", n, b.N)
		}
	}
	handles := func(b *testing.B, keys []*hybrid.Key) {
		for _, key := range keys { // the leases
			if r, err := key.Allow(ctx); err != nil || !r.Allowed {
				b.Fatal(r, err)
			}
		}
		parallel(b, func(pb *testing.PB, g int) (missed int) {
			key := keys[g%len(keys)]
			for pb.Next() {
				if r, err := key.Allow(ctx); err != nil || !r.Allowed {
					missed++
				}
			}
			return missed
		})
	}
	rates := func(b *testing.B, limiters []*rate.Limiter) {
		parallel(b, func(pb *testing.PB, g int) (missed int) {
			l := limiters[g%len(limiters)]
			for pb.Next() {
				if !l.Allow() {
					missed++
				}
			}
			return missed
		})
	}
	b.Run("one-handle/hybrid", func(b *testing.B) { handles(b, []*hybrid.Key{limiter(b).Key("one")}) })
	b.Run("one-handle/x-time-rate", func(b *testing.B) { rates(b, []*rate.Limiter{ampleRate()}) })
	b.Run("own-handles/hybrid", func(b *testing.B) {
		l := limiter(b)
		var keys []*hybrid.Key
		for i := range runtime.GOMAXPROCS(0) {
			keys = append(keys, l.Key(strconv.Itoa(i)))
		}
		handles(b, keys)
	})
	b.Run("own-handles/x-time-rate", func(b *testing.B) {
		var limiters []*rate.Limiter
		for range runtime.GOMAXPROCS(0) {
			limiters = append(limiters, ampleRate())
		}
		rates(b, limiters)
	})
	d := newDraws(zipfKeys)
	mask := len(d.next) - 1
	b.Run("by-key/hybrid", func(b *testing.B) {
		l := limiter(b)
		for _, key := range d.stored {
			if r, err := l.Allow(ctx, key); err != nil || !r.Allowed {
				b.Fatal(r, err)
			}
		}
		parallel(b, func(pb *testing.PB, g int) (missed int) {
			for i := 7919 * g; pb.Next(); i++ {
				if r, err := l.Allow(ctx, d.asked[d.next[i&mask]]); err != nil || !r.Allowed {
					missed++
				}
			}
			return missed
		})
	})
	b.Run("by-key/sync-map", func(b *testing.B) {
		var m sync.Map
		for _, key := range d.stored {
			m.Store(key, ampleRate())
		}
		parallel(b, func(pb *testing.PB, g int) (missed int) {
			for i := 7919 * g; pb.Next(); i++ {
				v, _ := m.Load(d.asked[d.next[i&mask]])
				if !v.(*rate.Limiter).Allow() {
					missed++
				}
			}
			return missed
		})
	})
}
