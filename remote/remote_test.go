package remote_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis writes every failed dial to stderr
	goleak.VerifyTestMain(redistest.M{M: m})
}

var (
	_ remote.Client = (*redis.Client)(nil)
	_ remote.Client = (*redis.ClusterClient)(nil)
	_ remote.Client = (*redis.Ring)(nil)
	_ remote.Client = (redis.UniversalClient)(nil)

	_ limiter = (*remote.TokenBucket)(nil)
	_ limiter = (*remote.GCRA)(nil)
	_ limiter = (*remote.FixedWindow)(nil)
	_ limiter = (*remote.SlidingLog)(nil)
	_ limiter = (*remote.SlidingCounter)(nil)
)

var ctx = context.Background()

// limiter is what every mode of the package is.
type limiter interface {
	limit.Limiter
	limit.Describer
	Reset(ctx context.Context, key string) error
}

// mode is one of the algorithms, so that a scenario can run on each.
type mode struct {
	name   string
	suffix string // of its keys in Redis; after a colon comes the period in milliseconds
	make   func(remote.Client, limit.Limit, remote.Options) (limiter, error)
}

func modeOf[L limiter](name, suffix string, make func(remote.Client, limit.Limit, remote.Options) (L, error)) mode {
	return mode{name, suffix, func(rdb remote.Client, lim limit.Limit, opts remote.Options) (limiter, error) {
		l, err := make(rdb, lim, opts)
		if err != nil {
			return nil, err
		}
		return l, nil
	}}
}

var (
	tokenBucket    = modeOf("token bucket", "tb1", remote.NewTokenBucket)
	gcra           = modeOf("gcra", "gc1", remote.NewGCRA)
	fixedWindow    = modeOf("fixed window", "fw1:", remote.NewFixedWindow)
	slidingLog     = modeOf("sliding log", "sl1:", remote.NewSlidingLog)
	slidingCounter = modeOf("sliding counter", "sc1:", remote.NewSlidingCounter)

	buckets  = []mode{tokenBucket, gcra}
	windows  = []mode{fixedWindow, slidingLog, slidingCounter}
	allModes = append(append([]mode{}, buckets...), windows...)
)

// patience is the Timeout of tests that are not about time-outs: a busy machine must not fail them.
const patience = 20 * time.Second

// origin is the moment 0 of all scenarios, a multiple of all their windows.
var origin = time.Unix(1_800_000_000, 0)

// seconds is exact to the microsecond.
func seconds(s float64) time.Duration {
	return time.Duration(math.Round(s*1e6)) * time.Microsecond
}

func per(rate int, period float64) limit.Limit {
	return limit.Limit{Rate: rate, Period: seconds(period), Burst: rate}
}

// rig is a limiter on a Redis whose clock the test sets.
type rig struct {
	limiter
	t    *testing.T
	b    *redistest.Backend
	mode mode
	key  string // that run, ask and the like use
}

// each runs a scenario on each mode, on miniredis and on a real server, each time with an empty Redis at the origin.
func each(t *testing.T, modes []mode, lim limit.Limit, scenario func(r *rig)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
				t.Parallel()
				scenario(start(t, b, m, lim))
			})
		})
	}
}

// on is each with one mode.
func on(t *testing.T, m mode, lim limit.Limit, scenario func(r *rig)) {
	t.Helper()
	each(t, []mode{m}, lim, scenario)
}

func start(t *testing.T, b *redistest.Backend, m mode, lim limit.Limit) *rig {
	t.Helper()
	return startWith(t, b, b.Client, m, lim, remote.Options{Timeout: patience})
}

func startWith(t *testing.T, b *redistest.Backend, rdb remote.Client, m mode, lim limit.Limit, opts remote.Options) *rig {
	t.Helper()
	l, err := m.make(rdb, lim, opts)
	if err != nil {
		t.Fatalf("%s %v: %v", m.name, lim, err)
	}
	return &rig{limiter: l, t: t, b: b, mode: m, key: "k"}
}

// with is a further limiter of the same mode on the same Redis with another limit.
func (r *rig) with(lim limit.Limit) *rig {
	r.t.Helper()
	s := start(r.t, r.b, r.mode, lim)
	s.key = r.key
	return s
}

// on is the same limiter for another key.
func (r *rig) on(key string) *rig {
	s := *r
	s.key = key
	return &s
}

// real reports whether this is a real Redis.
func (r *rig) real() bool { return r.b.Name == "redis" }

// many is n, and a fifth of it on miniredis: there a script takes a millisecond under the race detector.
func (r *rig) many(n int) int {
	if r.real() {
		return n
	}
	return n / 5
}

// stored is the name of the key in Redis.
func (r *rig) stored() string { return stored(r.mode, r.LimitOf(r.key), r.key) }

func stored(m mode, lim limit.Limit, key string) string {
	name := "hybrid:{" + key + "}" + m.suffix
	if strings.HasSuffix(name, ":") {
		name += strconv.FormatInt(lim.Period.Milliseconds(), 10)
	}
	return name
}

