package hybrid_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

var (
	histories = flag.Int("histories", 0, "how many random histories TestEnvelope plays; 0 is 5,000, fewer with -short and under -race")
	verbose   = flag.Bool("histories.tell", false, "tell each history of TestEnvelope")
)

// TestEnvelope plays random histories with the real Limiter, several of them sharing a source over a bad network, and
// checks the bound of every window and of every key. Each history has a number that, with the seed, plays it again:
//
//	go test -run TestEnvelope -histories=1000000 -seed=7
func TestEnvelope(t *testing.T) {
	n := *histories
	switch {
	case n > 0:
	case underRace:
		n = 600
	case testing.Short():
		n = 1000
	default:
		n = 5000
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	var next atomic.Int64
	var sum totals
	t.Run("histories", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := next.Add(1); i <= int64(n) && !t.Failed(); i = next.Add(1) {
					w := newWorld(seed, uint64(i))
					synctest.Test(t, w.play)
					sum.add(w)
				}
			})
		}
	})
	t.Logf("%d histories, seed %d: %v", n, seed, &sum)
	if !t.Failed() && n >= 500 {
		sum.check(t)
	}
}

// totals are what all histories together had in them: a test that tries nothing must not pass.
type totals struct {
	mu                                                   sync.Mutex
	requests, local, remote, lost, crashes, closes, told int64
	strict                                               int64
	closest                                              [kinds]int64
}

func (s *totals) add(w *world) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests += w.requests.Load()
	s.local += w.local.Load()
	s.remote += w.remote.Load()
	s.lost += w.failed.Load()
	s.crashes += w.crashes
	s.closes += w.closes
	if w.kind == strictly {
		s.strict++
	}
	if s.closest[w.kind] == 0 || w.excess+1<<20 > s.closest[w.kind] {
		s.closest[w.kind] = w.excess + 1<<20
	}
	s.told += w.told
}

func (s *totals) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests, %d tokens from memory, %d from the source, %d failed; %d crashes, %d closes; %d strict; worst excess",
		s.requests, s.local, s.remote, s.lost, s.crashes, s.closes, s.strict)
	for k, e := range s.closest {
		if e != 0 {
			fmt.Fprintf(&b, " %v %+d", kind(k), e-1<<20)
		}
	}
	return b.String()
}

func (s *totals) check(t *testing.T) {
	if s.local < s.remote/10 || s.lost == 0 || s.crashes == 0 || s.closes == 0 {
		t.Errorf("the histories try too little")
	}
	if s.closest[strictly]-1<<20 != 0 {
		t.Errorf("the histories never reach the bound: %+d at most", s.closest[strictly]-1<<20)
	}
}

// kind is what can happen in a history beside what must do no harm: a network that loses, delays, repeats and reorders,
// crashes, Close, eviction, exact processes, all sorts of settings.
type kind int

const (
	strictly   kind = iota
	slackly         // with slack
	changing        // limits change
	resetting       // keys are reset
	forgetting      // the source forgets, or goes back to what it was
	stepping        // the clock of the source is set
	kinds
)

func (k kind) String() string {
	return [...]string{"strict", "slack", "limit changes", "resets", "losses", "clock steps"}[k]
}

// world is one history.
type world struct {
	seed, number uint64

	kind    kind
	rng     *rand.Rand
	limits  []limit.Limit // the first is in force at first
	settled limit.Limit   // what the bound is made of: of each part the largest
	timeout time.Duration
	lasts   time.Duration
	bad     float64 // share of requests to which something happens
	wild    bool    // of which some take longer than the timeout

	src       *leasetest.Source
	processes []*process

	mu        sync.Mutex // guards the fields below
	envelopes map[string]*leasetest.Envelope
	granted   int64 // by how much the bound may be exceeded, by what has happened

	requests, local, remote, failed atomic.Int64
	crashes, closes, told           int64
	excess                          int64
}

func (w *world) String() string {
	opts := make([]string, len(w.processes))
	for i, p := range w.processes {
		o := p.opts
		opts[i] = fmt.Sprintf("{exact %v size %d ttl %v max %v slack %v refresh %v keys %d callers %d}",
			o.Exact, o.LeaseSize, o.LeaseTTL, o.MaxLeased, o.Slack, o.Refresh, o.MaxKeys, p.callers)
	}
	return fmt.Sprintf("%d of seed %d: %v, %v for %v, timeout %v, bad %.2f, wild %v, excess %+d of %+d, %d requests, %d local, %d remote, %d failed: %s",
		w.number, w.seed, w.kind, w.limits, w.lasts, w.timeout, w.bad, w.wild, w.excess, w.granted, w.requests.Load(), w.local.Load(),
		w.remote.Load(), w.failed.Load(), strings.Join(opts, " "))
}

