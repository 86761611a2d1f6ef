package hybrid_test

import (
	"context"
	"errors"
	"fmt"
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

// slow makes each call take so long, half of it each way.
func (b *bank) slow(d time.Duration) { b.always(leasetest.Fault{Delay: d / 2, Reply: d - d/2}) }

// outcome counts what many callers got.
type outcome struct{ allowed, denied, failed, left atomic.Int64 }

func (o *outcome) note(ctx context.Context, r limit.Result, err error) {
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		o.left.Add(1)
	case err != nil:
		o.failed.Add(1)
	case r.Allowed:
		o.allowed.Add(1)
	default:
		o.denied.Add(1)
	}
}

func (o *outcome) String() string {
	return fmt.Sprintf("%d allowed, %d denied, %d failed, %d left", o.allowed.Load(), o.denied.Load(), o.failed.Load(), o.left.Load())
}

// burst lets so many callers ask at once and waits for them.
func burst(ctx context.Context, l asker, key string, callers int) *outcome {
	var o outcome
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			r, err := l.AllowN(ctx, key, 1)
			o.note(ctx, r, err)
		})
	}
	wg.Wait()
	return &o
}

func TestSF01_ACallerWhoLeavesHarmsNobody(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				opts.Timeout = time.Second
				b.Source.Timeout = time.Second
				l := newLimiter(t, b, hybrid.PerHour(100), opts)
				defer closeLimiter(t, l)
				b.slow(100 * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				start := time.Now()
				var first error
				var took time.Duration
				var wg sync.WaitGroup
				wg.Go(func() {
					_, first = l.Allow(ctx, "k")
					took = time.Since(start)
				})
				synctest.Wait()
				o := burst(t.Context(), l, "k", 19)
				wg.Wait()
				if !errors.Is(first, context.DeadlineExceeded) || took != 10*time.Millisecond {
					t.Errorf("the caller with a deadline got %v after %v", first, took)
				}
				if o.allowed.Load() != 19 || time.Since(start) > 200*time.Millisecond {
					t.Errorf("the others: %v after %v", o, time.Since(start))
				}
				if n := b.Calls(); n > 3 { // the second may have asked for the next lease ahead of need
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

func TestSF01_ASharedRefillIsNoGrantForEachWaiter(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, hybrid.PerHour(10), opts)
				defer closeLimiter(t, l)
				b.slow(20 * time.Millisecond)
				if o := burst(t.Context(), l, "k", 100); o.allowed.Load() != 10 || o.denied.Load() != 90 {
					t.Errorf("%v, want 10 allowed of 100", o)
				}
				if n := b.Calls(); n > 3 {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

func TestSF02_APanickingSourceTakesNobodyDown(t *testing.T) {
	for _, way := range []string{"panic", "Goexit"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, hybrid.PerHour(1000), hybrid.Options{LeaseSize: 10})
				defer closeLimiter(t, l)
				fail := func(lease.Request) {
					time.Sleep(20 * time.Millisecond)
					b.hook(nil)
					if way == "panic" {
						panic("boom")
					}
					runtime.Goexit()
				}
				b.hook(fail)
				start := time.Now()
				var o outcome
				var wg sync.WaitGroup
				for i := range 50 {
					if i == 25 {
						time.Sleep(time.Millisecond) // the others wait for the next call
					}
					wg.Go(func() {
						r, err := l.Allow(t.Context(), "k")
						o.note(t.Context(), r, err)
						if err != nil && !errors.Is(err, hybrid.ErrUnavailable) {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(start); took > 100*time.Millisecond {
					t.Errorf("they wait %v", took)
				}
				// Who came while the first call was out is paid by the next one; but a goroutine that ends takes those
				// along that have joined it.
				if n := o.failed.Load(); n == 0 || way == "panic" && n > 25 {
					t.Errorf("%v, want those of the first call to fail", &o)
				}
				// The same with a call that nobody waits for: a lease ahead of need.
				allowed(t, l, "k", 1)
				synctest.Wait()
				b.hook(fail)
				failed := 0
				for range 100 {
					if _, err := l.Allow(t.Context(), "k"); err != nil {
						failed++
					}
					time.Sleep(time.Millisecond)
				}
				if failed > 1 {
					t.Errorf("%d requests failed by one call", failed)
				}
			})
		})
	}
}

func TestSF03_NobodyInheritsACancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.Source.Timeout = time.Second
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{Timeout: time.Second})
		defer closeLimiter(t, l)
		b.slow(200 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var o outcome
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				r, err := l.Allow(ctx, "k")
				o.note(ctx, r, err)
			})
		}
		start := time.Now()
		time.Sleep(50 * time.Millisecond)
		cancel()
		wg.Wait()
		if o.left.Load() != 4 || time.Since(start) != 50*time.Millisecond {
			t.Errorf("%v after %v", &o, time.Since(start))
		}
		time.Sleep(10 * time.Millisecond)
		allowed(t, l, "k", 1)
		if took := time.Since(start); took > 401*time.Millisecond {
			t.Errorf("served after %v", took)
		}
	})
}

