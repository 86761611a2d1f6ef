package hybrid_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

func setLimit(t *testing.T, l *hybrid.Limiter, lim limit.Limit) {
	t.Helper()
	if err := l.SetLimit(lim); err != nil {
		t.Fatalf("SetLimit(%v): %v", lim, err)
	}
}

// switchable is a LimitFor whose answer a test can change.
type switchable struct{ answer atomic.Pointer[limit.Limit] }

func (s *switchable) set(lim limit.Limit) { s.answer.Store(&lim) }

func (s *switchable) limitFor(string) limit.Limit { return *s.answer.Load() }

func TestLimitForGivesTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		tiers := map[string]limit.Limit{
			"gold": hybrid.PerMinute(50), "free": hybrid.PerMinute(2),
			"admin": hybrid.Unlimited(), "banned": hybrid.Blocked(),
		}
		l := newLimiter(t, b, hybrid.PerMinute(10), hybrid.Options{LimitFor: func(key string) limit.Limit { return tiers[key] }})
		defer closeLimiter(t, l)
		for key, want := range map[string]int{"gold": 50, "free": 2, "admin": 99, "banned": 0, "somebody": 10} {
			if got := admitted(t, l, key, 99); got != want {
				t.Errorf("%s: admitted %d of 99, want %d", key, got, want)
			}
			lim := l.LimitOf(key)
			if want, ok := tiers[key]; ok && lim != want || !ok && lim != hybrid.PerMinute(10) {
				t.Errorf("%s: LimitOf is %v", key, lim)
			}
		}
		if n := b.Calls("admin", "banned"); n != 0 {
			t.Errorf("Unlimited and Blocked keys were asked for %d times", n)
		}
	})
}

func TestLimitForInvalidAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		var s switchable
		bad := limit.Limit{Rate: -3, Period: time.Second, Burst: 5}
		l := newLimiter(t, b, hybrid.PerSecond(10), hybrid.Options{LimitFor: s.limitFor})
		defer closeLimiter(t, l)
		s.set(bad)
		for _, n := range []int{0, 1, -1} {
			if r, err := l.AllowN(t.Context(), "k", n); !errors.Is(err, hybrid.ErrInvalid) || r != (limit.Result{}) {
				t.Errorf("first sight, n = %d: %+v, %v", n, r, err)
			}
		}
		if _, err := l.Key("k").Allow(t.Context()); !errors.Is(err, hybrid.ErrInvalid) {
			t.Errorf("first sight by handle: %v", err)
		}
		if n, lim := b.Calls(), l.LimitOf("k"); n != 0 || lim != (limit.Limit{}) {
			t.Errorf("%d calls, LimitOf %v", n, lim)
		}
		s.set(hybrid.PerSecond(5))
		if got := admitted(t, l, "k", 9); got != 5 {
			t.Errorf("admitted %d, want 5", got)
		}
		s.set(bad) // the last good one stays
		time.Sleep(5 * time.Second)
		if got := admitted(t, l, "k", 9); got != 5 {
			t.Errorf("after a bad answer: admitted %d, want 5", got)
		}
	})
}

func TestLimitForAloneNeedsNoOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s switchable
		s.set(hybrid.PerSecond(5))
		l := newLimiter(t, newBank(), limit.Limit{}, hybrid.Options{LimitFor: s.limitFor})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 1)
		s.set(limit.Limit{}) // stands for the limiter's own, which there is not
		if _, err := l.Allow(t.Context(), "other"); !errors.Is(err, hybrid.ErrInvalid) {
			t.Errorf("no limit at all: %v", err)
		}
	})
}

// A change of what LimitFor says is seen when Redis is asked next, and soon where it would not be asked.
func TestLimitForChangesAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		var s switchable
		s.set(hybrid.PerSecond(100))
		l := newLimiter(t, b, hybrid.PerSecond(7), hybrid.Options{LimitFor: s.limitFor})
		defer closeLimiter(t, l)
		steps := []struct {
			lim  limit.Limit
			want int // of 200 at once, after ten seconds
		}{
			{hybrid.PerSecond(100), 100},
			{hybrid.PerSecond(20), 20},
			{hybrid.Blocked(), 0},
			{hybrid.PerSecond(150), 150},
			{hybrid.Unlimited(), 200},
			{limit.Limit{}, 7},
			{hybrid.Blocked(), 0},
			{hybrid.Unlimited(), 200},
			{hybrid.PerSecond(3), 3},
		}
		k := l.Key("k")
		for _, step := range steps {
			s.set(step.lim)
			for range 10 { // under some load
				time.Sleep(time.Second / 2)
				k.Allow(t.Context())
			}
			time.Sleep(5 * time.Second)
			got := 0
			for range 200 {
				if r, err := k.Allow(t.Context()); err != nil {
					t.Fatal(err)
				} else if r.Allowed {
					got++
				}
			}
			if got != step.want {
				t.Errorf("%v: admitted %d of 200, want %d", step.lim, got, step.want)
			}
		}
	})
}

func TestSetLimitInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newBank(), hybrid.PerMinute(3), hybrid.Options{})
		defer closeLimiter(t, l)
		for _, lim := range []limit.Limit{{}, {Rate: 1}, {Rate: 1, Period: time.Second}, {Rate: -1, Period: time.Second, Burst: 1}} {
			if err := l.SetLimit(lim); !errors.Is(err, hybrid.ErrInvalid) {
				t.Errorf("SetLimit(%+v): %v", lim, err)
			}
		}
		if got := l.LimitOf("k"); got != hybrid.PerMinute(3) {
			t.Errorf("the limit is %v", got)
		}
	})
}

func TestRATE06_LoweringKeepsWhatFits(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, hybrid.PerSecond(10), opts)
				defer closeLimiter(t, l)
				for range 3 {
					allowed(t, l, "k", 1)
				}
				setLimit(t, l, hybrid.PerSecond(5))
				synctest.Wait() // what was lent under the old limit has gone back
				if r := ask(t, l, "k", 0); r.Remaining != 5 {
					t.Errorf("%d remain, want 5", r.Remaining)
				}
				if held := l.Stats().Held; held > 5 {
					t.Errorf("holds %d tokens of a burst of 5", held)
				}
				if got := admitted(t, l, "k", 9); got != 5 {
					t.Errorf("admitted %d, want 5", got)
				}
			})
		})
	}
}

// What others hold at a lowering is good until their leases end, and no longer.
func TestRATE06_LoweringWhileAnotherProcessHoldsTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		high, low := hybrid.PerSecond(100), hybrid.PerSecond(5)
		one := newLimiter(t, b, high, hybrid.Options{LeaseSize: 8})
		two := newLimiter(t, b, high, hybrid.Options{LeaseSize: 8})
		defer closeLimiter(t, one)
		defer closeLimiter(t, two)
		allowed(t, one, "k", 1)
		held := one.Stats().Held
		if held != 7 {
			t.Fatalf("holds %d tokens, want 7", held)
		}
		setLimit(t, two, low)
		denied(t, two, "k", 1) // what is lent is more than the new burst
		if got := admitted(t, one, "k", 3); got != 3 {
			t.Errorf("of what it held it may spend all: %d of 3", got)
		}
		setLimit(t, one, low)
		synctest.Wait()
		if held := one.Stats().Held; held != 0 {
			t.Errorf("still holds %d tokens of the old limit", held)
		}
		if got := b.level("k", low); got != 4 {
			t.Errorf("the bucket holds %d tokens, want the 4 that came back", got)
		}
	})
}

func TestRATE07_RefillsGoOnAfterLoweringBelowWhatIsFree(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newBank(), hybrid.PerSecond(5), opts)
				defer closeLimiter(t, l)
				allowed(t, l, "k", 1)
				for _, n := range []int{2, 7} {
					setLimit(t, l, hybrid.PerSecond(n))
					time.Sleep(5 * time.Second)
					for range 3 {
						if got := admitted(t, l, "k", 20); got != n {
							t.Errorf("admitted %d in a second, want %d", got, n)
						}
						time.Sleep(time.Second + time.Millisecond)
					}
				}
			})
		})
	}
}

func TestRATE08_RefusedRequestsDoNotCountAgainstAHigherLimit(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newBank(), hybrid.PerHour(10), opts)
				defer closeLimiter(t, l)
				if got := admitted(t, l, "k", 50); got != 10 {
					t.Fatalf("admitted %d, want 10", got)
				}
				setLimit(t, l, hybrid.PerHour(20)) // a bucket: nothing is minted, refill is faster
				if got := admitted(t, l, "k", 15); got != 0 {
					t.Errorf("admitted %d at once, want none", got)
				}
				time.Sleep(30 * time.Minute)
				if got := admitted(t, l, "k", 15); got != 10 {
					t.Errorf("admitted %d in half an hour, want 10", got)
				}
			})
		})
	}
}

