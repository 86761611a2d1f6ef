package hybrid_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// waits runs Wait in a goroutine and returns where its end is told.
func waits(ctx context.Context, l *hybrid.Limiter, key string, n int) <-chan error {
	done := make(chan error, 1)
	go func() { done <- l.WaitN(ctx, key, n) }()
	synctest.Wait()
	return done
}

func TestCOST02_WaitingForMoreThanTheBurst(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(20), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 20)
		start := time.Now()
		for _, n := range []int{200, 21} {
			if err := l.WaitN(context.Background(), "k", n); !errors.Is(err, hybrid.ErrExceedsBurst) || time.Since(start) != 0 {
				t.Errorf("%d: %v after %v, want ErrExceedsBurst at once", n, err, time.Since(start))
			}
		}
		if err := l.WaitN(context.Background(), "k", 20); err != nil || time.Since(start) < time.Second || time.Since(start) > 1010*time.Millisecond {
			t.Errorf("the burst: %v after %v, want nil after 1s", err, time.Since(start))
		}
	})
}

func TestWAIT02_ADeadlineThatIsTooCloseFailsAtOnce(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 1)
		start := time.Now()
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := l.Wait(short, "k"); !errors.Is(err, hybrid.ErrWouldExceedDeadline) || time.Since(start) > 5*time.Millisecond {
			t.Errorf("%v after %v, want ErrWouldExceedDeadline at once", err, time.Since(start))
		}
		long, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := l.Wait(long, "k"); err != nil || time.Since(start) > 1010*time.Millisecond || time.Since(start) < 990*time.Millisecond {
			t.Errorf("%v after %v, want nil after 1s", err, time.Since(start))
		}
	})
}

func TestWAIT03_AContextThatHasEndedTakesNothing(t *testing.T) {
	inEachMode(t, hybrid.PerHour(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Wait(ended, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		if r, _, err := l.Reserve(ended, "k", 1); !errors.Is(err, context.Canceled) || r != nil {
			t.Errorf("Reserve: %v, want Canceled", err)
		}
		allowed(t, l, "k", 1)
	})
}

func TestWAIT04_WaitersAreServedInTheOrderInWhichTheyCame(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(5).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := l.Wait(t.Context(), "k"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				if took, want := time.Since(start), time.Duration(i)*200*time.Millisecond; took < want || took > want+want/50+10*time.Millisecond {
					t.Errorf("number %d is served after %v, want %v", i, took, want)
				}
			})
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("served in the order %v", order)
			}
		}
		if calls := l.Stats().Calls; calls > 4*20 {
			t.Errorf("%d calls for 20 waiters", calls)
		}
	})
}

// A large cost is served before the small ones that come after it, whether these wait or not.
func TestALargeCostIsNotStarved(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(100).WithBurst(50), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		if n := admitted(t, l, "k", 50); n < 45 {
			t.Fatalf("admitted %d", n)
		}
		start := time.Now()
		large := waits(t.Context(), l, "k", 50)
		small := waits(t.Context(), l, "k", 1)
		for time.Since(start) < 400*time.Millisecond {
			if r, err := l.Allow(t.Context(), "k"); err != nil || r.Allowed || r.RetryAfter <= 0 {
				t.Fatalf("%+v, %v after %v: overtakes", r, err, time.Since(start))
			}
			time.Sleep(time.Millisecond)
		}
		select {
		case <-small:
			t.Fatal("the small one is served first")
		default:
		}
		if err := <-large; err != nil || time.Since(start) > 700*time.Millisecond {
			t.Errorf("%v after %v, want nil after half a second", err, time.Since(start))
		}
		if err := <-small; err != nil {
			t.Error(err)
		}
		time.Sleep(200 * time.Millisecond)
		allowed(t, l, "k", 1)
	})
}

