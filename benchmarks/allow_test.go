package benchmarks

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// ample is a limit that no load of BenchmarkAllow reaches, so that every decision is an admission. Its burst lasts so
// long that no lease ends within the run.
func ample(f form) limit.Limit {
	switch f {
	case window:
		return limit.PerSecond(1e9)
	case log:
		// A log keeps what it admitted within the period, so the period is short.
		return limit.Limit{Rate: 100_000, Period: 10 * time.Millisecond, Burst: 100_000}
	}
	return limit.PerSecond(1e7).WithBurst(2e9)
}

const (
	zipfKeys = 10_000
	draws    = 1 << 16 // keys that are drawn in advance, to be asked for in turn
)

// keySet is what is asked for.
type keySet struct {
	name     string
	keys     []string // draws of them
	distinct int
}

func keySets() []keySet {
	all := allKeys()
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, zipfKeys-1)
	skewed := make([]string, draws)
	for i := range skewed {
		skewed[i] = all[zipf.Uint64()]
	}
	// As long as the other, so that the two differ only in what the limiters do with them.
	return []keySet{{"hot", slices.Repeat([]string{"hot"}, draws), 1}, {"zipf10k", skewed, zipfKeys}}
}

func allKeys() []string {
	keys := make([]string, zipfKeys)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	return keys
}

// BenchmarkAllow is the cost of one decision of each mode.
func BenchmarkAllow(b *testing.B) {
	sets := keySets()
	for _, m := range modes() {
		b.Run(m.name, func(b *testing.B) {
			s := &subject{mode: m, wire: new(wire)}
			rdb := s.wire.client()
			defer rdb.Close()
			var err error
			if s.limiter, err = m.open(rdb, ample(m.form), backend.prefix+m.name+":"); err != nil {
				b.Fatal(err)
			}
			s.warm(b, append(allKeys()[:64], "hot"))
			for _, set := range sets {
				for _, goroutines := range []int{1, 64} {
					b.Run(fmt.Sprintf("keys=%s/goroutines=%d", set.name, goroutines), func(b *testing.B) {
						s.run(b, set, goroutines)
					})
				}
			}
			closeLimiter(b, s.limiter)
		})
	}
}

// subject is a mode under test.
type subject struct {
	mode    mode
	limiter limit.Limiter
	wire    *wire
	warmed  bool // the skewed keys are known
}

// warm asks once for each of the keys, from many goroutines, so that no benchmark pays for first sight of a key, for
// connections or for scripts.
func (s *subject) warm(b *testing.B, keys []string) {
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := g; i < len(keys); i += 64 {
				if _, err := s.limiter.Allow(b.Context(), keys[i]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// asked is what one goroutine found.
type asked struct {
	denied  int
	err     error
	samples []time.Duration
	_       [64]byte // no shared cache line
}

// run makes b.N calls, spread over the goroutines.
func (s *subject) run(b *testing.B, set keySet, goroutines int) {
	// Not worth its time for a few calls, as with -benchtime=1x.
	if set.distinct > 1 && b.N > 1000 && !s.warmed {
		s.warm(b, allKeys())
		s.warmed = true
	}
	scripts, writes := s.wire.scripts.Scripts(), s.wire.writes.Load()
	// Reading the clock twice takes longer than to answer from memory. A prime, so that it keeps no step with leases.
	every := 61
	if s.mode.redis && s.mode.lease <= 1 {
		every = 7
	}
	found := make([]asked, goroutines)
	for g := range found {
		found[g].samples = make([]time.Duration, 0, b.N/goroutines/every+1)
	}
	runtime.GC() // of the benchmark before
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for g := range found {
		n := b.N / goroutines
		if g < b.N%goroutines {
			n++
		}
		wg.Go(func() { s.ask(b, &found[g], set.keys, g*7919, n, every) })
	}
	wg.Wait()
	b.StopTimer()

	var samples []time.Duration
	denied := 0
	for g := range found {
		if found[g].err != nil {
			b.Fatal(found[g].err)
		}
		denied += found[g].denied
		samples = append(samples, found[g].samples...)
	}
	slices.Sort(samples)
	b.ReportMetric(float64(samples[len(samples)*99/100].Nanoseconds())/1000, "p99-us")
	if denied > 0 {
		b.Errorf("the limit %v denied %d of %d: this is no measure of speed", ample(s.mode.form), denied, b.N)
	}
	scripts, writes = s.wire.scripts.Scripts()-scripts, s.wire.writes.Load()-writes
	if s.mode.redis {
		b.ReportMetric(float64(scripts)/float64(b.N), "redis-calls/op")
		b.ReportMetric(float64(writes)/float64(b.N), "round-trips/op")
	}
	// What is claimed: one call for each decision at most; with leases, one for each that is used up. The last lease
	// of each key was begun before.
	most := 0.0
	switch {
	case s.mode.lease > 0:
		most = 1.5*float64(b.N)/float64(s.mode.lease) + float64(set.distinct)
	case s.mode.redis:
		most = float64(b.N)
	}
	if float64(scripts) > most {
		b.Errorf("%d calls for %d decisions, want at most %.0f", scripts, b.N, most)
	}
}

func (s *subject) ask(b *testing.B, a *asked, keys []string, first, n, every int) {
	ctx := b.Context()
	denied, due := 0, 1
	for i := range n {
		key := keys[(first+i)%draws]
		var r limit.Result
		var err error
		if due--; due == 0 {
			due = every
			start := time.Now()
			r, err = s.limiter.Allow(ctx, key)
			a.samples = append(a.samples, time.Since(start))
		} else {
			r, err = s.limiter.Allow(ctx, key)
		}
		if err != nil {
			a.err = err
			return
		}
		if !r.Allowed {
			denied++
		}
	}
	a.denied = denied
}
