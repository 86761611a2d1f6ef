//go:build unix

package hybrid_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

const (
	chaosTimeout = 200 * time.Millisecond
	// longestCall is the longest that any call may take, whatever happens to Redis, not counting the time in which this
	// process did not come to run. The library needs two Timeouts at the most, one until the batch is sent and one for the
	// answer; the rest is for a machine with other work.
	longestCall = 4 * chaosTimeout
	// soon is how long a process may take to be served by Redis again once Redis is well: a pause between probes, at most
	// 1 s, and one between the attempts of go-redis to connect, also 1 s. The median is held to it. A single one is held to
	// four times as much, for a busy machine, and for a cluster, whose client asks once a second who serves what.
	soon   = 2 * time.Second
	latest = 4 * soon
)

// chaosKey is one key that all members use. Its burst is below 256, so that a lease is below 64 tokens and each take reads
// the clock: then no take is late, however long this process stands still on a busy machine, and the bound needs no
// allowance for that.
type chaosKey struct {
	name  string
	limit limit.Limit
}

// after is for how long something that happened once can still be seen: T + 100 ms.
func (k chaosKey) after() int64 {
	longest := time.Duration(k.limit.Burst) * k.limit.Period / time.Duration(2*k.limit.Rate)
	return (longest + 100*time.Millisecond).Microseconds()
}

// lent is how much of the burst may be on lease, with the MaxLeased that is the default.
func (k chaosKey) lent() float64 { return float64(k.limit.Burst / 4) }

var chaosLimits = []limit.Limit{
	{Rate: 150, Period: time.Second, Burst: 120},
	{Rate: 120, Period: time.Second, Burst: 240},
	{Rate: 300, Period: time.Second, Burst: 60},
}

// chaosCall is one request: who made it is known from the member it belongs to.
type chaosCall struct {
	attempt
	key    int
	origin limit.Origin // 0: it failed
}

func (c *chaosCall) took() time.Duration { return time.Duration(c.to-c.from) * time.Microsecond }

// member is one limiter, with a client of its own, as a process would be.
type member struct {
	name  string
	opts  hybrid.Options
	proxy *redistest.Proxy // nil where clients find the servers by themselves
	lim   *hybrid.Limiter
	seen  *witness

	decided []atomic.Int64 // for each key, when the last call began that Redis decided
	workers []chaosWorker
}

type chaosWorker struct{ calls []chaosCall }

// fleet are the members that share keys.
type fleet struct {
	keys    []chaosKey
	members []*member
	quit    chan struct{}
	load    sync.WaitGroup

	mu    sync.Mutex
	wrong error // the first error that no outage explains
}

// chaosLimiters is how many there are just now, in all fleets.
var chaosLimiters atomic.Int64

