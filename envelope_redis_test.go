package hybrid_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

var (
	historySeed  = flag.Uint64("histories.seed", 0, "replay the histories on real Redis from this seed; 0 is a new one")
	historyCount = flag.Int("histories.count", 50, "how many histories on real Redis; 12 of them with -short")
)

// Many short lives of one key, each with several limiters that have connections of their own to the same Redis, and
// proxies that lose, delay, repeat and reorder what they say. All admissions together must stay below the bound.
func TestEnvelopeOnRedis(t *testing.T) {
	seed, count := *historySeed, *historyCount
	if seed == 0 {
		seed = rand.Uint64()
	}
	if testing.Short() {
		count = min(count, 12)
	}
	srv := redistest.Start(t)
	histories := make([]*history, count)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 10) // mostly they wait
	for i := range histories {
		h := newHistory(t, srv.Addr(), seed, uint64(i))
		histories[i] = h
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			h.play(t)
		})
	}
	wg.Wait()

	worst, atEnds, allowed := math.Inf(-1), math.Inf(-1), 0.0
	var admitted, possible, calmAdmitted, calmPossible float64
	var calls, errs int64
	var admissionCount int
	for i, h := range histories {
		in := admissions(h.attempts)
		over := excess(in, h.limit)
		if over > 1e-6 {
			t.Errorf("history %d (%v): %.3f tokens above the bound\n  -histories.seed=%d -histories.count=%d", i, h, over, seed, count)
		}
		worst = max(worst, over/float64(h.limit.Burst))
		if at := excessAtEnds(in, h.limit); at > atEnds {
			atEnds = at
			allowed = longest(in).Seconds() * float64(h.limit.Rate) / h.limit.Period.Seconds()
		}
		got, best := float64(tokens(in)), ideal(h.attempts, h.limit)
		admitted, possible = admitted+got, possible+best
		admissionCount += len(in)
		calls, errs = calls+h.calls, errs+h.errs
		if h.calm {
			calmAdmitted, calmPossible = calmAdmitted+got, calmPossible+best
		}
	}
	t.Logf("seed %d: %d histories, %d admissions: admitted/ideal %.3f, without faults %.3f, worst excess %.4f of the burst with no allowance; "+
		"counted at the ends of calls %.1f tokens (allowance for the longest call %.1f); %.3f calls per admission, %d errors",
		seed, count, admissionCount, admitted/possible, calmAdmitted/calmPossible, worst, atEnds, allowed, float64(calls)/float64(admissionCount), errs)
	// With a fault every few calls most of what is missing are exact calls whose answer was lost.
	if ratio := admitted / possible; ratio < 0.4 {
		t.Errorf("all histories together admitted %.3f of the ideal, want at least 0.4", ratio)
	}
	if ratio := calmAdmitted / calmPossible; ratio < 0.7 {
		t.Errorf("those without faults together admitted %.3f of the ideal, want at least 0.7", ratio)
	}
}

// Limiters that do not share their buckets break the bound; if that is not found, nothing is.
func TestEnvelopeOnRedisFindsTwoBuckets(t *testing.T) {
	srv := redistest.Start(t)
	h := newHistory(t, srv.Addr(), 1, 0)
	h.limit = limit.Limit{Rate: 200, Period: time.Second, Burst: 100}
	h.apart = true
	h.play(t)
	if over := excess(admissions(h.attempts), h.limit); over < 50 {
		t.Errorf("two limiters with a bucket each are only %.1f tokens above the bound of one", over)
	}
}

// history is one life of one key.
type history struct {
	limit    limit.Limit
	key      string
	apart    bool // every limiter has a bucket of its own
	calm     bool // no faults
	parties  []*party
	duration time.Duration
	pulse    time.Duration // all are quiet for so long and then want everything; 0: each has bursts of its own

	attempts []attempt
	calls    int64
	errs     int64
}