func oneOf[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func newWorld(seed, number uint64) *world {
	rng := rand.New(rand.NewPCG(seed, number))
	w := &world{seed: seed, number: number, rng: rng, envelopes: make(map[string]*leasetest.Envelope)}
	if rng.IntN(10) < 4 {
		w.kind = 1 + kind(rng.IntN(int(kinds)-1))
	}
	for range 2 {
		burst := oneOf(rng, 1, 3, 10, 20, 50, 100)
		fills := oneOf(rng, 50*time.Millisecond, 200*time.Millisecond, time.Second, 3*time.Second)
		w.limits = append(w.limits, limit.Limit{Rate: burst, Period: fills, Burst: burst})
	}
	if w.kind != changing {
		w.limits = w.limits[:1]
	}
	w.settled = w.limits[0]
	for _, lim := range w.limits[1:] {
		// Bursts and the times to fill them differ, rates are compared over the longest.
		if float64(lim.Rate)/lim.Period.Seconds() > float64(w.settled.Rate)/w.settled.Period.Seconds() {
			w.settled.Rate, w.settled.Period = lim.Rate, lim.Period
		}
		w.settled.Burst = max(w.settled.Burst, lim.Burst)
	}
	w.timeout = oneOf(rng, 30*time.Millisecond, 100*time.Millisecond, 400*time.Millisecond)
	w.lasts = 2*w.limits[0].ResetAfter(0) + 500*time.Millisecond
	w.bad = oneOf(rng, 0, 0.05, 0.2, 0.5)
	w.wild = rng.IntN(3) == 0
	for range 1 + rng.IntN(4) {
		p := &process{world: w, callers: 1 + rng.IntN(3), rng: rand.New(rand.NewPCG(seed, rng.Uint64()))}
		p.opts = hybrid.Options{
			Exact:     rng.IntN(5) == 0,
			LeaseSize: oneOf(rng, 0, 0, 1, 4, 30),
			LeaseTTL:  oneOf(rng, 0, 0, 20*time.Millisecond, time.Second),
			MaxLeased: oneOf(rng, 0, 0, 0.6, 1),
			Refresh:   oneOf(rng, 0, 0, 10*time.Millisecond, 200*time.Millisecond),
			MaxKeys:   oneOf(rng, 1, 2, 0),
			Timeout:   w.timeout,
		}
		if w.kind == slackly {
			p.opts.Slack = oneOf(rng, 0, 0.1, 0.5, 1)
		}
		w.processes = append(w.processes, p)
	}
	return w
}

// process is one process; when it crashes or is closed, another one takes its place.
type process struct {
	world   *world
	opts    hybrid.Options
	callers int
	rng     *rand.Rand // of the director only

	life atomic.Pointer[life]
	all  []*life
}

// life is one run of a process: a Limiter and its line to the source.
type life struct {
	*hybrid.Limiter
	world *world
	dead  atomic.Bool // nothing gets through any more, in either direction

	spent atomic.Int64 // tokens of leases
	left  atomic.Int64 // what callers had asked for who had no answer: some of it may have been paid when they gave up
}

// line is how a run of a process reaches the source.
type line struct {
	*leasetest.Source
	life *life
}

var errCrashed = fmt.Errorf("%w: crashed", limit.ErrUnavailable)

// Acquire notes what the source admits, at the time at which it did.
func (c *line) Acquire(ctx context.Context, reqs []lease.Request, grants []lease.Grant) {
	l := c.life
	if !l.dead.Load() {
		l.world.src.Acquire(ctx, reqs, grants)
	}
	for i := range grants {
		g := &grants[i]
		if l.dead.Load() {
			g.Err = errCrashed
		}
		if g.Err != nil {
			continue
		}
		var n int64
		for k, a := range g.Admitted {
			n += int64(a) * int64(reqs[i].Costs[k].Cost)
		}
		if n > 0 {
			at := g.Now
			if l.world.kind == stepping {
				at = time.Now().UnixMicro()
			}
			l.world.envelope(reqs[i].Key).Add(at, n)
			l.world.remote.Add(n)
		}
	}
}

func (w *world) envelope(key string) *leasetest.Envelope {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.envelopes[key] == nil {
		w.envelopes[key] = new(leasetest.Envelope)
	}
	return w.envelopes[key]
}

// begin starts a run of the process.
func (p *process) begin(lim limit.Limit) error {
	l := &life{world: p.world}
	opts := p.opts
	opts.OnFailure = hybrid.FailClosed // the bound is about what the source grants
	h, err := hybrid.NewFrom(&line{p.world.src, l}, lim, opts)
	if err != nil {
		return err
	}
	l.Limiter = h
	p.all = append(p.all, l)
	p.life.Store(l)
	return nil
}

// ask makes a request of whichever run of the process there is.
func (p *process) ask(ctx context.Context, key string, n int) bool {
	l, w := p.life.Load(), p.world
	w.requests.Add(1)
	r, err := l.AllowN(ctx, key, n)
	switch {
	case err != nil && ctx.Err() != nil:
		l.left.Add(int64(n))
	case err != nil:
		l.left.Add(int64(n))
		w.failed.Add(1)
	case r.Allowed && r.Origin == hybrid.Local && n > 0:
		w.envelope(key).Add(time.Now().UnixMicro(), int64(n))
		w.local.Add(int64(n))
		l.spent.Add(int64(n))
	}
	return err == nil && r.Allowed
}

// call is the life of one caller of the process: it is steady, or hoards and then takes all it can get.
func (p *process) call(rng *rand.Rand, until time.Time) {
	w := p.world
	burst := w.limits[0].Burst
	pace := max(w.lasts/80, time.Millisecond)
	for time.Now().Before(until) {
		key := "k"
		if p.opts.MaxKeys != 0 && rng.IntN(4) == 0 {
			key = oneOf(rng, "k1", "k2")
		}
		cost := 1
		if rng.IntN(3) == 0 {
			cost = rng.IntN(burst + 1)
		}
		ctx := context.Background()
		cancel := func() {}
		if rng.IntN(20) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(w.timeout))))
		}
		switch rng.IntN(12) {
		case 0: // silence
			time.Sleep(time.Duration(rng.Int64N(int64(w.lasts / 3))))
		case 1: // all there is
			for i := 0; i < 3*burst && p.ask(ctx, key, cost); i++ {
			}
		case 2: // a flood
			for range 10 {
				p.ask(ctx, key, 1)
			}
		default:
			p.ask(ctx, key, cost)
		}
		cancel()
		time.Sleep(time.Duration(rng.Int64N(int64(pace))))
	}
}