// newFleet makes a limiter of each kind and sets its workers going. Those whose admissions in an outage are not by Redis
// are told apart by Origin.
func newFleet(t *testing.T, rng *rand.Rand, keys []chaosKey, connect func(m *member) remote.Client) *fleet {
	f := &fleet{keys: keys, quit: make(chan struct{})}
	sizes := func() int { return pick(rng, 5, 10, 20, 60) }
	lives := func() time.Duration { return pick(rng, 0, 0, time.Minute) } // the last is cut to as long as is allowed
	f.members = []*member{
		{name: "adaptive, closed", opts: hybrid.Options{OnFailure: hybrid.FailClosed, LeaseTTL: lives()}},
		{name: "fixed, closed", opts: hybrid.Options{OnFailure: hybrid.FailClosed, LeaseTTL: lives(), LeaseSize: sizes()}},
		{name: "exact, closed", opts: hybrid.Options{OnFailure: hybrid.FailClosed, Exact: true}},
		{name: "adaptive, local", opts: hybrid.Options{OnFailure: hybrid.FailLocal, LeaseTTL: lives()}},
		{name: "exact, local", opts: hybrid.Options{OnFailure: hybrid.FailLocal, Exact: true}},
		{name: "fixed, open", opts: hybrid.Options{OnFailure: hybrid.FailOpen, LeaseTTL: lives(), LeaseSize: sizes()}},
	}
	for _, m := range f.members {
		m.seen = &witness{}
		m.opts.Prefix, m.opts.Timeout, m.opts.Observer = "chaos:", chaosTimeout, m.seen
		m.opts.Instances = len(f.members)
		m.opts.LimitFor = func(key string) limit.Limit {
			for _, k := range keys {
				if k.name == key {
					return k.limit
				}
			}
			return limit.Limit{}
		}
		var err error
		if m.lim, err = hybrid.New(connect(m), limit.Limit{}, m.opts); err != nil {
			t.Fatal(err)
		}
		m.decided = make([]atomic.Int64, len(keys))
		m.workers = make([]chaosWorker, 2*len(keys))
	}
	chaosLimiters.Add(int64(len(f.members)))
	for _, m := range f.members {
		for i := range m.workers {
			w, key, r := &m.workers[i], i/2, rand.New(rand.NewPCG(rng.Uint64(), 0))
			if i%2 == 0 {
				f.load.Go(func() { f.steady(m, w, key, r) })
			} else {
				f.load.Go(func() { f.bursts(m, w, key, r) })
			}
		}
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fleet) stop() {
	select {
	case <-f.quit:
	default:
		close(f.quit)
	}
	f.load.Wait()
}

// rest waits, and reports whether there is more to do.
func (f *fleet) rest(d time.Duration) bool {
	select {
	case <-f.quit:
		return false
	case <-time.After(d):
		return true
	}
}

// steady asks for half as much again as the rate, all members together.
func (f *fleet) steady(m *member, w *chaosWorker, key int, rng *rand.Rand) {
	lim := f.keys[key].limit
	every := float64(lim.Period) / float64(lim.Rate) * float64(len(f.members)) / 1.5
	for f.rest(time.Duration(2 * rng.Float64() * every)) {
		f.ask(context.Background(), m, w, key, 1)
	}
}

// bursts asks for as much as there is, now and then.
func (f *fleet) bursts(m *member, w *chaosWorker, key int, rng *rand.Rand) {
	// Whose caller might leave is asked for by another goroutine than its own.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for f.rest(time.Duration(200+rng.IntN(1000)) * time.Millisecond) {
		refused := 0
		for n := 0; n < f.keys[key].limit.Burst/4 && refused < 3; n++ {
			if !f.ask(ctx, m, w, key, pick(rng, 1, 1, 2, 5)) {
				refused++
				if !f.rest(time.Duration(rng.IntN(3000)) * time.Microsecond) {
					return
				}
			}
		}
	}
}

func (f *fleet) ask(ctx context.Context, m *member, w *chaosWorker, key, cost int) (admitted bool) {
	a, r, err := try(func() (limit.Result, error) { return m.lim.AllowN(ctx, f.keys[key].name, cost) }, cost)
	w.calls = append(w.calls, chaosCall{a, key, r.Origin})
	switch {
	case err == nil && r.Origin != limit.Fallback:
		m.decided[key].Store(a.from)
	case err != nil && (m.opts.OnFailure != hybrid.FailClosed || !errors.Is(err, hybrid.ErrUnavailable) || errors.Is(err, remote.ErrRefused)),
		r.Origin == limit.Fallback && (m.opts.OnFailure == hybrid.FailClosed || m.opts.OnFailure == hybrid.FailOpen && !r.Allowed):
		f.mu.Lock()
		if f.wrong == nil {
			f.wrong = fmt.Errorf("%s: %+v, %w", m.name, r, err)
		}
		f.mu.Unlock()
	}
	return a.admitted
}

// calls are those of some members that began in a time.
func (f *fleet) calls(of []*member, from, to int64) (all []chaosCall) {
	for _, m := range of {
		for _, w := range m.workers {
			begin := func(t int64) int {
				i, _ := slices.BinarySearchFunc(w.calls, t, func(c chaosCall, t int64) int { return cmp.Compare(c.from, t) })
				return i
			}
			all = append(all, w.calls[begin(from):begin(to)]...)
		}
	}
	return all
}

