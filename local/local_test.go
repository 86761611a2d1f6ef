package local_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ limiter = (*local.TokenBucket)(nil)
	_ limiter = (*local.FixedWindow)(nil)
	_ limiter = (*local.SlidingLog)(nil)
	_ limiter = (*local.SlidingCounter)(nil)
)

// limiter is what every type of the package is.
type limiter interface {
	limit.Limiter
	limit.Describer
	Reset(ctx context.Context, key string) error
	SetLimit(lim limit.Limit) error
	Len() int
}

// mode is one of the types, so that a scenario can run on each.
type mode struct {
	name string
	make func(limit.Limit, local.Options) (limiter, error)
}

func modeOf[L limiter](name string, make func(limit.Limit, local.Options) (L, error)) mode {
	return mode{name, func(lim limit.Limit, opts local.Options) (limiter, error) {
		l, err := make(lim, opts)
		if err != nil {
			return nil, err
		}
		return l, nil
	}}
}

var (
	tokenBucket    = modeOf("token bucket", local.NewTokenBucket)
	fixedWindow    = modeOf("fixed window", local.NewFixedWindow)
	slidingLog     = modeOf("sliding log", local.NewSlidingLog)
	slidingCounter = modeOf("sliding counter", local.NewSlidingCounter)

	windows  = []mode{fixedWindow, slidingLog, slidingCounter}
	allModes = append([]mode{tokenBucket}, windows...)
)

// each runs a scenario as a subtest on each mode.
func each(t *testing.T, modes []mode, scenario func(t *testing.T, m mode)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { scenario(t, m) })
	}
}

// origin is the moment 0 of all scenarios, a multiple of all their windows.
var origin = time.Unix(1_800_000_000, 0)

// seconds is exact to the microsecond.
func seconds(s float64) time.Duration {
	return time.Duration(math.Round(s*1e6)) * time.Microsecond
}

// rig is a limiter whose clock the test sets.
type rig struct {
	limiter
	t *testing.T

	mu  sync.Mutex // guards now
	now time.Time
}

func start(t *testing.T, m mode, lim limit.Limit) *rig {
	t.Helper()
	return startWith(t, m, lim, local.Options{})
}

func startWith(t *testing.T, m mode, lim limit.Limit, opts local.Options) *rig {
	t.Helper()
	r := &rig{t: t, now: origin}
	opts.Now = func() time.Time {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.now
	}
	l, err := m.make(lim, opts)
	if err != nil {
		t.Fatalf("%s %v: %v", m.name, lim, err)
	}
	r.limiter = l
	return r
}

// at sets the clock to s seconds after the origin.
func (r *rig) at(s float64) *rig {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = origin.Add(seconds(s))
	return r
}

// pass moves the clock.
func (r *rig) pass(d time.Duration) *rig {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
	return r
}

// ask is AllowN for one key; it must decide, and its result must make sense.
func (r *rig) ask(n int) limit.Result { r.t.Helper(); return r.askKey("k", n) }