// A crowd that waits makes few calls: all are asked for together.
func TestManyWaitersShareCalls(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(10_000).WithBurst(5000), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for l2, _ := l.AllowN(t.Context(), "k", 1000); l2.Allowed; l2, _ = l.AllowN(t.Context(), "k", 1000) {
		}
		b.slow(time.Millisecond)
		start, before := time.Now(), l.Stats().Calls
		var wg sync.WaitGroup
		for range 3000 {
			wg.Go(func() {
				if err := l.Wait(t.Context(), "k"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		took := time.Since(start)
		most := int64(60)
		if exact { // without a hold-off it asks again when the next tokens are due
			most = took.Milliseconds() + 10
		}
		if calls := l.Stats().Calls - before; calls > most || took > 500*time.Millisecond {
			t.Errorf("%d calls for 3000 waiters in %v", calls, took)
		}
	})
}

func TestWaitersLeave(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(10).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 1)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		first := waits(ctx, l, "k", 1)
		second := waits(t.Context(), l, "k", 1)
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) || time.Since(start) > time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := <-second; err != nil || time.Since(start) > 110*time.Millisecond {
			t.Errorf("%v after %v: the place of who left is not free", err, time.Since(start))
		}
		// When all have left, nobody is held up by them.
		ctx, cancel = context.WithCancel(t.Context())
		third := waits(ctx, l, "k", 1)
		cancel()
		<-third
		time.Sleep(250 * time.Millisecond)
		allowed(t, l, "k", 1)
	})
}

// What Redis paid for a waiter who has just left goes back.
func TestAWaiterWhoLeavesWhileRedisDecidesLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(10), hybrid.Options{})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 10)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		done := waits(ctx, l, "k", 5)
		time.Sleep(30*time.Minute - time.Second)
		b.always(leasetest.Fault{Reply: 80 * time.Millisecond})
		time.Sleep(time.Second + 40*time.Millisecond) // decided, and on its way
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b.always(leasetest.Fault{})
		time.Sleep(10 * time.Second) // the janitor gives it back
		synctest.Wait()
		if r, err := l.AllowN(t.Context(), "k", 5); err != nil || !r.Allowed {
			t.Errorf("%+v, %v: the tokens of who left are lost", r, err)
		}
	})
}

func TestWaitErrors(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(2), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for want, f := range map[error]func() error{
			hybrid.ErrInvalidKey:    func() error { return l.Wait(t.Context(), "") },
			hybrid.ErrInvalidTokens: func() error { return l.WaitN(t.Context(), "k", -1) },
			hybrid.ErrExceedsBurst:  func() error { return l.WaitN(t.Context(), "k", 3) },
		} {
			if err := f(); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		if err := l.WaitN(t.Context(), "new", 0); err != nil || l.Stats().Keys > 1 {
			t.Errorf("waiting for nothing: %v, %d keys", err, l.Stats().Keys)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newBank(), hybrid.Blocked(), hybrid.Options{})
		if err := l.Wait(t.Context(), "k"); !errors.Is(err, hybrid.ErrWouldExceedDeadline) {
			t.Errorf("blocked: %v", err)
		}
		if err := l.SetLimit(hybrid.Unlimited()); err != nil {
			t.Fatal(err)
		}
		if err := l.Wait(t.Context(), "k"); err != nil {
			t.Errorf("unlimited: %v", err)
		}
		closeLimiter(t, l)
		if err := l.Wait(t.Context(), "k"); !errors.Is(err, hybrid.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// Those who wait are told when the limiter is closed, when the limit becomes one that never admits, or any.
func TestWaitersAreWoken(t *testing.T) {
	for name, do := range map[string]struct {
		what func(*hybrid.Limiter) error
		want error
	}{
		"closed":    {func(l *hybrid.Limiter) error { return l.Close(context.Background()) }, hybrid.ErrClosed},
		"blocked":   {func(l *hybrid.Limiter) error { return l.SetLimit(hybrid.Blocked()) }, hybrid.ErrWouldExceedDeadline},
		"unlimited": {func(l *hybrid.Limiter) error { return l.SetLimit(hybrid.Unlimited()) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, hybrid.PerSecond(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
				allowed(t, l, "k", 1)
				var all []<-chan error
				for range 10 {
					all = append(all, waits(t.Context(), l, "k", 1))
				}
				start := time.Now()
				if err := do.what(l); err != nil {
					t.Error(err)
				}
				for _, done := range all {
					if err := <-done; !errors.Is(err, do.want) || time.Since(start) > 2*time.Second {
						t.Errorf("%v after %v, want %v", err, time.Since(start), do.want)
					}
				}
			})
		})
	}
}

// Without Redis who waits is served by the policy.
func TestWaitWithoutRedis(t *testing.T) {
	for policy, want := range map[hybrid.FailurePolicy]struct {
		err  error
		took time.Duration
	}{
		hybrid.FailOpen:   {nil, 0},
		hybrid.FailClosed: {hybrid.ErrUnavailable, 0},
		hybrid.FailLocal:  {nil, 4 * time.Second}, // four after the burst of one, one a second
	} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l, err := hybrid.NewFrom(b, hybrid.PerSecond(1), hybrid.Options{OnFailure: policy})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(t.Context())
				b.Down(errors.New("away"))
				start := time.Now()
				for range 5 {
					if err := l.Wait(t.Context(), "k"); !errors.Is(err, want.err) {
						t.Errorf("%v, want %v", err, want.err)
					}
				}
				if took := time.Since(start); took < want.took || took > want.took+want.took/2+time.Second {
					t.Errorf("took %v, want %v", took, want.took)
				}
			})
		})
	}
}

