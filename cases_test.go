package hybrid_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// The cases of this file were once bugs of other limiters. Where one is about leases from windows, the point of it is
// applied to the bucket.

// inEachMode runs a test with a limiter of each mode in a bubble of its own.
func inEachMode(t *testing.T, lim limit.Limit, f func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool)) {
	t.Helper()
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, lim, opts)
				defer closeLimiter(t, l)
				f(t, b, l, opts.Exact)
			})
		})
	}
}

// sleepUntil waits until some time after start.
func sleepUntil(start time.Time, after time.Duration) { time.Sleep(time.Until(start.Add(after))) }

// few checks a count that is exact where Redis decides, and where denials are remembered for some time may be a little
// less, but never more.
func few(t *testing.T, what string, got, want, less int, exact bool) {
	t.Helper()
	if exact {
		less = 0
	}
	if got > want || got < want-less {
		t.Errorf("%s: admitted %d, want %d", what, got, want)
	}
}

func TestLEASE01_LeasesDoNotAddToWhatTheNextPeriodAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerMinute(5000)
		var nodes []*hybrid.Limiter
		for range 10 {
			nodes = append(nodes, newLimiter(t, b, lim, hybrid.Options{LeaseSize: 10}))
		}
		start := time.Now()
		sleepUntil(start, 59900*time.Millisecond)
		for _, n := range nodes {
			allowed(t, n, "k", 1)
		}
		sleepUntil(start, time.Minute)
		var e leasetest.Envelope
		for at := time.Minute; at < 2*time.Minute; at += 50 * time.Millisecond {
			sleepUntil(start, at)
			for _, n := range nodes {
				for ask(t, n, "k", 1).Allowed {
					e.Add(b.Now(), 1)
				}
			}
		}
		if w := e.Worst(lim); w.Excess > 0 {
			t.Error(w)
		}
		if got := e.Admitted(); got > 5000+5000 || got < 9900 {
			t.Errorf("admitted %d in a minute, want 5000 at once and 5000 in the minute", got)
		}
		for _, n := range nodes {
			closeLimiter(t, n)
		}
	})
}

func TestLEASE02_WhatIsTakenIsServedOrHeld(t *testing.T) {
	for _, size := range []int{0, 1, 3, 5, 25, 100} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := limit.Limit{Rate: 100, Period: time.Hour, Burst: 100}
				l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: size})
				for i := range 23 {
					allowed(t, l, "k", 1)
					synctest.Wait()
					g, held := b.look("k", lim), l.Stats().Held
					if taken := 100 - g.Level; taken != int64(i+1)+held {
						t.Errorf("after %d requests %d are taken and %d held", i+1, taken, held)
					}
					if held > 25 {
						t.Errorf("%d tokens are held", held)
					}
				}
				closeLimiter(t, l)
				if g := b.look("k", lim); g.Level != 77 || g.Lent != 0 {
					t.Errorf("after Close: %d in the bucket and %d lent, want 77 and none", g.Level, g.Lent)
				}
			})
		})
	}
}

func TestLEASE03_LimitersOfOneProcessKeepApart(t *testing.T) {
	start := time.UnixMilli(1_800_000_000_000)
	one, rdb1 := redistest.NewMini(t, start)
	two, rdb2 := redistest.NewMini(t, start)
	lim := hybrid.PerHour(1000)
	a, err := hybrid.New(rdb1, lim, hybrid.Options{LeaseSize: 5, LeaseTTL: time.Minute, Prefix: "a:", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b, err := hybrid.New(rdb2, lim, hybrid.Options{LeaseSize: 50, LeaseTTL: 10 * time.Minute, Prefix: "b:", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		allowed(t, a, "u", 1)
		allowed(t, b, "u", 1)
	}
	if a.Stats().Calls <= 3 || b.Stats().Calls != 1 {
		t.Errorf("%d calls for leases of 5, %d for leases of 50", a.Stats().Calls, b.Stats().Calls)
	}
	closeLimiter(t, a)
	closeLimiter(t, b)
	for i, m := range []interface {
		Keys() []string
		HGet(key, field string) string
	}{one, two} {
		key := []string{"a:{u}tb1", "b:{u}tb1"}[i]
		if keys := m.Keys(); !slices.Equal(keys, []string{key}) {
			t.Errorf("server %d has %q", i+1, keys)
		}
		if n := m.HGet(key, "n"); n != "980" {
			t.Errorf("server %d: the bucket holds %s tokens, want 980", i+1, n)
		}
	}
}

func TestLEASE05_ASlowClientOfTwoNodesIsNeverDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := limit.Limit{Rate: 5, Period: 10 * time.Second, Burst: 5}
		nodes := []*hybrid.Limiter{
			newLimiter(t, b, lim, hybrid.Options{LeaseSize: 2}), newLimiter(t, b, lim, hybrid.Options{LeaseSize: 2}),
		}
		for i := range 150 {
			allowed(t, nodes[i%2], "k", 1)
			time.Sleep(4 * time.Second)
		}
		for _, n := range nodes {
			closeLimiter(t, n)
		}
	})
}

