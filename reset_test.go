package hybrid_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

func reset(t *testing.T, l *hybrid.Limiter, key string) {
	t.Helper()
	if err := l.Reset(t.Context(), key); err != nil {
		t.Fatalf("Reset: %v", err)
	}
}

func TestRESET01_ResetMakesTheKeyFullAndLeavesNothing(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerMinute(5)
				l := newLimiter(t, b, lim, opts)
				defer closeLimiter(t, l)
				reset(t, l, "never used")
				for _, key := range []string{"k", "a {brace} d", string(make([]byte, limit.MaxKeyLen))} {
					if got := admitted(t, l, key, 7); got != 5 {
						t.Fatalf("admitted %d of 7, want 5", got)
					}
					denied(t, l, key, 1)
					reset(t, l, key)
					if r := allowed(t, l, key, 1); r.Remaining != 4 {
						t.Errorf("%d remain after a reset and one request, want 4", r.Remaining)
					}
					reset(t, l, key)
					if got := b.level(key, lim); got != 5 {
						t.Errorf("the bucket holds %d tokens after a reset, want 5", got)
					}
				}
				// What a reset leaves behind goes when the last lease that could ask has ended.
				time.Sleep(time.Hour)
				if s := b.State("k"); s.Exists {
					t.Errorf("a key that was reset is still there: %+v", s)
				}
			})
		})
	}
}

func TestRESET02_ResetIsSeenByAllProcessesWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerMinute(5)
		one := newLimiter(t, b, lim, hybrid.Options{})
		two := newLimiter(t, b, lim, hybrid.Options{})
		defer closeLimiter(t, one)
		defer closeLimiter(t, two)
		if got := admitted(t, one, "k", 9) + admitted(t, two, "k", 9); got != 5 {
			t.Fatalf("admitted %d, want 5", got)
		}
		denied(t, one, "k", 1)
		denied(t, two, "k", 1)
		reset(t, one, "k")
		allowed(t, one, "k", 1)
		at := time.Now()
		for !ask(t, two, "k", 1).Allowed {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(at); took > time.Second {
			t.Errorf("the other process admits %v after the reset, want 1s at most", took)
		}
		if got := admitted(t, one, "k", 9) + admitted(t, two, "k", 9); got != 3 {
			t.Errorf("admitted %d more, want 3", got)
		}
	})
}

// A reply that was under way when the key was reset speaks of the old bucket. Its totals are not tokens that came in.
func TestResetWhileARefillIsOut(t *testing.T) {
	for _, running := range []string{"request", "reply"} {
		t.Run(running, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerSecond(100)
				l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 20})
				var e leasetest.Envelope
				take := func() {
					if ask(t, l, "k", 1).Allowed {
						e.Add(time.Now().UnixMicro(), 1)
					}
				}
				for range 60 { // one lease for some time: its totals are more than it holds
					take()
					time.Sleep(10 * time.Millisecond)
				}
				for l.Stats().Held > 0 {
					take()
				}
				fault := leasetest.Fault{Reply: 50 * time.Millisecond}
				if running == "request" {
					fault = leasetest.Fault{Delay: 50 * time.Millisecond}
				}
				b.always(fault)
				var r limit.Result
				var err error
				go func() { r, err = l.Allow(t.Context(), "k") }()
				time.Sleep(10 * time.Millisecond)
				b.always(leasetest.Fault{})
				reset(t, l, "k")
				e = leasetest.Envelope{}
				time.Sleep(60 * time.Millisecond)
				synctest.Wait()
				if err != nil || !r.Allowed {
					t.Errorf("the caller in between got %+v, %v", r, err)
				}
				if held := l.Stats().Held; held > 25 {
					t.Errorf("holds %d tokens, more than may be lent", held)
				}
				for range 300 {
					take()
					time.Sleep(time.Millisecond)
				}
				if w := e.Worst(lim); w.Excess > 0 {
					t.Errorf("after the reset: %v", w)
				}
				closeLimiter(t, l)
			})
		})
	}
}

// A denial that was under way when the key was reset is not remembered.
func TestResetWhileADenialIsOut(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, hybrid.PerMinute(3), opts)
				defer closeLimiter(t, l)
				admitted(t, l, "k", 4)
				time.Sleep(time.Second) // until it asks again
				b.Next(leasetest.Fault{Reply: 50 * time.Millisecond})
				go l.Allow(t.Context(), "k")
				time.Sleep(10 * time.Millisecond)
				reset(t, l, "k")
				time.Sleep(60 * time.Millisecond)
				allowed(t, l, "k", 1)
			})
		})
	}
}

func TestResetErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerMinute(3), hybrid.Options{})
		for _, key := range []string{"", string(make([]byte, limit.MaxKeyLen+1))} {
			if err := l.Reset(t.Context(), key); !errors.Is(err, hybrid.ErrInvalidKey) {
				t.Errorf("key of %d bytes: %v", len(key), err)
			}
		}
		b.Down(errors.New("away"))
		if err := l.Reset(t.Context(), "k"); !errors.Is(err, hybrid.ErrUnavailable) {
			t.Errorf("while the source is down: %v", err)
		}
		b.Down(nil)
		closeLimiter(t, l)
		if err := l.Reset(t.Context(), "k"); !errors.Is(err, hybrid.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		plain := newLimiter(t, struct{ lease.Source }{b}, hybrid.PerMinute(3), hybrid.Options{})
		if err := plain.Reset(t.Context(), "k"); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a source that cannot: %v", err)
		}
	})
}
