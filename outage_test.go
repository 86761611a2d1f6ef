package hybrid_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// A probe that waits behind a call that hangs goes down with it, and the next one follows soon.
func TestAProbeBehindACallThatHangsIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.Source.Timeout = time.Hour
		l := newFailing(t, b, hybrid.PerSecond(100), hybrid.Options{OnFailure: hybrid.FailOpen, Timeout: 200 * time.Millisecond})
		b.always(leasetest.Fault{LoseRequest: true})
		go l.Allow(t.Context(), "k") // out until 200 ms
		time.Sleep(time.Millisecond)
		b.Down(errAway)
		for i := range 5 { // the breaker opens
			l.Allow(t.Context(), strconv.Itoa(i))
		}
		time.Sleep(60 * time.Millisecond)
		l.Allow(t.Context(), "k") // is allotted the probe, which waits behind that call and goes down with it
		b.Down(nil)
		b.always(leasetest.Fault{})
		mended := time.Now()
		for l.Stats().Unavailable && time.Since(mended) < time.Minute {
			l.Allow(t.Context(), "c")
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(mended); took > 1300*time.Millisecond {
			t.Errorf("recovered after %v", took)
		}
	})
}

// A process that only peeks probes too.
func TestPeeksAloneRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerSecond(100), hybrid.Options{OnFailure: hybrid.FailClosed})
		b.Down(errAway)
		for range 10 {
			l.AllowN(t.Context(), "k", 0)
		}
		b.Down(nil)
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			l.AllowN(t.Context(), "k", 0)
		}
		if r, err := l.AllowN(t.Context(), "k", 0); err != nil {
			t.Errorf("100 s after the source was mended: %+v, %v", r, err)
		}
	})
}

// Callers who wait behind a call that hangs count, in whatever order the timers fire.
func TestWhoWaitsForTheSecondCallIsCounted(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			b.Source.Timeout = time.Hour
			l := newFailing(t, b, hybrid.PerSecond(100), hybrid.Options{OnFailure: hybrid.FailOpen, Timeout: 50 * time.Millisecond})
			b.always(leasetest.Fault{LoseRequest: true})
			burst(t.Context(), l, "k", 64) // at the same instant
			synctest.Wait()
			if !l.Stats().Unavailable {
				t.Errorf("64 callers got no answer, and the breaker is closed")
			}
		})
	}
}

// What was spent without Redis stays spent under another limit.
func TestSetLimitDuringAnOutageMakesNoTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{})
		goDown(t, b, l)
		got := 0
		for i := range 10 {
			got += admitted(t, l, "k", 20)
			l.SetLimit(hybrid.PerHour(10).WithBurst(11 + i%2))
		}
		if got > 12 {
			t.Errorf("admitted %d", got)
		}
		comeBack(t, b, l)
		l.Allow(t.Context(), "k")
		sum, _ := b.credits("k")
		t.Logf("charged %d of %d", -sum, got)
	})
}

// Reset forgets what was spent without Redis.
func TestResetForgetsTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{})
		goDown(t, b, l)
		admitted(t, l, "k", 20)
		comeBack(t, b, l)
		if err := l.Reset(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if got := admitted(t, l, "k", 20); got != 10 {
			t.Errorf("after Reset %d, want 10", got)
		}
	})
}

// Reset forgets the level that was known.
func TestResetForgetsTheLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{Exact: true})
		allowed(t, l, "k", 10)
		if err := l.Reset(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		goDown(t, b, l)
		if got := admitted(t, l, "k", 20); got != 10 {
			t.Errorf("after Reset %d, want 10", got)
		}
	})
}

type slowHandler struct{ slog.Handler }

func (slowHandler) Enabled(context.Context, slog.Level) bool { return true }
func (slowHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelInfo {
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// A slow log handler does not turn the order of events around.
func TestTheObserverIsToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		w := &listener{}
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: hybrid.FailOpen, Observer: w, Logger: slog.New(slowHandler{slog.DiscardHandler})})
		goDown(t, b, l)
		b.Down(nil)
		time.Sleep(time.Second)
		l.Allow(t.Context(), "k") // a good probe
		synctest.Wait()
		b.Down(errAway)
		l.Allow(t.Context(), "l") // the breaker is on trial
		time.Sleep(100 * time.Millisecond)
		if w.String() != "down up down " || !l.Stats().Unavailable {
			t.Errorf("told %q, and Unavailable is %v", w, l.Stats().Unavailable)
		}
	})
}

// The bucket answers that the lease is void, and has done nothing else: what is owed is still to be charged.
func TestAStaleAnswerKeepsTheCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, limit.Limit{Rate: 1, Period: time.Hour, Burst: 100}, hybrid.Options{LeaseSize: 5, LeaseTTL: time.Minute})
		allowed(t, l, "k", 1)
		synctest.Wait()
		goDown(t, b, l)
		before := 1 + admitted(t, l, "k", 200)
		b.StepClock(2 * time.Minute) // as a failover does
		comeBack(t, b, l)
		if after := admitted(t, l, "k", 200); after > 5 {
			sum, n := b.credits("k")
			t.Errorf("admitted %d, and %d after the outage; charged %d in %d requests", before, after, -sum, n)
		}
	})
}