// fault is what goes wrong with one request.
func (w *world) fault(rng *rand.Rand) leasetest.Fault {
	f := leasetest.Fault{
		Delay: time.Duration(rng.Int64N(int64(2 * time.Millisecond))),
		Reply: time.Duration(rng.Int64N(int64(2 * time.Millisecond))),
	}
	if rng.Float64() >= w.bad {
		return f
	}
	long := 4 * w.limits[0].ResetAfter(0) / 2 // of a lease the longest life, four times
	switch rng.IntN(6) {
	case 0:
		f.LoseRequest = true
	case 1:
		f.LoseReply = true
	case 2:
		f.Late = 1 + time.Duration(rng.Int64N(int64(long)))
	case 3:
		f.Again = 1 + time.Duration(rng.Int64N(int64(long)))
	case 4:
		f.Delay = time.Duration(rng.Int64N(int64(w.timeout)))
	case 5:
		f.Reply = time.Duration(rng.Int64N(int64(w.timeout)))
	}
	if w.wild {
		f.Delay *= time.Duration(1 + rng.IntN(3))
	}
	return f
}

// lent is what is out of all keys, and full what their buckets hold at most.
func (w *world) lent() (n int64) {
	for _, key := range w.src.Keys() {
		s := w.src.State(key)
		n = max(n, s.Lent())
	}
	return n
}

