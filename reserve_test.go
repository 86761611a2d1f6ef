package hybrid_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// reserve makes a reservation that must be granted.
func reserve(t *testing.T, l *hybrid.Limiter, key string, n int) *hybrid.Reservation {
	t.Helper()
	r, res, err := l.Reserve(t.Context(), key, n)
	if err != nil || r == nil || !res.Allowed {
		t.Fatalf("Reserve(%d): %v, %+v, %v", n, r, res, err)
	}
	return r
}

// left is what an admission by Redis would find: another process counts it.
func left(t *testing.T, b *bank, lim hybrid.Limit, key string) int {
	t.Helper()
	other := newLimiter(t, b, lim, hybrid.Options{Exact: true})
	defer closeLimiter(t, other)
	r, err := other.AllowN(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r.Remaining
}

// settled lets what goes back arrive.
func settled() {
	synctest.Wait()
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
}

func TestWAIT01_CancelGivesBackWhatWasTaken(t *testing.T) {
	inEachMode(t, hybrid.PerHour(20), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		first := reserve(t, l, "k", 12)
		second := reserve(t, l, "k", 5)
		third := reserve(t, l, "k", 2)
		if r, res, err := l.Reserve(t.Context(), "k", 2); err != nil || r != nil || res.Allowed || res.RetryAfter <= 0 {
			t.Errorf("more than there is: %v, %+v, %v", r, res, err)
		}
		for range 3 { // only the first counts
			if err := second.Cancel(t.Context()); err != nil {
				t.Error(err)
			}
		}
		settled()
		if got := admitted(t, l, "k", 10); got != 6 {
			t.Errorf("%d are left after the second is cancelled, want 6", got)
		}
		if err := errors.Join(first.Settle(t.Context(), 12), third.Settle(t.Context(), 2)); err != nil {
			t.Error(err)
		}
		settled()
		if got := admitted(t, l, "k", 10); got != 0 {
			t.Errorf("%d more after the others are settled as reserved, want none", got)
		}
	})
}

func TestReservationsAreSettled(t *testing.T) {
	lim := hybrid.PerHour(1000)
	inEachMode(t, lim, func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for _, tt := range []struct{ reserved, actual int }{{100, 40}, {100, 100}, {10, 60}, {0, 30}, {50, 0}} {
			if err := reserve(t, l, "k", tt.reserved).Settle(t.Context(), tt.actual); err != nil {
				t.Error(err)
			}
		}
		settled()
		if err := l.Refund(t.Context(), "k", 30); err != nil {
			t.Error(err)
		}
		settled()
		time.Sleep(10 * time.Second) // what lies idle goes back
		synctest.Wait()
		const spent = 40 + 100 + 60 + 30 - 30
		if got := left(t, b, lim, "k"); got < 1000-spent || got > 1000-spent+3 { // and what the rate has brought
			t.Errorf("%d left, want %d", got, 1000-spent)
		}
	})
}

// More than was reserved makes a debt: nothing is admitted until it is paid off, and it is not more than the burst.
func TestReservationsMayGoIntoDebt(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(100), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		r := reserve(t, l, "k", 100)
		if err := r.Settle(t.Context(), 201); !errors.Is(err, hybrid.ErrExceedsBurst) {
			t.Errorf("%v, want ErrExceedsBurst", err)
		}
		if err := r.Settle(t.Context(), 150); err != nil {
			t.Error(err)
		}
		settled()
		start := time.Now()
		for {
			res, err := l.Allow(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if res.Allowed {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if took := time.Since(start); took < 480*time.Millisecond || took > 620*time.Millisecond {
			t.Errorf("the next one is admitted after %v, want half a second", took)
		}
	})
}

// What was taken from memory and not reported yet is put back in memory: no call.
func TestSettlingInMemoryNeedsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerHour(10_000), hybrid.Options{LeaseSize: 500})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 1)
		calls := l.Stats().Calls
		for range 1000 {
			r := reserve(t, l, "k", 100)
			if err := r.Settle(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := l.Stats().Calls - calls; n != 0 {
			t.Errorf("%d calls", n)
		}
		if r := reserve(t, l, "k", 100); r.Settle(t.Context(), 120) != nil || l.Stats().Calls != calls {
			t.Error("twenty more than reserved are not taken from memory")
		}
	})
}

// Tokens that were reported as used have been refilled since: put back in memory they would be there twice.
func TestReservationsThatWereReportedAreNotPutBackInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newBank(), hybrid.PerSecond(100), hybrid.Options{LeaseSize: 50, MaxLeased: 0.5, LeaseTTL: time.Second})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 1)
		r := reserve(t, l, "k", 40)
		for l.Stats().Calls < 3 { // until the next lease is asked for
			allowed(t, l, "k", 1)
			synctest.Wait()
		}
		time.Sleep(480 * time.Millisecond)
		if err := r.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := admitted(t, l, "k", 200); n > 100 {
			t.Errorf("%d admitted at once, want at most the burst", n)
		}
	})
}

