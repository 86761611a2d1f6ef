package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
	"github.com/hybridlimit/hybrid/limit"
)

// shared is the Redis of all tests and benchmarks, started when the first one needs it.
var shared struct {
	once sync.Once
	b    *measure.Backend
	err  error
}

func testBackend(tb testing.TB) *measure.Backend {
	tb.Helper()
	shared.once.Do(func() { shared.b, shared.err = measure.Open(context.Background()) })
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.b
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.b != nil {
		shared.b.Close()
	}
	os.Exit(code)
}

// opened makes a peer for one benchmark.
func opened(b *testing.B, p Peer, lim limit.Limit) *subject {
	b.Helper()
	var be *measure.Backend
	if p.Redis {
		be = testBackend(b)
	}
	s, err := p.open(be, lim)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.closer)
	return s
}

// ask makes b.N calls from l's goroutines, as near to their number as a multiple of GOMAXPROCS comes.
func ask(b *testing.B, s *subject, l load) {
	ctx := b.Context()
	// The connection and the script have to be there, or one operation alone would show what they cost.
	if _, err := s.allow(ctx, l.keys[0]); err != nil {
		b.Fatal(err)
	}
	trips := s.trips.Load()
	var started, failed atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	if l.goroutines == 1 {
		for i := range b.N {
			if _, err := s.allow(ctx, l.keys[i&(draws-1)]); err != nil {
				failed.Add(1)
			}
		}
	} else {
		procs := runtime.GOMAXPROCS(0)
		b.SetParallelism((l.goroutines + procs - 1) / procs)
		b.RunParallel(func(pb *testing.PB) {
			i := int(started.Add(1)) * 7919
			for ; pb.Next(); i++ {
				if _, err := s.allow(ctx, l.keys[i&(draws-1)]); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	b.StopTimer()
	if s.Redis {
		b.ReportMetric(float64(s.trips.Load()-trips)/float64(b.N), "redis-calls/op")
	}
	if n := failed.Load(); n > 0 {
		b.ReportMetric(float64(n)/float64(b.N), "errors/op")
	}
}

func benchmark(b *testing.B, peers []Peer, ls []load) {
	for _, p := range peers {
		b.Run(p.Name, func(b *testing.B) {
			s := opened(b, p, p.speed())
			for _, l := range ls {
				if p.OneKey && !l.hot {
					continue
				}
				b.Run(l.name, func(b *testing.B) { ask(b, s, l) })
			}
		})
	}
}

func BenchmarkRedis(b *testing.B) {
	benchmark(b, slices.Concat(redisPeers(), ourRedisPeers()), loads(1, 64, 256))
}

func BenchmarkMemory(b *testing.B) {
	benchmark(b, slices.Concat(memoryPeers(), ourMemoryPeers()), loads(1, 2*runtime.GOMAXPROCS(0)))
}

// BenchmarkAccuracy offers 20 times a limit of 1,000 per second for 300 ms per operation. Its time per operation says
// nothing; admitted/ideal says how the limit was kept, redis-calls/op what a decision cost meanwhile.
func BenchmarkAccuracy(b *testing.B) {
	for _, p := range slices.Concat(redisPeers(), ourRedisPeers(), memoryPeers(), ourMemoryPeers()) {
		b.Run(p.Name, func(b *testing.B) {
			var sum verdict
			for i := range b.N {
				s := opened(b, p, accuracyLimit)
				key := fmt.Sprintf("%s:%d:%d", b.Name(), time.Now().UnixNano(), i)
				v := s.probe(b.Context(), accuracyLimit, key, accuracyGoroutines, 20*float64(accuracyLimit.Rate), 300*time.Millisecond)
				sum.admitted += v.admitted
				sum.offered += v.offered
				sum.trips += v.trips
				sum.ideal += v.ideal
			}
			b.ReportMetric(float64(sum.admitted)/sum.ideal, "admitted/ideal")
			b.ReportMetric(float64(sum.offered)/sum.ideal, "offered/ideal")
			if p.Redis {
				b.ReportMetric(float64(sum.trips)/float64(sum.offered), "redis-calls/decision")
			}
		})
	}
}
