package hybrid_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
)

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

// Nobody has paid for it.
func TestAReservationOfAnUnlimitedKeyGivesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.Unlimited(), hybrid.Options{Exact: true})
		defer closeLimiter(t, l)
		r := reserve(t, l, "k", 100)
		if err := l.SetLimit(hybrid.PerHour(100)); err != nil {
			t.Fatal(err)
		}
		n := admitted(t, l, "k", 150)
		r.Cancel(t.Context())
		settled()
		n += admitted(t, l, "k", 150)
		if n > 100 {
			t.Errorf("%d admitted of 100 an hour", n)
		}
	})
}

// Nobody has paid for it.
func TestAReservationThatFailOpenLetPassGivesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l, _ := hybrid.NewFrom(b, hybrid.PerHour(100), hybrid.Options{Exact: true, OnFailure: hybrid.FailOpen})
		defer l.Close(t.Context())
		n := admitted(t, l, "k", 100)
		time.Sleep(2 * time.Second)
		b.Down(errors.New("away"))
		r := reserve(t, l, "k", 100)
		b.Down(nil)
		l.Allow(t.Context(), "x")
		r.Cancel(t.Context())
		settled()
		time.Sleep(3 * time.Second)
		n += admitted(t, l, "k", 150)
		if n > 100 {
			t.Errorf("%d really used of 100 an hour", n)
		}
	})
}

// Close sends what is still to be given back.
func TestCloseGivesCancelledReservationsBack(t *testing.T) {
	for _, exact := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			lim := hybrid.PerHour(100)
			l := newLimiter(t, b, lim, hybrid.Options{Exact: exact})
			r := reserve(t, l, "k", 60)
			if err := r.Cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
			closeLimiter(t, l)
			if n := b.level("k", lim); n != 100 {
				t.Errorf("exact %v: %d in the bucket, want 100", exact, n)
			}
		})
	}
}

// And what is still to be charged.
func TestCloseChargesWhatIsOwed(t *testing.T) {
	for _, exact := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) { // a charge
			b := newBank()
			lim := hybrid.PerHour(100)
			l := newLimiter(t, b, lim, hybrid.Options{Exact: exact})
			r := reserve(t, l, "k", 60)
			if err := r.Settle(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
			closeLimiter(t, l)
			if n := b.level("k", lim); n != 0 {
				t.Errorf("exact %v: %d in the bucket, want 0", exact, n)
			}
		})
	}
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

// Refunds add up to no more than the burst.
func TestHugeRefundsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerHour(100)
		l := newLimiter(t, b, lim, hybrid.Options{Exact: true})
		defer closeLimiter(t, l)
		fmt.Println(l.Refund(t.Context(), "k", math.MaxInt), l.Refund(t.Context(), "k", math.MaxInt))
		l.Refund(t.Context(), "k", math.MaxInt)
		l.Refund(t.Context(), "k", math.MaxInt)
		settled()
		if n := b.level("k", lim); n != 100 {
			t.Errorf("%d after refunds, want 100; last credit %d", n, b.last().Credit)
		}
	})
}

// A peek follows LimitFor as well.
func TestPeeksAskLimitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerHour(100)
		l := newLimiter(t, b, lim, hybrid.Options{Exact: true, LimitFor: func(string) hybrid.Limit { return lim }})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 1)
		lim = hybrid.PerHour(10)
		time.Sleep(time.Minute)
		r := ask(t, l, "k", 0)
		t.Logf("%+v limit %v request %v", r, l.LimitOf("k"), b.last().Limit)
	})
}