// Random histories of reservations, with replies that are lost: however they end, never more is spent than the bound
// allows, counting what is given back as given back when the bucket hears of it, or at once when it is put back in memory.
func TestReservationsKeepTheBound(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			lim := hybrid.PerSecond(200).WithBurst(100)
			b := newBank()
			var mu sync.Mutex
			b.Always(func(lease.Request) leasetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				f := leasetest.Fault{Delay: time.Duration(rng.IntN(5)) * time.Millisecond, Reply: time.Duration(rng.IntN(5)) * time.Millisecond}
				switch rng.IntN(100) {
				case 0:
					f.LoseReply = true
				case 1:
					f.LoseRequest = true
				}
				return f
			})
			var limiters []*hybrid.Limiter
			for i := range 3 {
				opts := []hybrid.Options{{LeaseSize: 25, MaxLeased: 0.5}, {}, {LeaseSize: 10}}[i]
				limiters = append(limiters, newLimiter(t, b, lim, opts))
			}
			// Counted as spent while it is reserved, and with what it was settled for afterwards: at no moment may more be
			// spent than Burst + Rate*t since the start, for nothing is given back before it was taken.
			var spent, worst float64
			start := time.Now()
			note := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				spent += float64(n)
				worst = max(worst, spent-100-200*time.Since(start).Seconds())
			}
			var wg sync.WaitGroup
			for _, l := range limiters {
				for range 8 {
					wg.Go(func() {
						for time.Since(start) < 3*time.Second {
							mu.Lock()
							n, actual, pause := 1+rng.IntN(3), max(0, rng.IntN(8)-5), time.Duration(rng.IntN(40))*time.Millisecond
							mu.Unlock()
							r, res, err := l.Reserve(t.Context(), "k", n)
							if err == nil && res.Allowed {
								note(n)
								time.Sleep(pause)
								actual = min(actual, n) // a debt is no admission
								if r2, err := l.Allow(t.Context(), "k"); err == nil && r2.Allowed {
									note(1)
								}
								if err := r.Settle(t.Context(), actual); err != nil {
									t.Error(err)
								}
								note(actual - n)
							} else {
								time.Sleep(pause + time.Millisecond)
							}
						}
					})
				}
			}
			wg.Wait()
			// What is put back is spent again by others: with the refunds counted at once, the sum holds up to what is on its
			// way back, which the bucket has not heard of: that only makes it less.
			if worst > 1 {
				t.Errorf("seed %d: %.1f tokens above the bound", seed, worst)
			}
			t.Logf("seed %d: %.0f spent, %.1f above", seed, spent, worst)
			if spent < 300 {
				t.Errorf("seed %d: only %.0f spent", seed, spent)
			}
			for _, l := range limiters {
				l.Close(t.Context())
			}
			time.Sleep(3 * time.Minute)
		})
	}
}

func TestReserveErrors(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(5), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for want, f := range map[error]func() error{
			hybrid.ErrInvalidKey:   func() error { _, _, err := l.Reserve(t.Context(), "", 1); return err },
			hybrid.ErrExceedsBurst: func() error { _, _, err := l.Reserve(t.Context(), "k", 6); return err },
			hybrid.ErrInvalidTokens: func() error {
				_, _, err := l.Reserve(t.Context(), "k", -1)
				return errors.Join(err, l.Refund(t.Context(), "k", -1), reserve(t, l, "k", 1).Settle(t.Context(), -1))
			},
		} {
			if err := f(); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		// A refund does not make more than the burst, nor does an empty one leave a trace.
		if err := errors.Join(l.Refund(t.Context(), "new", 0), l.Refund(t.Context(), "full", 5)); err != nil {
			t.Error(err)
		}
		settled()
		if n := admitted(t, l, "full", 20); n != 5 {
			t.Errorf("%d admitted after a refund to a full bucket, want 5", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newBank(), hybrid.PerSecond(5), hybrid.Options{})
		r := reserve(t, l, "k", 1)
		closeLimiter(t, l)
		if err := r.Cancel(t.Context()); !errors.Is(err, hybrid.ErrClosed) {
			t.Errorf("Cancel after Close: %v", err)
		}
		if err := l.Refund(t.Context(), "k", 1); !errors.Is(err, hybrid.ErrClosed) {
			t.Errorf("Refund after Close: %v", err)
		}
	})
}