// While a refused key is not asked for, callers hear why.
func TestARefusedKeyTellsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: hybrid.FailClosed})
		b.Next(leasetest.Fault{Err: fmt.Errorf("%w: yesterday", hybrid.ErrUnavailable)})
		l.Allow(t.Context(), "k")
		allowed(t, l, "k", 1)
		time.Sleep(24 * time.Hour)
		b.always(leasetest.Fault{Err: fmt.Errorf("%w: %w: NOPERM", hybrid.ErrUnavailable, remote.ErrRefused)})
		l.Allow(t.Context(), "k")
		_, err := l.Allow(t.Context(), "k")
		if !errors.Is(err, remote.ErrRefused) {
			t.Errorf("%v", err)
		}
	})
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (*counter) Enabled(context.Context, slog.Level) bool { return true }
func (c *counter) Handle(context.Context, slog.Record) error {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	return nil
}
func (c *counter) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c *counter) WithGroup(string) slog.Handler      { return c }

// Refusals do not flood the log, nor do peeks flood Redis.
func TestRefusalsAreLoggedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		c := &counter{}
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{Logger: slog.New(c)})
		b.always(leasetest.Fault{Err: fmt.Errorf("%w: %w: NOPERM", hybrid.ErrUnavailable, remote.ErrRefused)})
		for i := range 1000 {
			l.Allow(t.Context(), strconv.Itoa(i))
		}
		for range 1000 {
			l.AllowN(t.Context(), "k", 0)
		}
		if c.n > 10 {
			t.Errorf("%d lines at one instant, and %d calls for a peek of one key", c.n, b.Calls("k"))
		}
	})
}

// An error of another source is none of the caller.
func TestErrorsOfOtherSourcesCountAsWell(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: policy})
		b.always(leasetest.Fault{Err: errors.New("foreign")})
		for i := range 7 {
			if r, err := l.Allow(t.Context(), "k"); err != nil && !errors.Is(err, hybrid.ErrUnavailable) {
				t.Errorf("request %d: %+v, %v", i, r, err)
			}
		}
	})
}

// What is owed is not charged while requests fail: it would be lost.
func TestFailuresBeforeItOpensKeepTheCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{})
		b.Down(errAway) // refuses at once: no request has run
		before := admitted(t, l, "k", 20)
		comeBack(t, b, l)
		if after := admitted(t, l, "k", 20); after > 0 {
			t.Errorf("admitted %d in the outage and %d after it", before, after)
		}
	})
}

// However long it lasts.
func TestInstancesAreKnownThroughTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		var procs []*hybrid.Limiter
		for range 4 {
			procs = append(procs, newFailing(t, b, hybrid.PerSecond(100), hybrid.Options{LeaseSize: 5, LeaseTTL: 400 * time.Millisecond}))
		}
		for range 20 {
			for _, l := range procs {
				ask(t, l, "k", 1)
				time.Sleep(time.Millisecond)
			}
		}
		goDown(t, b, procs...)
		time.Sleep(11 * time.Minute)
		got := 0
		for range 1000 {
			for _, l := range procs {
				if ask(t, l, "k", 1).Allowed {
					got++
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got > 1100+4 {
			t.Errorf("admitted %d in 10 s, the limit allows 1,100", got)
		}
	})
}

// A window that contains both.
func TestEachEdgeOfAnOutageAddsAtMostABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := limit.Limit{Rate: 300, Period: 10 * time.Second, Burst: 300}
		var e leasetest.Envelope
		var procs []*hybrid.Limiter
		for range 3 {
			procs = append(procs, newFailing(t, b, lim, hybrid.Options{Instances: 3, Exact: true}))
		}
		for range 300 {
			allowed(t, procs[0], "k", 1)
			e.Add(b.Now(), 1)
		}
		goDown(t, b, procs...)
		for range 3000 {
			for _, l := range procs {
				if ask(t, l, "k", 1).Allowed {
					e.Add(b.Now(), 1)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		comeBack(t, b, procs[0])
		for range 300 {
			if ask(t, procs[0], "k", 1).Allowed {
				e.Add(b.Now(), 1)
			}
		}
		if w := e.Worst(lim); w.Excess > 600 {
			t.Errorf("%v, want at most two bursts above Burst + Rate*W", w)
		}
	})
}

// That it lay idle during the outage does not matter any more.
func TestABusyLeaseIsNotGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, limit.Limit{Rate: 1, Period: time.Hour, Burst: 1000}, hybrid.Options{LeaseSize: 100, LeaseTTL: time.Hour, OnFailure: hybrid.FailOpen})
		allowed(t, l, "k", 1)
		goDown(t, b, l)
		time.Sleep(20 * time.Minute) // the lease lies idle, and cannot be given back
		comeBack(t, b, l)
		from := b.requested()
		for range 76 {
			allowed(t, l, "k", 1)
			synctest.Wait()
		}
		for _, r := range b.requests[from:] {
			if r.Key == "k" && r.Lease.Want == 0 {
				t.Errorf("gave a lease back that is in use: %+v", r.Lease)
			}
		}
	})
}

// What was spent in an outage and has long been refilled is not charged after it; only what an ideal bucket would still
// miss is.
func TestLEASE04_OnlyWhatIsNotRefilledIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerMinute(100), hybrid.Options{})
		goDown(t, b, l)
		if got := admitted(t, l, "k", 80); got != 80 {
			t.Fatalf("admitted %d", got)
		}
		time.Sleep(88 * time.Second) // more than the 80 are refilled in
		if got := admitted(t, l, "k", 15); got != 15 {
			t.Fatalf("admitted %d", got)
		}
		comeBack(t, b, l) // takes a second, which brings one or two
		if got := admitted(t, l, "k", 200); got < 84 || got > 88 {
			t.Errorf("admitted %d after the outage, want about 86: the 15 are charged, the 80 are not", got)
		}
	})
}