// direct makes things happen to processes and to the source.
func (w *world) direct(t *testing.T, until time.Time) {
	rng := w.rng
	lim := w.limits[0]
	var old leasetest.Snapshot
	snapped := false
	for {
		time.Sleep(time.Duration(rng.Int64N(int64(w.lasts / 4))))
		if !time.Now().Before(until) {
			return
		}
		p := oneOf(rng, w.processes...)
		switch rng.IntN(6) {
		case 0:
			p.life.Load().dead.Store(true)
			w.crashes++
			w.start(t, p, lim)
			continue
		case 1:
			l := p.life.Load()
			w.closes++
			w.start(t, p, lim)
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.Int64N(int64(2*w.timeout))))
			l.Close(ctx)
			cancel()
			continue
		}
		w.told++
		switch w.kind {
		case changing:
			lim = oneOf(rng, w.limits...)
			w.allow(w.lent())
			for _, p := range w.processes {
				if err := p.life.Load().SetLimit(lim); err != nil {
					t.Error(err)
				}
			}
		case resetting:
			w.allow(w.lent() + int64(lim.Burst))
			if err := p.life.Load().Reset(context.Background(), "k"); err != nil && !errors.Is(err, limit.ErrClosed) {
				t.Error(err)
			}
		case forgetting:
			switch {
			case rng.IntN(2) == 0:
				old, snapped = w.src.Snapshot(), true
			case snapped:
				w.allow(w.lent() + int64(lim.Burst))
				w.src.Rollback(old)
			default:
				w.allow(w.lent() + int64(lim.Burst))
				w.src.Flush()
			}
		case stepping:
			d := oneOf(rng, time.Millisecond, 50*time.Millisecond, 2*time.Second, 20*time.Second)
			if rng.IntN(2) == 0 {
				d = -d
			} else {
				w.allow(w.lent() + min(int64(lim.Burst), 1+int64(float64(lim.Rate)*d.Seconds()/lim.Period.Seconds())))
			}
			w.src.StepClock(d)
		}
	}
}

// allow widens the bound by what has happened.
func (w *world) allow(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted += n
}

func (w *world) start(t *testing.T, p *process, lim limit.Limit) {
	if err := p.begin(lim); err != nil {
		t.Error(err)
	}
}

// play is the history; it runs in a bubble.
func (w *world) play(t *testing.T) {
	w.src = leasetest.NewSource()
	w.src.Timeout = w.timeout
	faults := rand.New(rand.NewPCG(w.rng.Uint64(), 1))
	w.src.Always(func(lease.Request) leasetest.Fault { return w.fault(faults) })
	until := time.Now().Add(w.lasts)
	var wg sync.WaitGroup
	for _, p := range w.processes {
		w.start(t, p, w.limits[0])
		for range p.callers {
			rng := rand.New(rand.NewPCG(p.rng.Uint64(), 2))
			wg.Go(func() { p.call(rng, until) })
		}
	}
	w.direct(t, until)
	wg.Wait()
	for _, p := range w.processes {
		p.life.Load().Close(context.Background())
	}
	// All leases have ended, all that was late has come, and those that crashed have nothing left to look after.
	time.Sleep(w.lasts + 10*w.timeout + 2*time.Minute)
	synctest.Wait()
	w.check(t)
	if t.Failed() || *verbose {
		t.Logf("history %v", w)
	}
}

func (w *world) check(t *testing.T) {
	if w.kind == slackly {
		for _, p := range w.processes {
			w.granted = max(w.granted, int64(p.opts.Slack*float64(w.limits[0].Burst)))
		}
	}
	if w.kind == stepping { // admissions of the source count when the answer came
		w.granted += 1 + int64(float64(w.settled.Rate)*(w.timeout.Seconds()/w.settled.Period.Seconds()))
	}
	w.excess = -int64(w.settled.Burst)
	for key, e := range w.envelopes {
		worst := e.Worst(w.settled)
		w.excess = max(w.excess, worst.Excess)
		if worst.Excess > w.granted {
			t.Errorf("%s: %v, %+d may be", key, worst, w.granted)
		}
	}
	for _, p := range w.processes {
		for i, l := range p.all {
			s := l.Stats()
			missing := s.Leased - l.spent.Load() - s.Returned - s.Expired - s.Held
			if missing < 0 || missing > l.left.Load() {
				t.Errorf("run %d of a process leased %d tokens, spent %d, returned %d, let %d expire and holds %d: %d are missing, and callers without an answer had asked for %d",
					i, s.Leased, l.spent.Load(), s.Returned, s.Expired, s.Held, missing, l.left.Load())
			}
			if s.Held != 0 {
				t.Errorf("run %d of a process holds %d tokens in the end", i, s.Held)
			}
		}
	}
}