// admittedBy are the admissions of a key by these origins, among calls.
func admittedBy(calls []chaosCall, key int, by ...limit.Origin) (in []attempt) {
	for _, c := range calls {
		if c.key == key && c.admitted && slices.Contains(by, c.origin) {
			in = append(in, c.attempt)
		}
	}
	return in
}

// witness is the Observer of one member.
type witness struct {
	mu       sync.Mutex // guards the fields below
	calls    int64
	answered []int64 // when a call went well
	open     int     // how many breakers are: more than one only in a cluster
	opened   int64   // since when, if open
	probes   int     // calls that were made while it was open
	closings []closing
}

// closing is one time in which the breaker was open.
type closing struct {
	from, to int64
	calls    int
}

func (w *witness) Called(took time.Duration, err error) {
	now := time.Now().UnixMicro()
	sent := now - took.Microseconds()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if w.open > 0 && sent > w.opened {
		w.probes++
	}
	if err == nil {
		w.answered = append(w.answered, now)
	}
}

func (w *witness) told() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

func (w *witness) Unavailable(error) {
	now := time.Now().UnixMicro()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open++; w.open == 1 {
		w.opened, w.probes = now, 0
	}
}

func (w *witness) Available(time.Duration) {
	now := time.Now().UnixMicro()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open--; w.open == 0 {
		w.closings = append(w.closings, closing{w.opened, now, w.probes})
	}
}

// shares says when the member may have begun a bucket of its own for a key, at most as often as the number in tokens. One
// ends when a call for its key goes well: either a decision by Redis shows that, or the call had no callers, and then all
// that the Observer was told of count.
func (m *member) shares(calls []chaosCall) (rows []leeway) {
	answered := m.seen.times()
	ended := true
	for _, c := range slices.SortedFunc(slices.Values(calls), func(a, b chaosCall) int { return cmp.Compare(a.to, b.to) }) {
		switch {
		case c.origin == limit.Remote:
			ended = true
		case c.origin != limit.Fallback:
		case ended:
			rows, ended = append(rows, leeway{c.from, c.to, 1}), false
		default:
			row := &rows[len(rows)-1]
			row.from, row.until = min(row.from, c.from), c.to
		}
	}
	for i := range rows {
		first, _ := slices.BinarySearch(answered, rows[i].from)
		last, _ := slices.BinarySearch(answered, rows[i].until+1)
		rows[i].tokens += float64(last - first)
	}
	return rows
}

// times are when calls went well, in order.
func (w *witness) times() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.answered))
}

// mostProbes is how many probes the breaker may send in d: after pauses of 50 ms, doubled each time up to 1 s, each cut by
// a half at most.
func mostProbes(d time.Duration) (n int) {
	pause := 25 * time.Millisecond
	for d -= pause; d >= 0; d -= pause {
		n++
		pause = min(2*pause, 500*time.Millisecond)
	}
	return n
}

// stalls are the times in which this process did not come to run, on a machine that has too much to do: a goroutine that
// wants to wake up every few milliseconds could not.
type stalls struct {
	mu  sync.Mutex // guards all
	all [][2]int64 // in order
}

const (
	stallTick  = 5 * time.Millisecond
	stallLeast = 20 * time.Millisecond
)

// watchStalls notes them until the test ends.
func watchStalls(t *testing.T) *stalls {
	s := &stalls{}
	quit, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(quit); <-done })
	go func() {
		defer close(done)
		for last := time.Now(); ; {
			select {
			case <-quit:
				return
			case <-time.After(stallTick):
			}
			now := time.Now()
			if now.Sub(last) > stallLeast {
				s.mu.Lock()
				s.all = append(s.all, [2]int64{last.Add(stallTick).UnixMicro(), now.UnixMicro()})
				s.mu.Unlock()
			}
			last = now
		}
	}()
	return s
}

// within is how much of a time was lost.
func (s *stalls) within(from, to int64) (d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		d += time.Duration(max(0, min(to, x[1])-max(from, x[0]))) * time.Microsecond
	}
	return d
}