// party is one limiter with its own way to Redis.
type party struct {
	rng   *rand.Rand
	opts  hybrid.Options
	exact bool // a remote.TokenBucket instead of a hybrid.Limiter
	pool  func(*redis.Options)
	calm  bool // no faults
	lives int  // it is given up and made again so many times
	proxy *redistest.Proxy
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func newHistory(t *testing.T, addr string, seed, i uint64) *history {
	rng := rand.New(rand.NewPCG(seed, i))
	h := &history{
		key:      fmt.Sprintf("history-%d", i),
		duration: time.Duration(600+rng.IntN(900)) * time.Millisecond,
	}
	rate := pick(rng, 500, 2000, 10000)
	lasts := time.Duration(pick(rng, 50, 150, 300, 500, 1000)) * time.Millisecond
	ttls := []time.Duration{0, 0, 10 * time.Millisecond, 100 * time.Millisecond, time.Minute}
	if i%3 > 0 {
		// Where leases could break the bound: the bucket is full, and they live long and lie idle.
		lasts = time.Duration(pick(rng, 100, 200)) * time.Millisecond
		ttls = []time.Duration{0, time.Minute}
	}
	burst := max(25, int(float64(rate)*lasts.Seconds()))
	lasts = time.Duration(burst) * time.Second / time.Duration(rate)
	if i%3 > 0 {
		// Only when the leases of the last pulse have ended, at the latest, is it full again.
		h.pulse = time.Duration((1+rng.Float64())*float64(lasts)) + 100*time.Millisecond
		h.duration = 5*h.pulse + h.pulse/5
	}
	h.limit = limit.Limit{Rate: rate, Period: time.Second, Burst: burst}
	h.calm = i%4 == 0
	for range 2 + rng.IntN(3) {
		p := &party{
			rng: rand.New(rand.NewPCG(rng.Uint64(), i)),
			opts: hybrid.Options{
				LeaseSize: pick(rng, 0, 0, 0, 1, 5, 20, 100, burst/4, burst/2, burst),
				LeaseTTL:  pick(rng, ttls...),
				MaxLeased: pick(rng, 0, 0, 0.5, 1),
				Refresh:   pick(rng, 0, 5*time.Millisecond, 50*time.Millisecond, lasts, lasts), // the last never gives back
				Exact:     rng.IntN(6) == 0,
				Timeout:   time.Duration(20+rng.IntN(60)) * time.Millisecond,
				MaxKeys:   pick(rng, 0, 0, 1), // 1: other keys push this one out
			},
			exact: rng.IntN(6) == 0,
			calm:  rng.IntN(5) == 0,
			lives: 1 + rng.IntN(3),
			proxy: redistest.NewProxy(t, addr),
		}
		p.calm = p.calm || h.calm
		if rng.IntN(2) == 0 {
			p.pool = func(o *redis.Options) { o.ContextTimeoutEnabled = true }
		} else {
			p.pool = func(o *redis.Options) { o.PoolSize, o.ReadTimeout = 40, 200*time.Millisecond }
		}
		h.parties = append(h.parties, p)
	}
	return h
}

func (h *history) String() string {
	var s strings.Builder
	s.WriteString(fmt.Sprintf("%v for %v, pulse %v", h.limit, h.duration, h.pulse))
	for _, p := range h.parties {
		kind := "leased"
		if p.exact {
			kind = "token bucket"
		}
		s.WriteString(fmt.Sprintf("; %s %+v", kind, p.opts))
	}
	return s.String()
}

// play runs the history in real time.
func (h *history) play(t *testing.T) {
	var mu sync.Mutex
	started := time.Now()
	end := started.Add(h.duration)
	var wg sync.WaitGroup
	for i, p := range h.parties {
		prefix := ""
		if h.apart {
			prefix = fmt.Sprint("apart-", i, ":")
		}
		wg.Go(func() {
			attempts, errs := p.live(t, h, prefix, started, end)
			mu.Lock()
			defer mu.Unlock()
			h.attempts = append(h.attempts, attempts...)
			h.errs += errs
			h.calls += p.proxy.Requests()
		})
	}
	wg.Wait()
	for _, p := range h.parties {
		p.proxy.Close()
	}
}

// live is the party's part of a history: its lives one after another, and its faults beside them. A limiter that is
// given up is not closed before the history is over, so that what it holds is lost as if it had crashed.
func (p *party) live(t *testing.T, h *history, prefix string, started, end time.Time) (all []attempt, errs int64) {
	var wg sync.WaitGroup
	if !p.calm && !h.apart {
		rng := rand.New(rand.NewPCG(p.rng.Uint64(), 0))
		lasts := time.Duration(h.limit.Burst) * h.limit.Period / time.Duration(h.limit.Rate)
		wg.Go(func() { disturb(p.proxy, rng, end, min(lasts/3, 400*time.Millisecond)) })
	}
	slice := time.Until(end) / time.Duration(p.lives)
	var closers []func()
	for life := range p.lives {
		until := end.Add(-slice * time.Duration(p.lives-1-life))
		rdb := redis.NewClient(clientOptions(p.proxy.Addr(), p.pool))
		take, closer := p.limiter(t, h, prefix, rdb)
		closers = append(closers, func() { closer(); rdb.Close() })
		var mu sync.Mutex
		var load sync.WaitGroup
		for range 3 {
			rng := rand.New(rand.NewPCG(p.rng.Uint64(), 0))
			load.Go(func() {
				var mine []attempt
				var failed int64
				switch {
				case take == nil:
				case h.pulse > 0:
					mine, failed = pulse(rng, take, started, until, h.pulse, h.limit.Burst)
				default:
					mine, failed = spend(rng, take, until, h.limit.Burst)
				}
				mu.Lock()
				defer mu.Unlock()
				all, errs = append(all, mine...), errs+failed
			})
		}
		load.Wait()
	}
	wg.Wait()
	for _, f := range closers {
		f()
	}
	return all, errs
}

type taker func(cost int) (limit.Result, error)

func (p *party) limiter(t *testing.T, h *history, prefix string, rdb *redis.Client) (taker, func()) {
	ctx := context.Background()
	if p.exact {
		b, err := remote.NewTokenBucket(rdb, h.limit, remote.Options{Prefix: prefix, Timeout: p.opts.Timeout})
		if err != nil {
			t.Error(err)
			return nil, func() {}
		}
		return func(n int) (limit.Result, error) { return b.AllowN(ctx, h.key, n) }, func() {}
	}
	opts := p.opts
	opts.Prefix = prefix
	opts.OnFailure = hybrid.FailClosed // the bound is about what Redis grants
	l, err := hybrid.New(rdb, h.limit, opts)
	if err != nil {
		t.Error(err)
		return nil, func() {}
	}
	take := func(n int) (limit.Result, error) { return l.AllowN(ctx, h.key, n) }
	if opts.MaxKeys == 1 {
		take = func(n int) (limit.Result, error) {
			r, err := l.AllowN(ctx, h.key, n)
			if n > 5 { // now and then, so that the key is forgotten and comes back
				_, _ = l.AllowN(ctx, h.key+"-other", 1)
			}
			return r, err
		}
	}
	return take, func() { l.Close(ctx) } // an error: the proxy may be at its worst
}

// pulse makes few requests, which bring leases that nobody uses while the bucket fills, and at every multiple of the
// pulse since the start as many as it can.
func pulse(rng *rand.Rand, take taker, started, until time.Time, every time.Duration, burst int) (all []attempt, errs int64) {
	request := func(cost int) attempt {
		a, _, err := try(func() (limit.Result, error) { return take(cost) }, cost)
		all = append(all, a)
		if err != nil {
			errs++
		}
		return a
	}
	for n := time.Duration(1); time.Now().Before(until); n++ {
		next := started.Add(n * every)
		if next.After(until) {
			next = until
		}
		for rng.IntN(2) > 0 && time.Now().Before(next) {
			if request(1).failed {
				request(1) // what the first one asked for may come later
			}
			pause(time.Duration(rng.Int64N(int64(every/2)+1)), next)
		}
		pause(time.Until(next), until)
		refused := 0
		for end := next.Add(30 * time.Millisecond); refused < 6 && time.Now().Before(end); {
			cost := max(1, burst/pick(rng, 10, 20, 50, 100))
			if refused > 3 {
				cost = 1 // what is left
			}
			if !request(cost).admitted {
				refused++
				pause(time.Duration(rng.IntN(2000))*time.Microsecond, end)
			}
		}
	}
	return all, errs
}

// spend makes requests in bursts and pauses until the time is over.
func spend(rng *rand.Rand, take taker, until time.Time, burst int) (all []attempt, errs int64) {
	for time.Now().Before(until) {
		if rng.IntN(3) == 0 {
			pause(time.Duration(rng.IntN(120))*time.Millisecond, until)
		}
		gap := time.Duration(rng.IntN(1500)) * time.Microsecond
		for range 1 + rng.IntN(100) {
			if !time.Now().Before(until) {
				break
			}
			cost := min(pick(rng, 1, 1, 1, 2, 5, 20), burst)
			a, _, err := try(func() (limit.Result, error) { return take(cost) }, cost)
			all = append(all, a)
			if err != nil {
				errs++
			}
			if err != nil || !a.admitted {
				pause(gap+time.Millisecond, until) // a flood would only take the processor from the others
			} else if gap > time.Millisecond {
				pause(gap, until)
			}
		}
	}
	return all, errs
}

// pause waits, but not beyond the time until.
func pause(d time.Duration, until time.Time) {
	<-time.After(min(d, time.Until(until)))
}

// disturb makes the proxy faulty in one way after another until the time is over; requests come up to late too late.
func disturb(proxy *redistest.Proxy, rng *rand.Rand, until time.Time, late time.Duration) {
	for time.Now().Before(until) {
		pause(time.Duration(5+rng.IntN(90))*time.Millisecond, until)
		n := 1 + rng.IntN(3)
		switch rng.IntN(8) {
		case 0:
			proxy.DropReplies(n)
		case 1:
			proxy.HangReplies(1)
		case 2:
			proxy.Duplicate(n)
		case 3, 4:
			proxy.LateRequests(n, time.Duration(rng.Int64N(int64(late))))
		case 5:
			proxy.Delay(time.Duration(rng.IntN(20)) * time.Millisecond)
		case 6:
			proxy.Delay(0)
		case 7:
			proxy.Cut()
		}
	}
	proxy.DropReplies(0)
	proxy.HangReplies(0)
	proxy.Duplicate(0)
	proxy.LateRequests(0, 0)
	proxy.Delay(0)
}

// clientOptions are those of a client that says nothing on its own account.
func clientOptions(addr string, more ...func(*redis.Options)) *redis.Options {
	o := &redis.Options{
		Addr:                     addr,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, f := range more {
		if f != nil {
			f(o)
		}
	}
	return o
}

// scripts is how many scripts the server has run since it was started.
func scripts(t *testing.T, rdb *redis.Client) (n int64) {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+).*?rejected_calls=(\d+),failed_calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		for i, sign := range []int64{0, 1, -1, -1} {
			if i > 0 {
				x, err := strconv.ParseInt(m[i], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				n += sign * x
			}
		}
	}
	return n
}
