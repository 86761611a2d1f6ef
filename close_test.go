package hybrid_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
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

// checkClosed makes every kind of call on a closed limiter.
func checkClosed(t *testing.T, l *hybrid.Limiter, keys ...string) {
	t.Helper()
	for _, key := range keys {
		for _, n := range []int{0, 1, 3} {
			if r, err := l.AllowN(t.Context(), key, n); !errors.Is(err, hybrid.ErrClosed) || r != (limit.Result{}) {
				t.Errorf("AllowN(%d) on a closed limiter: %+v, %v", n, r, err)
			}
			if r, err := l.Key(key).AllowN(t.Context(), n); !errors.Is(err, hybrid.ErrClosed) || r != (limit.Result{}) {
				t.Errorf("AllowN(%d) on a handle of a closed limiter: %+v, %v", n, r, err)
			}
		}
		if err := l.Reset(t.Context(), key); !errors.Is(err, hybrid.ErrClosed) {
			t.Errorf("Reset on a closed limiter: %v", err)
		}
	}
	if s := l.Stats(); s.Held != 0 {
		t.Errorf("a closed limiter holds %d tokens", s.Held)
	}
}

func TestCONC01_CloseIsIdempotent(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerHour(50)
				l := newLimiter(t, b, lim, opts)
				for range 7 {
					allowed(t, l, "k", 1)
				}
				closeLimiter(t, l)
				if got := b.level("k", lim); got != 43 {
					t.Errorf("the bucket holds %d tokens, want 43", got)
				}
				calls := b.Calls()
				closeLimiter(t, l)
				if b.Calls() != calls {
					t.Errorf("the second Close made %d calls", b.Calls()-calls)
				}
				checkClosed(t, l, "k", "another")

				l = newLimiter(t, b, lim, opts) // never used
				closeLimiter(t, l)
				checkClosed(t, l, "k")
			})
		})
	}
}

func TestCONC01_CloseFromManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerHour(50)
		l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 5})
		for range 7 {
			allowed(t, l, "k", 1)
		}
		synctest.Wait()
		b.slow(20 * time.Millisecond)
		start := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := l.Close(t.Context()); err != nil || time.Since(start) != 20*time.Millisecond {
					t.Errorf("Close: %v after %v", err, time.Since(start))
				}
			})
		}
		wg.Wait()
		if got := b.level("k", lim); got != 43 {
			t.Errorf("the bucket holds %d tokens, want 43", got)
		}
		if s := l.Stats(); s.Returned == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Callers who wait for Redis when the limiter is closed get an answer, and all that was not used is in the bucket.
func TestCONC01_CloseUnderLoad(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerHour(10_000)
				l := newLimiter(t, b, lim, opts)
				b.slow(5 * time.Millisecond)
				var o outcome
				var wg sync.WaitGroup
				for i := range 100 {
					wg.Go(func() {
						for {
							r, err := l.Allow(t.Context(), "k")
							if errors.Is(err, hybrid.ErrClosed) {
								return
							}
							o.note(t.Context(), r, err)
							time.Sleep(time.Duration(i) * time.Microsecond)
						}
					})
				}
				time.Sleep(40 * time.Millisecond)
				closeLimiter(t, l)
				wg.Wait()
				if o.failed.Load() != 0 || o.denied.Load() != 0 || o.allowed.Load() < 100 {
					t.Errorf("%v", &o)
				}
				if got := b.level("k", lim); got != 10_000-o.allowed.Load() {
					t.Errorf("the bucket holds %d tokens, want %d", got, 10_000-o.allowed.Load())
				}
				checkClosed(t, l, "k")
			})
		})
	}
}

func TestCONC01_CloseWithADeadSource(t *testing.T) {
	for name, f := range map[string]leasetest.Fault{
		"silent": {LoseRequest: true}, "refusing": {Err: errors.New("away")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerHour(100)
				l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 5, Timeout: 50 * time.Millisecond})
				for i := range 250 { // more than go with one trip
					allowed(t, l, strconv.Itoa(i), 1)
				}
				b.always(f)
				var o outcome
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						r, err := l.Allow(t.Context(), "waits")
						o.note(t.Context(), r, err)
					})
				}
				time.Sleep(time.Millisecond)
				start := time.Now()
				err := l.Close(t.Context())
				if took := time.Since(start); err == nil || took > 100*time.Millisecond {
					t.Errorf("Close: %v after %v, want an error within two Timeouts", err, took)
				}
				wg.Wait()
				if o.failed.Load() != 10 {
					t.Errorf("the callers who were waiting: %v", &o)
				}
				if err := l.Close(t.Context()); err != nil {
					t.Errorf("second Close: %v", err)
				}
				checkClosed(t, l, "0", "249", "waits")
				b.always(leasetest.Fault{})
				time.Sleep(time.Hour)
				if got := b.level("7", lim); got != 100 { // what was not given back comes back by itself
					t.Errorf("the bucket holds %d tokens, want 100", got)
				}
			})
		})
	}
}

func TestCloseHeedsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{LeaseSize: 5, Timeout: time.Second})
		b.Source.Timeout = time.Second
		allowed(t, l, "k", 1)
		b.slow(900 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		start := time.Now()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 30*time.Millisecond {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
		checkClosed(t, l, "k")
	})
}

// What a call brings that was still out when Close ran out of time is spent by nobody.
func TestCloseThatRanOutOfTimeVoidsWhatComesLater(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			lim := hybrid.PerHour(100)
			l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 5})
			if !first {
				for range 6 {
					allowed(t, l, "k", 1)
				}
				synctest.Wait()
				for l.Stats().Held > 0 {
					allowed(t, l, "k", 1)
				}
				synctest.Wait()
			}
			b.slow(50 * time.Millisecond)
			var o outcome
			var wg sync.WaitGroup
			wg.Go(func() {
				r, err := l.AllowN(t.Context(), "k", 20)
				o.note(t.Context(), r, err)
			})
			time.Sleep(time.Millisecond)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			l.Close(ctx)
			wg.Wait()
			if o.allowed.Load() != 1 {
				t.Errorf("the caller who was waiting: %v", &o)
			}
			time.Sleep(100 * time.Millisecond)
			checkClosed(t, l, "k")
		})
	}
}

// The same for an entry that was forgotten meanwhile, which Close cannot find.
func TestCloseThatRanOutOfTimeVoidsWhatComesForForgottenKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{LeaseSize: 5, MaxKeys: 1})
		b.slow(50 * time.Millisecond)
		var o outcome
		var wg sync.WaitGroup
		for _, key := range []string{"forgotten", "kept"} {
			wg.Go(func() {
				r, err := l.Allow(t.Context(), key)
				o.note(t.Context(), r, err)
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.Close(ctx)
		wg.Wait()
		if o.allowed.Load() != 2 {
			t.Errorf("the callers who were waiting: %v", &o)
		}
		conserved(t, l, 0)
	})
}

func TestCloseWithAPanickingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{LeaseSize: 5})
		allowed(t, l, "k", 1)
		b.hook(func(lease.Request) { panic("boom") })
		if err := l.Close(t.Context()); !errors.Is(err, hybrid.ErrUnavailable) {
			t.Errorf("Close: %v", err)
		}
		checkClosed(t, l, "k")
	})
}

func TestCONC02_AfterCloseEveryCallSaysSoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		tiers := map[string]limit.Limit{"free": hybrid.Unlimited(), "banned": hybrid.Blocked()}
		l := newLimiter(t, b, hybrid.PerHour(10), hybrid.Options{LimitFor: func(key string) limit.Limit { return tiers[key] }})
		handle := l.Key("leased")
		if r, err := handle.Allow(t.Context()); err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
		admitted(t, l, "dry", 20)
		ask(t, l, "free", 1)
		ask(t, l, "banned", 1)
		closeLimiter(t, l)
		calls, start := b.Calls(), time.Now()
		checkClosed(t, l, "leased", "dry", "unknown")
		for _, key := range []string{"free", "banned"} {
			if _, err := l.Allow(t.Context(), key); !errors.Is(err, hybrid.ErrClosed) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if _, err := handle.Allow(t.Context()); !errors.Is(err, hybrid.ErrClosed) {
			t.Errorf("handle: %v", err)
		}
		if time.Since(start) != 0 || b.Calls() != calls {
			t.Errorf("it took %v and %d calls", time.Since(start), b.Calls()-calls)
		}
		// Bad input is still told apart.
		if _, err := l.Allow(t.Context(), ""); !errors.Is(err, hybrid.ErrInvalidKey) {
			t.Error(err)
		}
	})
}

func TestCONC03_ManyLimitersLeaveNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	src := newSlowSource()
	for range 1000 { // made and dropped
		newLimiter(t, src, hybrid.PerSecond(10), hybrid.Options{})
	}
	var all []*hybrid.Limiter
	for i := range 1000 {
		l := newLimiter(t, src, hybrid.PerHour(1000), hybrid.Options{LeaseSize: 10, Timeout: time.Minute})
		for k := range 3 {
			allowed(t, l, strconv.Itoa(i)+"/"+strconv.Itoa(k), 1)
		}
		all = append(all, l)
	}
	n := runtime.NumGoroutine() - before
	for deadline := time.Now().Add(10 * time.Second); n > 1000+10 && time.Now().Before(deadline); { // flights that are out
		time.Sleep(time.Millisecond)
		n = runtime.NumGoroutine() - before
	}
	if n > 1000+10 {
		t.Errorf("%d goroutines for 1000 limiters with 3000 keys", n)
	}
	for _, l := range all {
		closeLimiter(t, l)
	}
	checkGoroutines(t, before)
}