// at sets the clock to s seconds after the origin.
func (r *rig) at(s float64) *rig {
	r.t.Helper()
	return r.set(origin.Add(seconds(s)))
}

// pass moves the clock.
func (r *rig) pass(d time.Duration) *rig {
	r.t.Helper()
	return r.set(r.b.Now().Add(d))
}

func (r *rig) set(to time.Time) *rig {
	r.t.Helper()
	back := r.b.Now().Sub(to)
	r.b.Set(to)
	if back > 0 && !r.real() {
		// Redis keeps the time at which a key expires, miniredis the time until then.
		for _, key := range r.b.Keys() {
			if d, ok := r.b.PTTL(key); ok {
				r.b.Client.PExpire(ctx, key, (d + back + 2*time.Millisecond).Truncate(time.Millisecond))
			}
		}
	}
	return r
}

// ask is AllowN; it must decide, and its result must make sense.
func (r *rig) ask(n int) limit.Result {
	r.t.Helper()
	got, err := r.AllowN(ctx, r.key, n)
	if err != nil {
		r.t.Fatalf("AllowN(%d): %v", n, err)
	}
	if got.Origin != limit.Remote {
		r.t.Errorf("AllowN(%d): origin %v, want remote", n, got.Origin)
	}
	if got.Allowed != (got.RetryAfter == 0) || got.RetryAfter < 0 || got.ResetAfter < 0 {
		r.t.Errorf("AllowN(%d): allowed %v, RetryAfter %v, ResetAfter %v do not agree", n, got.Allowed, got.RetryAfter, got.ResetAfter)
	}
	if burst := r.LimitOf(r.key).Burst; got.Remaining < 0 || got.Remaining > burst {
		r.t.Errorf("AllowN(%d): remaining %d, want 0 to %d", n, got.Remaining, burst)
	}
	return got
}

// left is what a peek says remains.
func (r *rig) left() int {
	r.t.Helper()
	return r.ask(0).Remaining
}

// admitted is how many of the given number of single requests pass.
func (r *rig) admitted(requests int) int {
	r.t.Helper()
	count := 0
	for range requests {
		if r.ask(1).Allowed {
			count++
		}
	}
	return count
}

// whatever is a wait that a step does not check.
const whatever = -1

// step is a request and what it gets.
type step struct {
	at        float64 // seconds after the origin
	n         int
	ok        bool
	remaining int
	retry     float64 // seconds
}

func (r *rig) run(steps []step) {
	r.t.Helper()
	for i, s := range steps {
		got := r.at(s.at).ask(s.n)
		if got.Allowed != s.ok || got.Remaining != s.remaining {
			r.t.Errorf("step %d, n=%d at %v s: allowed %v, remaining %d; want %v, %d", i+1, s.n, s.at, got.Allowed, got.Remaining, s.ok, s.remaining)
		}
		if s.retry != whatever && got.RetryAfter != seconds(s.retry) {
			r.t.Errorf("step %d, n=%d at %v s: RetryAfter %v, want %v", i+1, s.n, s.at, got.RetryAfter, seconds(s.retry))
		}
	}
}

// fails asks for n tokens, which must be the given error and the zero Result.
func (r *rig) fails(n int, want error) {
	r.t.Helper()
	got, err := r.AllowN(ctx, r.key, n)
	if !errors.Is(err, want) || got != (limit.Result{}) {
		r.t.Errorf("AllowN(%d) = %+v, %v; want the zero Result, %v", n, got, err, want)
	}
}

// ttl is the time to live of the key, which must exist and have one.
func (r *rig) ttl() time.Duration {
	r.t.Helper()
	d, ok := r.b.PTTL(r.stored())
	if !ok {
		r.t.Errorf("%s: no time to live, type %s", r.mode.name, r.b.Type(r.stored()))
	}
	return d
}

// retry asks for n tokens that are not there, and again a microsecond before RetryAfter is over and when it is.
func (r *rig) retry(n int) {
	r.t.Helper()
	got := r.ask(n)
	if got.Allowed {
		r.t.Fatalf("n=%d: %+v, want denied", n, got)
	}
	if early := r.pass(got.RetryAfter - time.Microsecond).ask(n); early.Allowed || early.RetryAfter != time.Microsecond {
		r.t.Errorf("n=%d, 1µs before RetryAfter %v: %+v, want denied for 1µs", n, got.RetryAfter, early)
	}
	if late := r.pass(time.Microsecond).ask(n); !late.Allowed {
		r.t.Errorf("n=%d at RetryAfter %v: %+v, want allowed", n, got.RetryAfter, late)
	}
}

// crowd runs calls of f in each of so many goroutines and returns how many were allowed.
func crowd(t *testing.T, goroutines, calls int, f func(i int) (limit.Result, error)) int {
	t.Helper()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for range calls {
				got, err := f(i)
				if err != nil {
					t.Error(err)
				} else if got.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(admitted.Load())
}

// unreachable is a client for what must not be sent: nobody listens there.
func unreachable() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
}