func TestLEASE06_AnIdleNodeDoesNotKeepTokensFromABusyOne(t *testing.T) {
	for _, opts := range []hybrid.Options{{LeaseSize: 10}, {LeaseSize: 10, MaxLeased: 1}, {}} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			lim := hybrid.PerSecond(10)
			idle, busy := newLimiter(t, b, lim, opts), newLimiter(t, b, lim, opts)
			var e leasetest.Envelope
			note := func(ok bool) int {
				if !ok {
					return 0
				}
				e.Add(b.Now(), 1)
				return 1
			}
			start := time.Now()
			note(ask(t, idle, "k", 1).Allowed)
			first, late := time.Duration(0), 0
			for at := 50 * time.Millisecond; at < 11*time.Second; at += 50 * time.Millisecond {
				sleepUntil(start, at)
				n := note(ask(t, busy, "k", 1).Allowed)
				if n > 0 && first == 0 {
					first = at
				}
				if at >= time.Second {
					late += n
				}
			}
			if first > 150*time.Millisecond {
				t.Errorf("%+v: the first success came after %v", opts, first)
			}
			if late < 90 {
				t.Errorf("%+v: %d in the ten seconds from the first on, want 90", opts, late)
			}
			if w := e.Worst(lim); w.Excess > 0 {
				t.Error(w)
			}
			closeLimiter(t, idle)
			closeLimiter(t, busy)
		})
	}
}

func TestLEASE07_WhatHasEndedIsSeenOnRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerMinute(60)
		l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 8, LeaseTTL: 5 * time.Millisecond}) // shorter than the janitor's round
		allowed(t, l, "lease", 1)
		admitted(t, l, "dry", 60)
		denied(t, l, "dry", 1)
		if l.Stats().Held != 7 {
			t.Fatalf("%+v", l.Stats())
		}
		time.Sleep(7 * time.Millisecond)
		if l.Stats().Held != 0 {
			t.Errorf("a lease that has ended counts: %+v", l.Stats())
		}
		if r := allowed(t, l, "lease", 1); r.Origin != hybrid.Remote {
			t.Errorf("%+v: a token of a lease that has ended was spent", r)
		}
		time.Sleep(2 * time.Second)
		if r := allowed(t, l, "dry", 1); r.Origin != hybrid.Remote {
			t.Errorf("%+v", r)
		}
		closeLimiter(t, l)
	})
}

// Tokens of a lease that has just ended are not missed: the bucket still knows the lease, and takes them back.
func TestTokensOfALeaseThatHasJustEndedComeBack(t *testing.T) {
	for _, idle := range []time.Duration{7 * time.Millisecond, 25 * time.Millisecond, 80 * time.Millisecond, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			lim := hybrid.PerSecond(1000).WithBurst(40)
			l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 10, LeaseTTL: 5 * time.Millisecond})
			defer closeLimiter(t, l)
			allowed(t, l, "k", 1)
			if l.Stats().Held != 9 {
				t.Fatalf("%+v", l.Stats())
			}
			time.Sleep(idle)
			if got := b.level("k", lim); idle > 20*time.Millisecond && got != 40 {
				t.Errorf("after %v the bucket holds %d tokens for others, want 40", idle, got)
			}
			if r := ask(t, l, "k", 40); !r.Allowed {
				t.Errorf("after %v: %+v", idle, r)
			}
		})
	}
}

// Without callers nothing is asked for while Redis is away, and when it is back all is well at once.
func TestLEASE09_AnOutageMakesNobodySpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerSecond(100), hybrid.Options{})
		for range 1000 {
			ask(t, l, "k", 1)
			time.Sleep(5 * time.Millisecond)
		}
		b.Down(errors.New("away"))
		for range 10 {
			l.Allow(t.Context(), "k")
		}
		calls := b.Calls()
		time.Sleep(10 * time.Second)
		if n := b.Calls() - calls; n > 20 {
			t.Errorf("%d attempts in ten seconds that nobody waited for", n)
		}
		b.Down(nil)
		recovered(t, l)
		allowed(t, l, "k", 1)
		closeLimiter(t, l)
	})
}

