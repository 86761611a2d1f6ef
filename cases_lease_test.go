package hybrid_test

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

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
