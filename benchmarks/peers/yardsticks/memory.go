package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
	"github.com/hybridlimit/hybrid/lease/leasetest"
)

// The subjects that answer from memory. None of them waits for anything in a pass, and none allocates.

// lasting is a limiter whose leases outlast a run, so that its passes measure decisions and nothing else: a billion
// tokens in each, half of a burst that lasts 2,000 s, and so they live for 1,000 s and lie idle for 250 s before they go
// back. Its source is the model of the bucket: after the first lease of a key it is not asked again.
func lasting() (*hybrid.Limiter, error) {
	ample := hybrid.Limit{Rate: 1_000_000, Period: time.Second, Burst: 2_000_000_000}
	return hybrid.NewFrom(leasetest.NewSource(), ample, hybrid.Options{LeaseSize: 1_000_000_000, MaxLeased: 1, LeaseTTL: time.Hour})
}

func callsOf(l *hybrid.Limiter) func() int64 { return func() int64 { return l.Stats().Calls } }

func closing(l *hybrid.Limiter) func() { return func() { l.Close(context.Background()) } }

// askHandle is the loop of every row that asks one key by its handle.
func askHandle(key *hybrid.Key) func(first, n int) tally {
	return func(_, n int) (t tally) {
		ctx := context.Background()
		for range n {
			r, err := key.Allow(ctx)
			t = t.plus(r.Allowed, err)
		}
		return t
	}
}

// askKey is the loop of every row that asks one key by name.
func askKey(allow func(context.Context, string) (hybrid.Result, error), key string) func(first, n int) tally {
	return func(_, n int) (t tally) {
		ctx := context.Background()
		for range n {
			r, err := allow(ctx, key)
			t = t.plus(r.Allowed, err)
		}
		return t
	}
}

func newHandle() (*subject, error) {
	l, err := lasting()
	if err != nil {
		return nil, err
	}
	s := &subject{ask: askHandle(l.Key("handle")), calls: callsOf(l), close: closing(l)}
	return s, warm(s, 1)
}

// warm asks n times, which must be admitted.
func warm(s *subject, n int) error {
	if t := s.ask(0, n); t.admitted < n {
		return fmt.Errorf("of the first %d requests %d were denied and %d failed", n, t.denied, t.failed)
	}
	return nil
}

func askRate(l *rate.Limiter) func(first, n int) tally {
	return func(_, n int) (t tally) {
		for range n {
			t = t.plus(l.Allow(), nil)
		}
		return t
	}
}

// ampleRate is never dry: no loop asks a billion times a second.
func ampleRate() *rate.Limiter { return rate.NewLimiter(1e9, 1<<30) }

func newRate() (*subject, error) {
	return &subject{ask: askRate(ampleRate()), close: nothing}, nil
}

// newDenial is a key that has been found dry: one token an hour, and it is spent. The limiter asks again after a second,
// the longest for which it believes a refusal; such a call is counted, and its pass put aside.
func newDenial() (*subject, error) {
	l, err := hybrid.NewFrom(leasetest.NewSource(), hybrid.Every(time.Hour), hybrid.Options{})
	if err != nil {
		return nil, err
	}
	s := &subject{ask: askHandle(l.Key("dry")), calls: callsOf(l), close: closing(l)}
	if err := warm(s, 1); err != nil {
		return nil, err
	}
	s.ask(0, 1) // finds it dry
	return s, nil
}

func newRateDenial() (*subject, error) {
	l := rate.NewLimiter(rate.Every(time.Hour), 1)
	l.Allow()
	return &subject{ask: askRate(l), close: nothing}, nil
}

// draws are keys by a Zipf distribution. All subjects walk through the same ones.
type draws struct {
	stored []string // what the tables were filled with
	asked  []string // the same text in other memory, as it is when a key comes with a request
	next   []uint16 // which key is asked for next; its length is a power of two
}

// newDraws draws more than a pass of the slowest subject asks for, so that all passes meet the same keys.
func newDraws(keys int) *draws {
	d := &draws{next: make([]uint16, 1<<17)}
	for i := range keys {
		d.stored = append(d.stored, fmt.Sprintf("user:%011d", i))
	}
	for _, key := range d.stored {
		d.asked = append(d.asked, strings.Clone(key))
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(keys-1))
	for i := range d.next {
		d.next[i] = uint16(zipf.Uint64())
	}
	return d
}

func newByKey(d *draws) (*subject, error) {
	l, err := lasting()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	for _, key := range d.stored { // each gets its lease
		if r, err := l.Allow(ctx, key); err != nil || !r.Allowed {
			return nil, fmt.Errorf("first request of a key: %+v, %v", r, err)
		}
	}
	return &subject{
		ask: func(first, n int) (t tally) {
			ctx := context.Background()
			for i := range n {
				r, err := l.Allow(ctx, d.asked[d.next[(first+i)&(len(d.next)-1)]])
				t = t.plus(r.Allowed, err)
			}
			return t
		},
		calls: callsOf(l), close: closing(l),
	}, nil
}