// checkGoroutines checks that there are no more than before; those that have signed off need a moment to end.
func checkGoroutines(t *testing.T, before int) {
	t.Helper()
	n := runtime.NumGoroutine()
	for i := 0; i < 100_000 && n > before; i++ {
		runtime.Gosched()
		n = runtime.NumGoroutine()
	}
	if n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
}

// An idle limiter has no goroutine at all: the janitor ends with the last tokens.
func TestCONC03_IdleLimitersHaveNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		for _, opts := range modes() {
			l := newLimiter(t, newBank(), hybrid.PerMinute(100), opts)
			for i := range 10 {
				allowed(t, l, strconv.Itoa(i), 1)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
		}
		checkGoroutines(t, before)
	})
}

func TestCONC04_EvictionReturnsTokensAndLocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerHour(100)
		var l *hybrid.Limiter
		// The source calls the limiter back, as code that is called on eviction may.
		b.hook(func(req lease.Request) {
			if req.Key != "side" && len(req.Costs) == 0 {
				l.Stats()
				go l.AllowN(context.Background(), "side", 0)
			}
		})
		l = newLimiter(t, b, lim, hybrid.Options{LeaseSize: 10, MaxKeys: 2})
		const keys = 20
		for i := range 5 * keys {
			key := strconv.Itoa(i % keys)
			allowed(t, l, key, 1)
			synctest.Wait()
			if n := l.Stats().Keys; n > 2 {
				t.Fatalf("%d keys are kept", n)
			}
			// Whatever was evicted has gone back at once, or is still held.
			if held := l.Stats().Held; held > 2*10 {
				t.Fatalf("holds %d tokens of two keys", held)
			}
		}
		time.Sleep(time.Second)
		for i := range keys {
			if got := b.level(strconv.Itoa(i), lim); i < keys-2 && got != 95 {
				t.Errorf("key %d: the bucket holds %d tokens, want 95", i, got)
			}
		}
		b.hook(nil)
		closeLimiter(t, l)
		conserved(t, l, l.Stats().Leased-l.Stats().Returned-l.Stats().Expired)
	})
}

// A key that is forgotten and comes back gets no fresh allowance.
func TestOVER11_EvictionIsNoFreshAllowance(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				opts.MaxKeys = 1
				l := newLimiter(t, b, hybrid.PerHour(5), opts)
				defer closeLimiter(t, l)
				got := 0
				for range 20 {
					got += admitted(t, l, "k", 1)
					ask(t, l, "another", 1)
					synctest.Wait()
				}
				if got != 5 {
					t.Errorf("admitted %d, want 5", got)
				}
				denied(t, l, "k", 1)
			})
		})
	}
}

func TestCONC05_OneSlotForTwoKeys(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				b.slow(time.Millisecond)
				opts.MaxKeys = 1
				lim := hybrid.PerSecond(1000)
				l := newLimiter(t, b, lim, opts)
				until := time.Now().Add(2 * time.Second)
				var calls [3]atomic.Int64
				var wg sync.WaitGroup
				for i, key := range []string{"a", "b"} {
					wg.Go(func() {
						for time.Now().Before(until) {
							if _, err := l.Allow(t.Context(), key); err != nil {
								t.Error(err)
								return
							}
							calls[i].Add(1)
							time.Sleep(100 * time.Microsecond)
						}
					})
				}
				wg.Go(func() {
					for i := 0; time.Now().Before(until); i++ {
						if err := l.Reset(t.Context(), []string{"a", "b"}[i%2]); err != nil {
							t.Error(err)
							return
						}
						calls[2].Add(1)
						time.Sleep(10 * time.Millisecond)
					}
				})
				var seen [3]int64
				for time.Now().Before(until) {
					time.Sleep(100 * time.Millisecond)
					for i := range calls {
						if n := calls[i].Load(); n == seen[i] && time.Now().Before(until) {
							t.Errorf("no progress of %d in 100ms", i)
						} else {
							seen[i] = n
						}
					}
				}
				wg.Wait()
				closeLimiter(t, l)
			})
		})
	}
}

// The same in real time, where the race detector sees it.
func TestCONC05_ManyKeysInOneSlot(t *testing.T) {
	src := newSlowSource()
	lim := hybrid.PerHour(1 << 20)
	l := newLimiter(t, src, lim, hybrid.Options{LeaseSize: 7, MaxKeys: 1, Timeout: time.Minute})
	var ok [4]atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			key := g % 4
			for range 300 {
				if r, err := l.Allow(t.Context(), strconv.Itoa(key)); err != nil {
					t.Error(err)
				} else if r.Allowed {
					ok[key].Add(1)
				}
			}
		})
	}
	wg.Wait()
	closeLimiter(t, l)
	for key := range ok {
		s := src.State(strconv.Itoa(key))
		// What was lent to entries that were forgotten in the middle of a call may not be back yet.
		if used := int64(lim.Burst) - s.Level - s.Lent(); ok[key].Load() != 600 || used < 0 || used > 600 {
			t.Errorf("key %d: admitted %d, and the bucket says %d", key, ok[key].Load(), used)
		}
	}
}