// Random waiters of random costs and patience: each is served once or fails for a reason, in order, the bound holds, and
// what the waiters cost is about what the rate brings.
func TestWaitHistories(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1000).WithBurst(100), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		var mu sync.Mutex
		var env leasetest.Envelope
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 400 {
			n := 1 + (i*i)%37
			patience := time.Duration(i%13) * 150 * time.Millisecond
			wg.Go(func() {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				switch {
				case i%13 == 0:
				case i%2 == 0:
					ctx, cancel = context.WithTimeout(ctx, patience)
				default:
					ctx, cancel = context.WithCancel(ctx)
					time.AfterFunc(patience, cancel)
				}
				defer cancel()
				err := l.WaitN(ctx, "k", n)
				switch {
				case err == nil:
					mu.Lock()
					env.Add(time.Since(start).Microseconds(), int64(n))
					mu.Unlock()
				case errors.Is(err, hybrid.ErrWouldExceedDeadline), errors.Is(err, ctx.Err()) && ctx.Err() != nil:
				default:
					t.Error(err)
				}
			})
			time.Sleep(2 * time.Millisecond)
		}
		wg.Wait()
		took := time.Since(start)
		// Told a moment after they are taken.
		if w := env.Worst(hybrid.PerSecond(1000).WithBurst(100)); w.Excess > 40 {
			t.Errorf("%d above the bound", w.Excess)
		}
		if rate := float64(env.Admitted()) / took.Seconds(); rate < 800 && took > time.Second {
			t.Errorf("%.0f tokens per second in %v", rate, took)
		}
	})
}

// The first leaves: the others do not go on waiting for its time.
func TestWhoWaitsBehindOneThatLeavesIsServedInTime(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1).WithBurst(100), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for ask(t, l, "k", 1).Allowed {
		}
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		big := waits(ctx, l, "k", 100)
		small := waits(t.Context(), l, "k", 1)
		cancel()
		<-big
		time.Sleep(10 * time.Second)
		r := ask(t, l, "k", 1)
		t.Logf("Allow 10s later: %+v", r)
		<-small
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("small served after %v", took)
		}
	})
}