func TestRATE09_LimitChangesReachAllProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		one := newLimiter(t, b, hybrid.PerSecond(30), hybrid.Options{})
		two := newLimiter(t, b, hybrid.PerSecond(30), hybrid.Options{})
		defer closeLimiter(t, one)
		defer closeLimiter(t, two)
		load := func(d time.Duration) (got int) { // 200 per second on each
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				got += admitted(t, one, "k", 1) + admitted(t, two, "k", 1)
			}
			return got
		}
		set := func(lim limit.Limit) {
			setLimit(t, one, lim)
			setLimit(t, two, lim)
		}
		if got := load(10 * time.Second); got < 320 || got > 330 {
			t.Errorf("30/s: admitted %d in 10s, want 330", got)
		}
		set(hybrid.Blocked())
		if got := load(10 * time.Second); got != 0 {
			t.Errorf("blocked: admitted %d", got)
		}
		if held := one.Stats().Held + two.Stats().Held; held != 0 {
			t.Errorf("blocked: %d tokens are held", held)
		}
		set(hybrid.PerSecond(150))
		load(time.Second)
		if got := load(10 * time.Second); got < 1485 || got > 1520 {
			t.Errorf("150/s: admitted %d in 10s, want 1500", got)
		}
		set(hybrid.PerSecond(30))
		load(time.Second)
		if got := load(10 * time.Second); got < 297 || got > 320 {
			t.Errorf("30/s again: admitted %d in 10s, want 300", got)
		}
		conserved(t, one, one.Stats().Leased-one.Stats().Held-one.Stats().Returned-one.Stats().Expired)
	})
}

// Tokens that are out when a key becomes Unlimited or Blocked go back under the limit that they were lent under.
func TestSetLimitToOneWithoutARateWhileTokensAreOut(t *testing.T) {
	for _, lim := range []limit.Limit{hybrid.Blocked(), hybrid.Unlimited()} {
		for _, way := range []string{"returned at once", "returned by Close"} {
			t.Run(lim.String()+", "+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBank()
					was := hybrid.PerMinute(100)
					l := newLimiter(t, b, was, hybrid.Options{LeaseSize: 20})
					for range 5 {
						allowed(t, l, "k", 1)
					}
					if way == "returned by Close" {
						b.Next(leasetest.Fault{LoseRequest: true})
					}
					setLimit(t, l, lim)
					if r := ask(t, l, "k", 1); r.Allowed != (lim == hybrid.Unlimited()) || r.Origin != hybrid.Local {
						t.Errorf("%+v", r)
					}
					time.Sleep(150 * time.Millisecond)
					if got := b.level("k", was); way == "returned at once" && got != 95 {
						t.Errorf("before Close the bucket holds %d tokens, want 95", got)
					}
					closeLimiter(t, l)
					if got := b.level("k", was); got != 95 {
						t.Errorf("the bucket holds %d tokens, want 95", got)
					}
				})
			})
		}
	}
}

// Callers who were waiting for Redis when the limit changed are decided by one limit or the other, and nothing hangs.
func TestSetLimitWhileRequestsAreOut(t *testing.T) {
	for _, next := range []limit.Limit{hybrid.Blocked(), hybrid.Unlimited(), hybrid.PerSecond(3)} {
		for name, opts := range modes() {
			t.Run(next.String()+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBank()
					l := newLimiter(t, b, hybrid.PerSecond(10), opts)
					defer closeLimiter(t, l)
					b.always(leasetest.Fault{Delay: 20 * time.Millisecond, Reply: 20 * time.Millisecond})
					var ok atomic.Int64
					var wg sync.WaitGroup
					for i := range 40 { // some in the call that is out, some wait for the next one
						time.Sleep(time.Millisecond)
						if i == 30 {
							setLimit(t, l, next)
						}
						wg.Go(func() {
							if r, err := l.Allow(t.Context(), "k"); err != nil {
								t.Error(err)
							} else if r.Allowed {
								ok.Add(1)
							}
						})
					}
					wg.Wait()
					if got := ok.Load(); next == hybrid.Unlimited() && got < 10 || next != hybrid.Unlimited() && got > 13 {
						t.Errorf("admitted %d", got)
					}
					time.Sleep(5 * time.Second)
					want := 20
					switch next {
					case hybrid.Blocked():
						want = 0
					case hybrid.PerSecond(3):
						want = 3
					}
					if got := admitted(t, l, "k", 20); got != want {
						t.Errorf("later admitted %d, want %d", got, want)
					}
				})
			})
		}
	}
}