func TestTIME01_CallersWaitForTheTimeoutOnce(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				b.Source.Timeout = time.Hour
				opts.Timeout = 50 * time.Millisecond
				l := newLimiter(t, b, hybrid.PerHour(100), opts)
				b.slow(400 * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), 25*time.Millisecond)
				defer cancel()
				start := time.Now()
				if _, err := l.Allow(ctx, "short"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 25*time.Millisecond {
					t.Errorf("own deadline: %v after %v", err, time.Since(start))
				}
				time.Sleep(time.Second)
				start = time.Now()
				if o := burst(t.Context(), l, "k", 100); o.failed.Load() != 100 || time.Since(start) > 51*time.Millisecond {
					t.Errorf("Timeout: %v after %v", o, time.Since(start))
				}
				start = time.Now()
				if _, err := l.AllowN(t.Context(), "peek", 0); !errors.Is(err, hybrid.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 51*time.Millisecond {
					t.Errorf("peek: %v after %v", err, time.Since(start))
				}
				time.Sleep(time.Second)
				b.always(leasetest.Fault{})
				recovered(t, l)
				allowed(t, l, "later", 1)
				closeLimiter(t, l)
			})
		})
	}
}

// A source that pays no heed to contexts holds up its callers for no longer either.
func TestTIME01_ASourceThatIgnoresContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{Timeout: 50 * time.Millisecond, LeaseSize: 5})
		allowed(t, l, "other", 1)
		b.hook(func(lease.Request) { time.Sleep(time.Second) })
		start := time.Now()
		for i := range 3 {
			if o := burst(t.Context(), l, "k", 10); o.failed.Load() != 10 || time.Since(start) > time.Duration(i+1)*51*time.Millisecond {
				t.Errorf("%v after %v", o, time.Since(start))
			}
		}
		start = time.Now()
		if err := l.Close(t.Context()); err == nil || time.Since(start) > 100*time.Millisecond {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
		time.Sleep(10 * time.Second)
	})
}

func TestTIME02_ALostReplyLosesNothingThatTotalsCanBringBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := limit.Limit{Rate: 1, Period: 1000 * time.Second, Burst: 10}
		exact := newLimiter(t, b, lim, hybrid.Options{Exact: true})
		b.Next(leasetest.Fault{LoseReply: true})
		if _, err := exact.Allow(t.Context(), "e"); !errors.Is(err, hybrid.ErrUnavailable) {
			t.Error(err)
		}
		if r := allowed(t, exact, "e", 0); r.Remaining != 9 {
			t.Errorf("exact: %d remain, want 9: charged once, never twice", r.Remaining)
		}
		if got := admitted(t, exact, "e", 20); got != 9 {
			t.Errorf("exact: admitted %d more, want 9", got)
		}
		closeLimiter(t, exact)

		leased := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 3, MaxLeased: 1})
		b.Next(leasetest.Fault{LoseReply: true})
		if _, err := leased.Allow(t.Context(), "l"); !errors.Is(err, hybrid.ErrUnavailable) {
			t.Error(err)
		}
		if got := admitted(t, leased, "l", 20); got != 9 {
			t.Errorf("leased: admitted %d more, want 9", got)
		}
		closeLimiter(t, leased)
	})
}

func TestTIME03_CallersWhoLeaveAreNoFailuresOfRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(100_000), hybrid.Options{})
		defer closeLimiter(t, l)
		b.slow(20 * time.Millisecond)
		var o outcome
		var wg sync.WaitGroup
		for i := range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() {
				r, err := l.Allow(ctx, "k"+strconv.Itoa(i%10))
				o.note(ctx, r, err)
			})
			time.AfterFunc(5*time.Millisecond, cancel)
		}
		wg.Wait()
		time.Sleep(100 * time.Millisecond)
		if s := l.Stats(); o.left.Load() != 1000 || s.Failed != 0 {
			t.Errorf("%v, %d calls failed", &o, s.Failed)
		}
		allowed(t, l, "k", 1)
	})
}