// A raised limit, a reset and a refund reach those who wait within a second.
func TestWaitersHearOfNewTokens(t *testing.T) {
	for name, do := range map[string]func(l *hybrid.Limiter) error{
		"raise":     func(l *hybrid.Limiter) error { return l.SetLimit(hybrid.PerSecond(1000)) },
		"unlimited": func(l *hybrid.Limiter) error { return l.SetLimit(hybrid.Unlimited()) },
		"reset":     func(l *hybrid.Limiter) error { return l.Reset(context.Background(), "k") },
		"refund":    func(l *hybrid.Limiter) error { return l.Refund(context.Background(), "k", 5) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, hybrid.PerDay(1).WithBurst(5), hybrid.Options{})
				defer closeLimiter(t, l)
				allowed(t, l, "k", 5)
				start := time.Now()
				done := waits(t.Context(), l, "k", 1)
				if err := do(l); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				r := ask(t, l, "k", 1)
				t.Logf("%s: Allow 5s after: %+v (level %d)", name, r, b.level("k", hybrid.PerDay(1).WithBurst(5)))
				<-done
				if took := time.Since(start); took > 6*time.Second {
					t.Errorf("waiter is served after %v", took)
				}
			})
		})
	}
}

// A limit that is lowered fails only those who wait for more than its burst.
func TestALoweredLimitFailsOnlyTheLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerSecond(100), hybrid.Options{})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 100)
		big := waits(t.Context(), l, "k", 50)
		small := waits(t.Context(), l, "k", 1)
		if err := l.SetLimit(hybrid.PerSecond(10)); err != nil {
			t.Fatal(err)
		}
		t.Logf("big %v", <-big)
		if err := <-small; err != nil {
			t.Errorf("small: %v", err)
		}
	})
}

// The order is that of arrival, also while the first call is out.
func TestWAIT04_WaitersAreInOrderWhenRedisIsFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerSecond(5).WithBurst(1), hybrid.Options{})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 1)
		time.Sleep(100 * time.Millisecond) // past the refusal, if any
		b.slow(50 * time.Millisecond)
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if err := l.Wait(t.Context(), "k"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait()
			time.Sleep(20 * time.Millisecond)
		}
		wg.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("order %v", order)
		}
	})
}

// The next attempt is made all the same.
func TestASourceThatEndsItsGoroutineHoldsUpNoWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerSecond(1), hybrid.Options{})
		defer l.Close(context.Background())
		allowed(t, l, "k", 1)
		w := waits(t.Context(), l, "k", 1)
		var once sync.Once
		b.hook(func(lease.Request) { once.Do(runtime.Goexit) })
		time.Sleep(time.Minute)
		select {
		case err := <-w:
			t.Log(err)
		default:
			t.Error("hangs")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			t.Log("another:", l.Wait(ctx, "k"))
		}
	})
}

// No lease is kept for later callers when somebody has to wait.
func TestNobodyOvertakesAWaiter(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1).WithBurst(50), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for range 10 {
			allowed(t, l, "k", 1)
		}
		w := waits(t.Context(), l, "k", 50)
		n := 0
		for range 50 {
			if ask(t, l, "k", 1).Allowed {
				n++
			}
		}
		if n > 0 {
			t.Errorf("%d overtake", n)
		}
		<-w
	})
}

// The tokens for which others wait take longer than a time.Duration can tell: whoever comes then is told a long time.
func TestAQueueOfCenturies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 2_500_000 // 285 years
		l := newLimiter(t, newBank(), hybrid.PerHour(1).WithBurst(burst), hybrid.Options{Exact: true})
		defer closeLimiter(t, l)
		allowed(t, l, "k", burst)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := waits(ctx, l, "k", burst), waits(ctx, l, "k", burst)
		start := time.Now()
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := l.Wait(short, "k"); !errors.Is(err, hybrid.ErrWouldExceedDeadline) || time.Since(start) != 0 {
			t.Errorf("%v after %v, want ErrWouldExceedDeadline at once", err, time.Since(start))
		}
		if r := denied(t, l, "k", 1); r.RetryAfter <= burst*time.Hour || r.RetryAfter == limit.Never || r.ResetAfter < r.RetryAfter {
			t.Errorf("%+v, want to wait for longer than the first", r)
		}
		cancel()
		<-first
		<-second
	})
}