func (r *rig) askKey(key string, n int) limit.Result {
	r.t.Helper()
	got, err := r.AllowN(context.Background(), key, n)
	if err != nil {
		r.t.Fatalf("AllowN(%d): %v", n, err)
	}
	if got.Origin != limit.Local {
		r.t.Errorf("AllowN(%d): origin %v, want local", n, got.Origin)
	}
	if got.Allowed != (got.RetryAfter == 0) || got.RetryAfter < 0 || got.ResetAfter < 0 {
		r.t.Errorf("AllowN(%d): allowed %v, RetryAfter %v, ResetAfter %v do not agree", n, got.Allowed, got.RetryAfter, got.ResetAfter)
	}
	if lim := r.LimitOf(key); got.Remaining < 0 || got.Remaining > lim.Burst && lim != limit.Unlimited() {
		r.t.Errorf("AllowN(%d): remaining %d, want 0 to %d", n, got.Remaining, lim.Burst)
	}
	return got
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
func (r *rig) fails(key string, n int, want error) {
	r.t.Helper()
	got, err := r.AllowN(context.Background(), key, n)
	if !errors.Is(err, want) || got != (limit.Result{}) {
		r.t.Errorf("AllowN(%d) = %+v, %v; want the zero Result, %v", n, got, err, want)
	}
}

func per(rate int, period float64) limit.Limit {
	return limit.Limit{Rate: rate, Period: seconds(period), Burst: rate}
}

func TestFixedWindowSequence(t *testing.T) {
	start(t, fixedWindow, per(5, 60)).run([]step{
		{0.2, 1, true, 4, 0},
		{0.4, 1, true, 3, 0},
		{0.9, 1, true, 2, 0},
		{58.6, 1, true, 1, 0},
		{59.8, 1, true, 0, 0},
		{59.9, 1, false, 0, 0.1},
		{60.1, 1, true, 4, 0},
		{60.4, 1, true, 3, 0},
		{60.7, 1, true, 2, 0},
		{61.2, 1, true, 1, 0},
	})
}

func TestSlidingLogSequence(t *testing.T) {
	start(t, slidingLog, per(5, 60)).run([]step{
		{0.5, 1, true, 4, 0},
		{2, 1, true, 3, 0},
		{55, 1, true, 2, 0},
		{58.5, 1, true, 1, 0},
		{59, 1, true, 0, 0},
		{60.2, 1, false, 0, 0.3},
		{62, 1, true, 1, 0},
	})
}

func TestTokenBucketSequence(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(2).WithBurst(10))
	var got strings.Builder
	for i := range 30 {
		if r.at(0.2 * float64(i)).ask(1).Allowed {
			got.WriteString("y")
		} else {
			got.WriteString("n")
		}
	}
	const want = "yyyyyyyyyyyyyyyy" + "nnyny" + "nnyny" + "nnyn"
	if got.String() != want {
		t.Errorf("30 requests, one each 0.2 s:\n got %s\nwant %s", got.String(), want)
	}
}

func TestSlidingWindowsSequence(t *testing.T) {
	for _, tt := range []struct {
		mode mode
		want string
	}{
		{slidingLog, "yyyyyyyyyynnyyy"},
		{slidingCounter, "yyyyyyyyyynnnny"},
	} {
		r := start(t, tt.mode, per(10, 60))
		var got strings.Builder
		for i := range 15 {
			if r.at(5 * float64(i)).ask(1).Allowed {
				got.WriteString("y")
			} else {
				got.WriteString("n")
			}
		}
		if got.String() != tt.want {
			t.Errorf("%s, 15 requests, one each 5 s:\n got %s\nwant %s", tt.mode.name, got.String(), tt.want)
		}
	}
}

func TestResetAfter(t *testing.T) {
	for _, tt := range []struct {
		mode mode
		want [5]float64 // a peek at 10 s, then 3 of 3 at 10 s, a denial and a peek at 20 s, a peek at 65 s
	}{
		{tokenBucket, [5]float64{0, 0, 50, 0, 0}},
		{fixedWindow, [5]float64{50, 50, 40, 40, 55}},
		{slidingLog, [5]float64{0, 60, 50, 50, 5}},
		{slidingCounter, [5]float64{0, 110, 100, 100, 55}},
	} {
		r := start(t, tt.mode, per(3, 60))
		for i, s := range []struct {
			at float64
			n  int
		}{{10, 0}, {10, 3}, {20, 3}, {20, 0}, {65, 0}} {
			if got, want := r.at(s.at).ask(s.n).ResetAfter, seconds(tt.want[i]); got != want {
				t.Errorf("%s, n=%d at %v s: ResetAfter %v, want %v", tt.mode.name, s.n, s.at, got, want)
			}
		}
	}
}