// keysOf are handles of the same key on several limiters.
func keysOf(key string, limiters ...*hybrid.Limiter) (keys []*hybrid.Key) {
	for _, l := range limiters {
		keys = append(keys, l.Key(key))
	}
	return keys
}

func TestMULTI01_AllOrNone(t *testing.T) {
	inEachMode(t, hybrid.PerHour(100), func(t *testing.T, b *bank, day *hybrid.Limiter, exact bool) {
		second := newLimiter(t, newBank(), hybrid.PerSecond(5), hybrid.Options{})
		defer closeLimiter(t, second)
		keys := keysOf("k", day, second)
		for range 5 {
			if r, i, err := hybrid.TakeAll(t.Context(), 1, keys...); err != nil || i != -1 || !r.Allowed {
				t.Fatalf("%+v, %d, %v", r, i, err)
			}
		}
		for range 50 {
			if r, i, err := hybrid.TakeAll(t.Context(), 1, keys...); err != nil || i != 1 || r.Allowed || r.RetryAfter <= 0 || r.RetryAfter > time.Second {
				t.Fatalf("%+v, %d, %v; want a denial by the second", r, i, err)
			}
		}
		settled()
		if n := admitted(t, day, "k", 200); n != 95 {
			t.Errorf("%d left of the other, want 95: denied requests were charged", n)
		}
		if r, i, err := hybrid.TakeAll(t.Context(), 1, keys...); err != nil || r.Allowed || r.RetryAfter < 30*time.Second {
			t.Errorf("%+v, %d, %v; want the longest wait of both", r, i, err)
		}
	})
}

// In whichever order they are given, and whether the one that denies is asked or remembers.
func TestMULTI01_EitherOrder(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		inEachMode(t, hybrid.PerHour(10), func(t *testing.T, b *bank, many *hybrid.Limiter, exact bool) {
			other := newBank()
			few := newLimiter(t, other, hybrid.PerHour(2), hybrid.Options{Exact: exact})
			defer closeLimiter(t, few)
			both := keysOf("k", many, few)
			passed := 0
			for range 5 {
				if r, _, err := hybrid.TakeAll(t.Context(), 1, both[order[0]], both[order[1]]); err != nil {
					t.Fatal(err)
				} else if r.Allowed {
					passed++
				}
				settled()
			}
			if a, b := admitted(t, many, "k", 20), admitted(t, few, "k", 20); passed != 2 || a != 8 || b != 0 {
				t.Errorf("%v: %d passed, %d and %d are left, want 2, 8 and 0", order, passed, a, b)
			}
		})
	}
}

// Of a key whose answer is lost it is not known whether it was charged, so nothing goes back there. What was taken from
// the other goes back, unless the request that says so is lost too: then it is missed, once.
func TestMULTI02_UnclearOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newBank(), newBank()
		lim := hybrid.PerHour(20)
		a := newLimiter(t, first, lim, hybrid.Options{Exact: true})
		b := newLimiter(t, second, lim, hybrid.Options{Exact: true})
		defer closeLimiter(t, a)
		defer closeLimiter(t, b)
		for i, tt := range []struct {
			refund      leasetest.Fault
			left, other int64 // in the buckets afterwards
		}{{leasetest.Fault{}, 20, 19}, {leasetest.Fault{LoseRequest: true}, 19, 18}, {leasetest.Fault{LoseReply: true}, 19, 17}} {
			first.Next(leasetest.Fault{}, tt.refund)
			second.Next(leasetest.Fault{LoseReply: true})
			if _, _, err := hybrid.TakeAll(t.Context(), 1, a.Key("a"), b.Key("b")); !errors.Is(err, hybrid.ErrUnavailable) {
				t.Fatalf("%d: %v", i, err)
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got, other := first.level("a", lim), second.level("b", lim); got != tt.left || other != tt.other {
				t.Errorf("%d: %d and %d are left, want %d and %d", i, got, other, tt.left, tt.other)
			}
		}
	})
}