// newRateMap is what programs do that need a limit for each key of one process, without a bound on their number.
func newRateMap(d *draws) (*subject, error) {
	var m sync.Map
	for _, key := range d.stored {
		m.Store(key, ampleRate())
	}
	return &subject{
		ask: func(first, n int) (t tally) {
			for i := range n {
				key := d.asked[d.next[(first+i)&(len(d.next)-1)]]
				v, ok := m.Load(key)
				if !ok {
					v, _ = m.LoadOrStore(key, ampleRate())
				}
				t = t.plus(v.(*rate.Limiter).Allow(), nil)
			}
			return t
		},
		close: nothing,
	}, nil
}

// newRateLRU is the same with a bound.
func newRateLRU(d *draws) (*subject, error) {
	m, err := lru.New[string, *rate.Limiter](1 << 16)
	if err != nil {
		return nil, err
	}
	for _, key := range d.stored {
		m.Add(key, ampleRate())
	}
	return &subject{
		ask: func(first, n int) (t tally) {
			for i := range n {
				key := d.asked[d.next[(first+i)&(len(d.next)-1)]]
				l, ok := m.Get(key)
				if !ok {
					l = ampleRate()
					m.Add(key, l)
				}
				t = t.plus(l.Allow(), nil)
			}
			return t
		},
		close: nothing,
	}, nil
}

const zipfKeys = 10_000

// opener makes a subject.
type opener func() (*subject, error)

// with makes an opener of a subject that needs keys.
func with(d *draws, open func(*draws) (*subject, error)) opener {
	return func() (*subject, error) { return open(d) }
}

// openAll makes subjects, and a function that closes them.
func openAll(openers ...opener) (subjects []*subject, closer func(), err error) {
	closer = func() {
		for _, s := range subjects {
			s.close()
		}
	}
	for _, open := range openers {
		s, err := open()
		if err != nil {
			closer()
			return nil, nil, err
		}
		subjects = append(subjects, s)
	}
	return subjects, closer, nil
}

// beside is the ratio of the first subject to the one that it is measured by, in time for one decision. Each decision
// must be the one that is meant: an admission or a denial.
func (l *lab) beside(goroutines int, denials bool, openers ...opener) ([]result, error) {
	subjects, closer, err := openAll(openers...)
	if err != nil {
		return nil, err
	}
	defer closer()
	runtime.GC() // what others have left behind is not to be collected in a pass
	passes := race(l.rounds, l.pass, goroutines, subjects...)
	var results []result
	for _, theirs := range passes[1:] {
		results = append(results, ratios(passes[0], theirs, denials))
	}
	return results, nil
}

// ratios are those of the rounds in which the limiter did not call its source. What a call costs is a matter of other
// rows; those of the other rounds are told apart.
func ratios(ours, theirs []pass, denials bool) (r result) {
	ours, theirs = ours[1:], theirs[1:] // the first pass is for warming up
	var with []float64
	var calls int64
	var sum tally
	disturbed := 0
	for i, p := range ours {
		sum.add(p.tally)
		sum.add(theirs[i].tally)
		x := p.nanos() / theirs[i].nanos()
		with = append(with, x)
		if p.calls == 0 {
			r.values = append(r.values, x)
		} else {
			calls += p.calls
			disturbed++
		}
	}
	if len(r.values) == 0 {
		r.values = with
	}
	right := sum.admitted
	if denials {
		right = sum.denied
	}
	if right < sum.all() {
		r.void = fmt.Sprintf("%d admitted, %d denied, %d failed", sum.admitted, sum.denied, sum.failed)
	}
	if calls == 0 {
		r.counts = fmt.Sprintf("no call in %d passes", len(ours))
	} else {
		r.counts = fmt.Sprintf("calls: %d, in %d of %d passes; with these %s", calls, disturbed, len(ours), number(measure.Median(with)))
	}
	return r
}

func (l *lab) handle() ([]result, error) { return l.beside(1, false, newHandle, newRate) }

// hotKey is on two processors, however many there are, because that is what its goal is about.
func (l *lab) hotKey() ([]result, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	return l.beside(64, false, newHandle, newRate)
}

func (l *lab) denial() ([]result, error) { return l.beside(1, true, newDenial, newRateDenial) }

func (l *lab) byKey() ([]result, error) {
	d := newDraws(zipfKeys)
	return l.beside(1, false, with(d, newByKey), with(d, newRateMap), with(d, newRateLRU))
}

// allocations are counted in whole hundredths of an object for a decision: the janitor and the runtime may make one now
// and then, which is nobody's decision.
func (l *lab) allocations() ([]result, error) {
	subjects, closer, err := openAll(newHandle, with(newDraws(zipfKeys), newByKey), newDenial)
	if err != nil {
		return nil, err
	}
	defer closer()
	var results []result
	for _, s := range subjects {
		const n = 100_000
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p := s.run(1, 0, n)
		runtime.ReadMemStats(&after)
		objects := after.Mallocs - before.Mallocs
		results = append(results, result{
			values: []float64{math.Floor(100*float64(objects)/n) / 100},
			counts: fmt.Sprintf("%d objects in %s decisions of the whole process, %d calls", objects, measure.Thousands(n), p.calls),
		})
	}
	return results, nil
}