// Requests for many keys share round trips, and one that is slow does not hold up more than its own.
func TestManyKeysShareRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{})
		b.slow(10 * time.Millisecond)
		var wg sync.WaitGroup
		start := time.Now()
		for i := range 1000 {
			wg.Go(func() {
				if r, err := l.Allow(t.Context(), strconv.Itoa(i)); err != nil || !r.Allowed {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		if b.Calls() != 1000 || b.Trips() > 16 || time.Since(start) > 50*time.Millisecond {
			t.Errorf("%d calls in %d round trips, %v", b.Calls(), b.Trips(), time.Since(start))
		}
		closeLimiter(t, l)
	})
}

// Only an answer renews a lease: a request that was lost does not, however often.
func TestALostRequestRenewsNothing(t *testing.T) {
	for name, fault := range map[string]leasetest.Fault{
		"request lost": {LoseRequest: true}, "reply lost": {LoseReply: true}, "late": {Late: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := limit.Limit{Rate: 40, Period: 40 * time.Second, Burst: 40}
				l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 10, LeaseTTL: 4 * time.Second})
				allowed(t, l, "k", 1) // the lease ends a little before 4s
				b.always(fault)
				start := time.Now()
				for l.Stats().Held > 1 { // slowly, so that it does not lie idle; the next lease is asked for ahead of need
					time.Sleep(450 * time.Millisecond)
					if r := allowed(t, l, "k", 1); r.Origin != hybrid.Local {
						t.Fatalf("%+v", r)
					}
				}
				if time.Since(start) > 3900*time.Millisecond || l.Stats().Failed == 0 || l.Stats().Held != 1 {
					t.Fatalf("after %v %+v: not what this test is about", time.Since(start), l.Stats())
				}
				time.Sleep(time.Until(start.Add(4 * time.Second)))
				if r, err := l.Allow(t.Context(), "k"); err == nil {
					t.Errorf("%+v: spent a token whose lease has ended", r)
				}
				b.always(leasetest.Fault{})
				l.Close(t.Context())
			})
		})
	}
}

// Tokens stay good while Redis is away, until their lease ends.
func TestTokensOutliveTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerMinute(100), hybrid.Options{LeaseSize: 10})
		allowed(t, l, "k", 1)
		held := int(l.Stats().Held)
		b.Down(errors.New("away"))
		if got := admitted(t, l, "k", held); got != held {
			t.Errorf("%d of %d tokens", got, held)
		}
		if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, hybrid.ErrUnavailable) {
			t.Error(err)
		}
		b.Down(nil)
		allowed(t, l, "k", 1)
		closeLimiter(t, l)
	})
}

// A clone of a process takes no more than it would have got by asking: the newer sequence number wins, and the other
// one starts anew.
func TestARequestThatIsRepeatedIsDoneOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerHour(100)
		l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 5})
		b.Always(func(lease.Request) leasetest.Fault { return leasetest.Fault{Again: time.Millisecond} })
		got := 0
		for range 200 {
			if ask(t, l, "k", 1).Allowed {
				got++
			}
			time.Sleep(2 * time.Millisecond)
		}
		b.always(leasetest.Fault{})
		closeLimiter(t, l)
		if level := b.level("k", lim); got > 100 || int64(got)+level > 100 {
			t.Errorf("admitted %d, and %d are left", got, level)
		}
	})
}

// A lease that has become void is forgotten, and the callers who found out are answered all the same.
func TestAStaleAnswerStartsANewLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerHour(100)
		l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 5})
		allowed(t, l, "k", 1)
		synctest.Wait()
		// Somebody with the same name is ahead: a copy of this process.
		req := b.last()
		req.Lease.Seq += 10
		grants := make([]lease.Grant, 1)
		b.Source.Acquire(t.Context(), []lease.Request{req}, grants)
		if grants[0].Err != nil || grants[0].Status != lease.OK {
			t.Fatalf("%+v", grants[0])
		}
		id := req.Lease.ID
		for range 10 {
			allowed(t, l, "k", 1)
		}
		synctest.Wait()
		if again := b.last().Lease.ID; again == id || again == "" {
			t.Errorf("goes on under the name of its copy")
		}
		closeLimiter(t, l)
	})
}

// Waiting for the bucket, callers are answered in the order of their costs and not by luck: a cost that fits is not
// refused because of one that did not.
func TestCallersOfOneRefillAreDecidedOneByOne(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, hybrid.PerHour(10), opts)
				defer closeLimiter(t, l)
				b.slow(10 * time.Millisecond)
				go l.AllowN(t.Context(), "k", 1)
				synctest.Wait()
				want := []struct {
					cost int
					ok   bool
				}{{4, true}, {6, false}, {3, true}, {3, false}, {1, true}, {1, true}, {1, false}}
				got := make([]bool, len(want))
				var wg sync.WaitGroup
				for i, c := range want {
					wg.Go(func() { got[i] = ask(t, l, "k", c.cost).Allowed })
					synctest.Wait() // in this order
				}
				wg.Wait()
				total := 1
				for i, c := range want {
					if got[i] {
						total += c.cost
					}
				}
				if total != 10 {
					t.Errorf("%d of 10 tokens were used: %v", total, got)
				}
				for i, c := range want {
					if got[i] != c.ok {
						t.Errorf("request %d for %d tokens: %v, want %v", i, c.cost, got[i], c.ok)
					}
				}
			})
		})
	}
}