func TestSlidingCounterUnits(t *testing.T) {
	// Below a second the position in the window counts in microseconds, from a second on in milliseconds; a wait is
	// exact to the microsecond all the same.
	start(t, slidingCounter, per(4, 0.01)).run([]step{
		{0, 4, true, 0, 0},
		{0.0125, 1, true, 0, 0},
		{0.0125, 1, false, 0, 0.0025},
	})
	start(t, slidingCounter, per(1000, 1)).run([]step{
		{0, 1000, true, 0, 0},
		{1.0005, 1, false, 0, 0.0005},
		{1.000999, 1, false, 0, 0.000001},
		{1.001, 1, true, 0, 0},
	})
}

func TestOptions(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		if _, err := m.make(limit.PerSecond(1), local.Options{MaxKeys: -1}); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("MaxKeys -1: %v, want ErrInvalid", err)
		}
		r := start(t, m, limit.PerSecond(1))
		for i := range 65537 {
			r.askKey(strconv.Itoa(i), 1)
		}
		if got := r.Len(); got != 65536 {
			t.Errorf("Len %d by default, want 65536", got)
		}
	})
}

func TestDefaultClock(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		synctest.Test(t, func(t *testing.T) {
			l, err := m.make(limit.Every(time.Minute), local.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx := context.Background()
			if got, err := l.Allow(ctx, "k"); !got.Allowed || err != nil {
				t.Errorf("first: %+v, %v; want allowed", got, err)
			}
			got, err := l.Allow(ctx, "k")
			if got.Allowed || err != nil {
				t.Errorf("second: %+v, %v; want denied", got, err)
			}
			<-time.After(got.RetryAfter)
			if got, err := l.Allow(ctx, "k"); !got.Allowed || err != nil {
				t.Errorf("after RetryAfter: %+v, %v; want allowed", got, err)
			}
		})
	})
}

func TestContextIsNotLookedAt(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if got, err := start(t, m, limit.PerSecond(1)).Allow(ctx, "k"); !got.Allowed || err != nil {
			t.Errorf("with a cancelled context: %+v, %v; want allowed", got, err)
		}
	})
}

func TestReset(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(3, 60))
		ctx := context.Background()
		r.ask(3)
		r.askKey("other", 3)
		if err := r.Reset(ctx, "k"); err != nil {
			t.Errorf("Reset: %v", err)
		}
		if err := r.Reset(ctx, "unknown"); err != nil {
			t.Errorf("Reset of an unknown key: %v", err)
		}
		if err := r.Reset(ctx, ""); !errors.Is(err, limit.ErrInvalidKey) {
			t.Errorf("Reset of an empty key: %v, want ErrInvalidKey", err)
		}
		if got := r.Len(); got != 1 {
			t.Errorf("Len %d, want 1", got)
		}
		if got := r.ask(1); !got.Allowed || got.Remaining != 2 {
			t.Errorf("after Reset: %+v, want allowed, remaining 2", got)
		}
		if got := r.askKey("other", 1); got.Allowed {
			t.Errorf("the other key: %+v, want denied", got)
		}
	})
}

func TestHammer(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := startWith(t, m, per(5, 1), local.Options{MaxKeys: 4})
		ctx := context.Background()
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 500 {
					key := string(rune('a' + (g+i)%6))
					switch i % 50 {
					case 10:
						if err := r.SetLimit(per(1+i%7, 1)); err != nil {
							t.Errorf("SetLimit: %v", err)
						}
					case 20:
						if err := r.Reset(ctx, key); err != nil {
							t.Errorf("Reset: %v", err)
						}
					case 30:
						r.pass(time.Duration(i-200) * time.Millisecond)
					default:
						if _, err := r.AllowN(ctx, key, i%2); err != nil {
							t.Errorf("AllowN: %v", err)
						}
					}
					if got := r.Len(); got > 4 {
						t.Errorf("Len %d, want at most 4", got)
					}
				}
			})
		}
		wg.Wait()
	})
}