// A denial that was on its way when the limit was raised is not remembered.
func TestSetLimitWhileADenialIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerMinute(3), hybrid.Options{})
		defer closeLimiter(t, l)
		admitted(t, l, "k", 4)
		time.Sleep(time.Second)
		b.Next(leasetest.Fault{Reply: 50 * time.Millisecond})
		go l.Allow(t.Context(), "k")
		time.Sleep(10 * time.Millisecond)
		setLimit(t, l, hybrid.PerSecond(100))
		time.Sleep(60 * time.Millisecond)
		if r := ask(t, l, "k", 1); r.Origin != hybrid.Remote {
			t.Errorf("%+v: decided by what the old limit said", r)
		}
	})
}

// A limit that changes while a key is made, after the key has asked for its limit, is in force at once.
func TestLimitThatChangesWhileAKeyIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s switchable
		s.set(hybrid.Blocked())
		l := newLimiter(t, newBank(), hybrid.PerSecond(7), hybrid.Options{LimitFor: func(key string) limit.Limit {
			defer s.set(hybrid.PerSecond(5))
			return s.limitFor(key)
		}})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 1)
	})
}

// Two are at it to renew the limit of a key, and the one with the older answer comes last: the newer one stays.
func TestLimitThatIsRenewedTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s switchable
		var l *hybrid.Limiter
		var armed atomic.Bool
		own := hybrid.PerSecond(7)
		s.set(hybrid.PerSecond(5))
		l = newLimiter(t, newBank(), own, hybrid.Options{Exact: true, LimitFor: func(key string) limit.Limit {
			if armed.Swap(false) {
				s.set(hybrid.PerSecond(50))
				done := make(chan struct{})
				go func() {
					defer close(done)
					l.SetLimit(own) // all keys renew
				}()
				<-done
				return hybrid.Blocked() // an old answer
			}
			return s.limitFor(key)
		}})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 1)
		armed.Store(true)
		allowed(t, l, "k", 1)
		if armed.Load() {
			t.Fatal("LimitFor was not asked")
		}
		allowed(t, l, "k", 1)
	})
}

func TestCONC06_SetLimitRacesWithRequests(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			opts.Timeout = time.Minute
			l := newLimiter(t, newSlowSource(), hybrid.PerMinute(10), opts)
			defer closeLimiter(t, l)
			var ok atomic.Int64
			var done atomic.Bool
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					for !done.Load() {
						if r, err := l.Allow(t.Context(), "k"); err != nil {
							t.Error(err)
							return
						} else if r.Allowed {
							ok.Add(1)
						}
					}
				})
			}
			wg.Go(func() {
				for !done.Load() {
					_, _ = l.Stats(), l.String()
				}
			})
			for i := range 300 {
				setLimit(t, l, hybrid.PerMinute(10+i%2*10))
			}
			setLimit(t, l, hybrid.PerMinute(20))
			done.Store(true)
			wg.Wait()
			if got := ok.Load(); got > 23 { // and what comes in within ten seconds
				t.Errorf("admitted %d, want 20 at most", got)
			}
			if got := l.LimitOf("k"); got != hybrid.PerMinute(20) {
				t.Errorf("the limit is %v", got)
			}
			setLimit(t, l, hybrid.Unlimited())
			allowed(t, l, "k", 1)
		})
	}
}

// However SetLimit and first requests of keys interleave, the last limit applies in the end: a key that was made under
// Blocked, which never asks, must not stay so.
func TestSetLimitReachesKeysThatAreBeingMade(t *testing.T) {
	l := newLimiter(t, newSlowSource(), hybrid.Blocked(), hybrid.Options{MaxKeys: 64, Timeout: time.Minute})
	defer closeLimiter(t, l)
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for i := range 150 {
		prefix := string(rune('a'+i%26)) + string(rune('a'+i/26))
		var wg sync.WaitGroup
		for _, key := range keys {
			wg.Go(func() { ask(t, l, prefix+key, 1) })
		}
		wg.Go(func() { setLimit(t, l, hybrid.Unlimited()) })
		wg.Go(func() {
			setLimit(t, l, hybrid.Blocked())
			setLimit(t, l, hybrid.Unlimited())
		})
		wg.Wait()
		setLimit(t, l, hybrid.Blocked())
		wg.Go(func() { setLimit(t, l, hybrid.Unlimited()) })
		for _, key := range keys {
			wg.Go(func() { ask(t, l, prefix+"2"+key, 1) })
		}
		wg.Wait()
		for _, key := range keys {
			allowed(t, l, prefix+key, 1)
			allowed(t, l, prefix+"2"+key, 1)
		}
		setLimit(t, l, hybrid.Blocked())
	}
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