func TestCONC07_StartsWithoutASourceAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.Down(errors.New("not there yet"))
		l := newLimiter(t, b, hybrid.PerMinute(10), hybrid.Options{})
		for range 5 {
			if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, hybrid.ErrUnavailable) {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		b.Down(nil)
		recovered(t, l)
		if got := admitted(t, l, "k", 20); got != 10 {
			t.Errorf("admitted %d, want 10", got)
		}
		closeLimiter(t, l)
	})
}

func TestOVER03_ASteadyClientGetsTheRate(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(3), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		got := 0
		for range 101 {
			got += admitted(t, l, "k", 1)
			time.Sleep(100 * time.Millisecond)
		}
		few(t, "33 in ten seconds", got, 33, 3, exact)
	})
}

func TestOVER04_IdleTimeIsCreditedOnceAndUpToTheBurst(t *testing.T) {
	for _, size := range []int{1, 3} {
		inEachMode(t, hybrid.PerSecond(1).WithBurst(size), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			allowed(t, l, "k", 1)
			time.Sleep(30 * time.Second)
			if got := admitted(t, l, "k", 10); got != size {
				t.Errorf("admitted %d, want %d", got, size)
			}
			for range 3 {
				time.Sleep(time.Second)
				allowed(t, l, "k", 1)
			}
			time.Sleep(100 * time.Millisecond)
			if got := admitted(t, l, "k", 5); got != 0 {
				t.Errorf("admitted %d more", got)
			}
		})
	}
}

func TestOVER05_ConcurrentCallersShareTheLastTokens(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			opts.Timeout = time.Minute
			l := newLimiter(t, newSlowSource(), limit.Limit{Rate: 1, Period: 1000 * time.Second, Burst: 10}, opts)
			var ok, no atomic.Int64
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for range 100 {
						r, err := l.Allow(t.Context(), "k")
						switch {
						case err != nil:
							t.Error(err)
						case r.Allowed:
							ok.Add(1)
						default:
							no.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if ok.Load() != 10 || no.Load() != 6390 {
				t.Errorf("%d admitted, %d denied, want 10 and 6390", ok.Load(), no.Load())
			}
			closeLimiter(t, l)
		})
	}
}

func TestOVER08_NoDoubleBurstAroundAnEdge(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(60), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		sleepUntil(start, 59*time.Second)
		if got := admitted(t, l, "k", 60); got != 60 {
			t.Errorf("admitted %d, want 60", got)
		}
		sleepUntil(start, 60*time.Second)
		few(t, "a second later", admitted(t, l, "k", 60), 1, 1, exact)
	})
}

func TestOVER09_BurstAndRateAddUp(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(15), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		got := admitted(t, l, "k", 15)
		start := time.Now()
		for at := 50 * time.Millisecond; at < time.Minute; at += 50 * time.Millisecond {
			sleepUntil(start, at)
			got += admitted(t, l, "k", 1)
		}
		few(t, "in the first minute", got, 29, 1, exact)
	})
}

func TestOVER12_PrefixesKeepLimitersApart(t *testing.T) {
	_, rdb := redistest.NewMini(t, time.UnixMilli(1_800_000_000_000))
	short, err := hybrid.New(rdb, hybrid.PerSecond(10), hybrid.Options{Prefix: "s:", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	long, err := hybrid.New(rdb, hybrid.PerHour(30), hybrid.Options{Prefix: "h:", Timeout: time.Minute, Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		allowed(t, short, "u1", 1)
		if r := allowed(t, long, "u1", 1); r.Remaining != 29-i {
			t.Errorf("round %d: %d remain, want %d", i+1, r.Remaining, 29-i)
		}
	}
	closeLimiter(t, short)
	closeLimiter(t, long)
}

func TestOVER14_ASmallBurstIsKept(t *testing.T) {
	for _, rate := range []int{3, 1000} {
		inEachMode(t, hybrid.PerSecond(rate).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			if got := admitted(t, l, "k", 10); got != 1 {
				t.Errorf("admitted %d, want 1", got)
			}
			if s := b.State("k"); s.Deadline <= b.Now() {
				t.Errorf("the key is gone at once: %+v", s)
			}
			if rate == 3 {
				time.Sleep(333 * time.Millisecond)
				denied(t, l, "k", 1)
				time.Sleep(time.Millisecond)
				if exact {
					allowed(t, l, "k", 1)
				}
			}
		})
	}
}

func TestUNDER01_DenialsDoNotEatTheRefill(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(20).WithBurst(1200), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		if got := admitted(t, l, "k", 1300); got != 1200 {
			t.Fatalf("admitted %d, want 1200", got)
		}
		start, got := time.Now(), 0
		for i := range 1000 {
			sleepUntil(start, time.Duration(i+1)*10*time.Millisecond)
			got += admitted(t, l, "k", 1)
		}
		few(t, "in ten seconds", got, 200, 20, exact)
	})
}