func TestMULTI02_ConcurrentCallersLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		user := newLimiter(t, newBank(), hybrid.PerHour(50), hybrid.Options{LeaseSize: 5})
		tenant := newLimiter(t, newBank(), hybrid.PerHour(80), hybrid.Options{})
		defer closeLimiter(t, user)
		defer closeLimiter(t, tenant)
		var passed int
		var mu sync.Mutex
		for round := range 30 {
			var wg sync.WaitGroup
			for i := range 10 {
				keys := []*hybrid.Key{tenant.Key("t"), user.Key([]string{"a", "b"}[i%2])}
				wg.Go(func() {
					r, _, err := hybrid.TakeAll(t.Context(), 1, keys...)
					if err != nil {
						t.Error(err)
					}
					if r.Allowed {
						mu.Lock()
						passed++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			settled()
			if round%5 == 4 {
				time.Sleep(2 * time.Second) // past the memory of refusals
			}
		}
		if passed < 78 || passed > 81 {
			t.Errorf("%d passed, want 80", passed)
		}
	})
}

func TestTakeAllErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLimiter(t, newBank(), hybrid.PerHour(10), hybrid.Options{})
		small := newLimiter(t, newBank(), hybrid.PerHour(2), hybrid.Options{})
		defer closeLimiter(t, a)
		defer closeLimiter(t, small)
		if _, _, err := hybrid.TakeAll(t.Context(), 1); !errors.Is(err, hybrid.ErrInvalid) {
			t.Errorf("no keys: %v", err)
		}
		if _, i, err := hybrid.TakeAll(t.Context(), 1, a.Key("k"), nil); !errors.Is(err, hybrid.ErrInvalid) || i != -1 {
			t.Errorf("a nil key: %d, %v", i, err)
		}
		for _, bad := range []limit.Limiter{hybrid.All(), hybrid.All(a, nil), hybrid.All(nil, a)} {
			if _, err := bad.Allow(t.Context(), "k"); !errors.Is(err, hybrid.ErrInvalid) {
				t.Errorf("All without, or with a nil limiter: %v", err)
			}
			_ = bad.(limit.Describer).LimitOf("k") // does not panic
		}
		if _, i, err := hybrid.TakeAll(t.Context(), 3, keysOf("k", a, small)...); !errors.Is(err, hybrid.ErrExceedsBurst) || i != -1 {
			t.Errorf("too much for one: %d, %v", i, err)
		}
		if _, _, err := hybrid.TakeAll(t.Context(), 1, a.Key("k"), small.Key("")); !errors.Is(err, hybrid.ErrInvalidKey) {
			t.Errorf("a bad key: %v", err)
		}
		settled()
		if n := admitted(t, a, "k", 20); n != 10 {
			t.Errorf("%d left, want 10: an error has charged", n)
		}
		both := hybrid.All(small, small)
		if r, err := both.Allow(t.Context(), "twice"); err != nil || !r.Allowed {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := both.Allow(t.Context(), "twice"); err != nil || r.Allowed {
			t.Errorf("a key that is there twice pays twice: %+v, %v", r, err)
		}
		if r, err := both.AllowN(t.Context(), "more", 2); !errors.Is(err, hybrid.ErrExceedsBurst) {
			t.Errorf("twice 2 of a burst of 2 can never be had: %+v, %v", r, err)
		}
		if lim := both.(limit.Describer).LimitOf("k"); lim != hybrid.PerHour(2) {
			t.Errorf("limit %v", lim)
		}
	})
}

func TestShadowCountsAndAllows(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts.Shadow = true
				l := newLimiter(t, newBank(), hybrid.PerHour(10), opts)
				defer closeLimiter(t, l)
				k := l.Key("k")
				for i := range 100 {
					r, err := k.Allow(t.Context())
					if err != nil || !r.Allowed || r.RetryAfter != 0 {
						t.Fatalf("%d: %+v, %v", i, r, err)
					}
				}
				if err := l.Wait(t.Context(), "k"); err != nil {
					t.Error(err)
				}
				if r, res, err := l.Reserve(t.Context(), "k", 2); err != nil || r == nil || !res.Allowed || r.Settle(t.Context(), 1) != nil {
					t.Errorf("%+v, %v", res, err)
				}
				if n := l.Stats().Shadowed; n != 92 {
					t.Errorf("%d shadowed, want 92", n)
				}
			})
		})
	}
}

// What comes back takes nothing from others, however much it is said to be, and comes back though the request has ended.
func TestLEASE08_WhatComesBackIsNotMoreThanWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := hybrid.PerHour(100)
		b := newBank()
		a := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 20, LeaseTTL: time.Minute})
		other := newLimiter(t, b, lim, hybrid.Options{Exact: true})
		defer closeLimiter(t, a)
		defer closeLimiter(t, other)
		r := reserve(t, a, "k", 20)
		time.Sleep(2 * time.Minute) // longer than any lease lives
		allowed(t, other, "k", 30)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Settle(ended, 5); err != nil {
			t.Error(err)
		}
		settled()
		if got := left(t, b, lim, "k"); got < 65 || got > 69 { // and what two minutes have brought
			t.Errorf("%d left, want 65: 5 and 30 are used", got)
		}
		if err := a.Refund(ended, "k", 500); err != nil { // by mistake
			t.Error(err)
		}
		settled()
		if got := left(t, b, lim, "k"); got != 100 {
			t.Errorf("%d left after a refund of 500, want the burst", got)
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