func TestUNDER02_LargeRatesAreNotTruncated(t *testing.T) {
	for _, rate := range []int{65_535, 999_983, 1_000_000_007} {
		inEachMode(t, hybrid.PerSecond(rate), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			for range 20 {
				if r := allowed(t, l, "k", 1); r.Remaining != rate-1 && exact || r.Remaining < rate-40 {
					t.Errorf("%d remain, want %d", r.Remaining, rate-1)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}

func TestUNDER03_RefusedRequestsLeaveNoDebt(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(10).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		allowed(t, l, "k", 1)
		for i := range 99 {
			sleepUntil(start, time.Duration(i+1)*time.Millisecond)
			if o := burst(t.Context(), l, "k", 10); o.allowed.Load() != 0 {
				t.Fatalf("%v after %v", o, time.Since(start))
			}
		}
		sleepUntil(start, 100*time.Millisecond)
		r := ask(t, l, "k", 1)
		if !r.Allowed {
			if exact {
				t.Errorf("%+v", r)
			}
			time.Sleep(r.RetryAfter)
			allowed(t, l, "k", 1)
		}
	})
}

func TestUNDER05_LongIdleTimes(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1_000_000), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		const day = 24 * time.Hour
		for _, idle := range []time.Duration{0, 12 * time.Hour, 400 * day, 100 * 365 * day} {
			time.Sleep(idle)
			if r := allowed(t, l, "k", 1); r.Remaining != 999_999 {
				t.Errorf("after %v: %d remain", idle, r.Remaining)
			}
		}
	})
}

func TestUNDER06_RatesBelowOnePerSecond(t *testing.T) {
	inEachMode(t, hybrid.PerHour(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		allowed(t, l, "k", 1)
		for _, at := range []time.Duration{1800 * time.Second, 3599 * time.Second} {
			sleepUntil(start, at)
			if r := denied(t, l, "k", 1); r.RetryAfter != time.Hour-at {
				t.Errorf("after %v: %+v", at, r)
			}
		}
		sleepUntil(start, time.Hour)
		allowed(t, l, "k", 1)
	})
	inEachMode(t, hybrid.Every(2*time.Second), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 1)
		time.Sleep(time.Second)
		if r := denied(t, l, "k", 1); r.RetryAfter != time.Second {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Second)
		allowed(t, l, "k", 1)
	})
	inEachMode(t, hybrid.PerDay(100_000), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 100_000)
		denied(t, l, "k", 1)
	})
}

func TestRETRY02_APartOfATokenCounts(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		allowed(t, l, "k", 1)
		for _, at := range []time.Duration{200 * time.Millisecond, 999 * time.Millisecond} {
			sleepUntil(start, at)
			if r := denied(t, l, "k", 1); exact && r.RetryAfter != time.Second-at || r.RetryAfter < time.Second-at {
				t.Errorf("after %v: %+v", at, r)
			}
		}
	})
}

func TestCOST01_MoreThanTheBurstIsAnErrorOfItsOwn(t *testing.T) {
	inEachMode(t, hybrid.PerHour(300), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		if _, err := l.AllowN(t.Context(), "k", 301); !errors.Is(err, hybrid.ErrExceedsBurst) {
			t.Error(err)
		}
		if b.State("k").Exists {
			t.Error("it left a trace")
		}
		if r := allowed(t, l, "k", 1); r.Remaining != 299 {
			t.Errorf("%d remain, want 299", r.Remaining)
		}
	})
}

func TestCOST05_ARefusedRequestConsumesNothing(t *testing.T) {
	inEachMode(t, limit.Limit{Rate: 1, Period: 1000 * time.Second, Burst: 10}, func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for i, s := range []struct {
			n, remaining int
			ok           bool
		}{{8, 2, true}, {5, 2, false}, {1, 1, true}, {1, 0, true}, {1, 0, false}} {
			if r := ask(t, l, "k", s.n); r.Allowed != s.ok || r.Remaining != s.remaining {
				t.Errorf("step %d, n = %d: %+v, want %v with %d left", i+1, s.n, r, s.ok, s.remaining)
			}
			synctest.Wait() // while a lease comes in, what remains is an estimate
		}
	})
}

func TestCOST06_NoCostRoundsToNothing(t *testing.T) {
	for _, rate := range []int{1_000_000_001, 2_000_000_000} {
		inEachMode(t, hybrid.PerSecond(rate).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			if got := admitted(t, l, "k", 10); got != 1 {
				t.Errorf("%d/s: admitted %d, want 1", rate, got)
			}
		})
	}
}

func TestRATE04_WaitsThatNeverEnd(t *testing.T) {
	inEachMode(t, hybrid.Every(280*365*24*time.Hour), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 1)
		for range 3 {
			if r := denied(t, l, "k", 1); r.RetryAfter < 279*365*24*time.Hour {
				t.Errorf("%+v", r)
			}
			time.Sleep(time.Second)
		}
	})
	if _, err := hybrid.NewFrom(newBank(), limit.Limit{Rate: 1, Period: 24 * 365 * time.Hour, Burst: 1000}, hybrid.Options{}); !errors.Is(err, hybrid.ErrInvalid) {
		t.Errorf("a burst that takes 1000 years: %v", err)
	}
}

// Whatever rate, period and burst: refused by New, or it works and the key has a time to live.
func TestRATE10_AnyMixIsRefusedOrWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates, bursts := []int{1, 120, 1e6, 1e9}, []int{1, 1e9}
		works := 0
		for _, rate := range rates {
			for _, period := range []time.Duration{1, time.Microsecond, time.Second, 24 * time.Hour, 3650 * 24 * time.Hour} {
				for _, size := range bursts {
					lim := limit.Limit{Rate: rate, Period: period, Burst: size}
					for name, opts := range modes() {
						b := newBank()
						l, err := hybrid.NewFrom(b, lim, opts)
						if err != nil {
							if !errors.Is(err, hybrid.ErrInvalid) {
								t.Errorf("%v: %v", lim, err)
							}
							continue
						}
						works++
						what := fmt.Sprintf("%+v %s", lim, name)
						r := ask(t, l, "k", 1)
						s := b.State("k")
						if left := s.Deadline - b.Now(); !r.Allowed || left < 1000 || left > 300*365*24*time.Hour.Microseconds() {
							t.Errorf("%s: %+v, lives %dµs", what, r, left)
						}
						closeLimiter(t, l)
					}
				}
			}
		}
		if works < 100 {
			t.Errorf("%d mixes work", works)
		}
	})
}

func TestKEY05_RequestsDoNotMixKeys(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for i, s := range []struct {
			key string
			ok  bool
		}{{"A", true}, {"B", true}, {"A", false}, {"C", true}} {
			if r := ask(t, l, s.key, 1); r.Allowed != s.ok {
				t.Errorf("request %d for %s: %+v", i+1, s.key, r)
			}
		}
		var wg sync.WaitGroup
		var ok [50]atomic.Int64
		for i := range 50 * 4 {
			wg.Go(func() {
				if ask(t, l, "p"+strconv.Itoa(i%50), 1).Allowed {
					ok[i%50].Add(1)
				}
			})
		}
		wg.Wait()
		for i := range ok {
			if ok[i].Load() != 1 {
				t.Errorf("key p%d: admitted %d, want 1", i, ok[i].Load())
			}
		}
	})
}

func TestTTL03_KeysLiveUntilTheBucketIsFull(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(60), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for n := range 60 {
			allowed(t, l, "k", 1)
			left := time.Duration(b.State("k").Deadline-b.Now()) * time.Microsecond
			if full := time.Duration(n+1) * time.Second; left < full || left > time.Minute+35*time.Second {
				t.Errorf("with %d tokens gone the key lives %v", n+1, left)
			}
		}
		time.Sleep(2 * time.Minute)
		if b.State("k").Exists {
			t.Error("the key is still there")
		}
	})
}

func TestTTL07_ManyKeysStayWithinMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		n := 30_000
		if underRace || testing.Short() {
			n = 5_000
		}
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{MaxKeys: 500, LeaseSize: 5})
		for i := range n {
			allowed(t, l, strconv.Itoa(i), 1)
			if keys := l.Stats().Keys; keys > 500 {
				t.Fatalf("%d keys", keys)
			}
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		synctest.Wait()
		if held := l.Stats().Held; held > 500*5 {
			t.Errorf("holds %d tokens", held)
		}
		closeLimiter(t, l)
		conserved(t, l, 0)
	})
}
