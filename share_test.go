package hybrid_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// A share admits what it promises, and no window of time sees more.
func TestFailLocalAdmitsItsShare(t *testing.T) {
	const outage = time.Minute
	for _, lim := range []limit.Limit{hybrid.PerSecond(100), hybrid.PerSecond(10), hybrid.PerMinute(60)} {
		for _, instances := range []int{1, 4, 10} {
			for _, most := range []int{1, 3} {
				if underRace && instances+most > 5 && lim.Rate > 10 {
					continue
				}
				t.Run(fmt.Sprintf("%v %d %d", lim, instances, most), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						rnd := newRand(t)
						b := newBank()
						l := newFailing(t, b, lim, hybrid.Options{Instances: instances})
						goDown(t, b, l)
						share := limit.Limit{Rate: lim.Rate, Period: lim.Period * time.Duration(instances), Burst: lim.Burst / instances}
						var e leasetest.Envelope
						for start := time.Now(); time.Since(start) < outage; time.Sleep(5 * time.Millisecond) {
							n := 1 + rnd.IntN(most)
							if r := ask(t, l, "k", n); r.Origin != hybrid.Fallback {
								t.Fatalf("%+v", r)
							} else if r.Allowed {
								e.Add(b.Now(), int64(n))
							}
						}
						if w := e.Worst(share); w.Excess > 0 {
							t.Errorf("%v of a share of %v", w, share)
						}
						want := float64(share.Burst) + float64(share.Rate)*outage.Seconds()/share.Period.Seconds()
						if got := float64(e.Admitted()); got < 0.95*want-float64(most) {
							t.Errorf("admitted %v in %v, want nearly %v", got, outage, want)
						}
					})
				})
			}
		}
	}
}

// RetryAfter of a share is exact: a microsecond earlier is too early.
func TestRetryAfterOfAShareIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, limit.Limit{Rate: 7, Period: time.Second, Burst: 70}, hybrid.Options{Instances: 3})
		goDown(t, b, l)
		rnd := newRand(t)
		denials := 0
		for range 200 {
			n := 1 + rnd.IntN(23)
			r := ask(t, l, "k", n)
			if r.Allowed {
				continue
			}
			denials++
			if r.ResetAfter < r.RetryAfter || r.Remaining >= n {
				t.Errorf("%+v", r)
			}
			time.Sleep(r.RetryAfter - time.Microsecond)
			if early := denied(t, l, "k", n); early.RetryAfter != time.Microsecond {
				t.Errorf("a microsecond early: %+v", early)
			}
			time.Sleep(time.Microsecond)
			allowed(t, l, "k", n)
		}
		if denials < 50 {
			t.Errorf("%d denials", denials)
		}
	})
}

// What the bucket had is what is shared: a key that was drained gets no burst for the outage.
func TestFailLocalStartsWithTheLevelThatIsKnown(t *testing.T) {
	for _, c := range []struct{ instances, used, idle, want int }{
		{1, 0, 0, 100}, // never seen
		{4, 0, 0, 25},
		{1, 100, 0, 0},
		{1, 70, 0, 30},
		{4, 60, 0, 10},
		{4, 100, 30, 7}, // thirty tokens came while it was idle
		{1, 100, 50, 50},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			l := newFailing(t, b, hybrid.PerMinute(100), hybrid.Options{Instances: c.instances, Exact: true})
			if c.used > 0 {
				allowed(t, l, "k", c.used)
			}
			time.Sleep(time.Duration(c.idle) * 600 * time.Millisecond)
			goDown(t, b, l)
			if r, err := l.AllowN(t.Context(), "k", 0); err != nil || r.Remaining != c.want {
				t.Errorf("%+v: a peek says %+v, %v", c, r, err)
			}
			if got := admitted(t, l, "k", 120); got != c.want {
				t.Errorf("%+v: admitted %d", c, got)
			}
		})
	}
}

// Whoever makes up keys gets a burst for as many as the table holds, and no more.
func TestFailLocalGivesNoBurstToKeysThatAreMadeUp(t *testing.T) {
	const maxKeys = 1024
	synctest.Test(t, func(t *testing.T) {
		rnd := newRand(t)
		b := newBank()
		l := newFailing(t, b, hybrid.PerMinute(20), hybrid.Options{MaxKeys: maxKeys, Instances: 2})
		goDown(t, b, l)
		got := 0
		for i := range 400 { // nothing is forgotten yet
			if n := admitted(t, l, "early"+strconv.Itoa(i), 12); n != 10 {
				t.Fatalf("admitted %d, want the burst of a share", n)
			}
			got += 10
		}
		start := time.Now()
		requests := 100_000
		if underRace {
			requests = 15_000
		}
		for i := range requests {
			// Some come again, while they are remembered or not any more.
			if ask(t, l, strconv.FormatUint(rnd.Uint64N(1<<18), 36), 1).Allowed {
				got++
			}
			if i%10 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		refill := maxKeys * 10 * time.Since(start).Minutes()
		if most := maxKeys*10 + refill; float64(got) > most {
			t.Errorf("admitted %d, want at most %.0f", got, most)
		}
		if n := l.Stats().Keys; n > maxKeys {
			t.Errorf("remembers %d keys", n)
		}
		// And those that came late get what the rate brings.
		admitted(t, l, "late", 1)
		time.Sleep(time.Minute / 2)
		if n := admitted(t, l, "late", 20); n != 5 {
			t.Errorf("half a minute later admitted %d, want 5", n)
		}
	})
}

// A table that is full, and has forgotten keys in good times, is no reason to think the worst of those that it remembers.
// Only one that forgets keys during the outage is, and of that outage only.
func TestEvictionBeforeTheOutageDoesNotCount(t *testing.T) {
	const maxKeys = 16
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{MaxKeys: maxKeys})
		for range 2 {
			for i := range 100 {
				allowed(t, l, strconv.Itoa(i), 1)
			}
			time.Sleep(time.Hour) // until nothing is known of any but its name
			b.Down(errAway)
			for i := range 5 {
				l.Allow(t.Context(), strconv.Itoa(95+i))
			}
			if s := l.Stats(); !s.Unavailable || s.Keys != maxKeys {
				t.Fatalf("%+v", s)
			}
			if got := admitted(t, l, "90", 12); got != 10 {
				t.Errorf("a key that is remembered: admitted %d, want 10", got)
			}
			l.Allow(t.Context(), "new") // another one is forgotten for it
			if got := admitted(t, l, "91", 12); got != 0 {
				t.Errorf("after a key was forgotten: admitted %d of one of which nothing is known", got)
			}
			comeBack(t, b, l)
		}
	})
}

// A share that is smaller than a request, or than a token.
func TestRequestsThatAShareCannotHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerMinute(10), hybrid.Options{Instances: 4})
		tiny := newFailing(t, b, hybrid.PerMinute(10), hybrid.Options{Instances: 50})
		goDown(t, b, l, tiny)
		for range 3 {
			r := denied(t, l, "k", 3) // of a burst of 2
			if r.RetryAfter == hybrid.Never || r.RetryAfter > 10*time.Second || r.Remaining != 2 || r.Origin != hybrid.Fallback {
				t.Fatalf("%+v", r)
			}
			time.Sleep(r.RetryAfter)
		}
		if _, err := l.AllowN(t.Context(), "k", 11); !errors.Is(err, hybrid.ErrExceedsBurst) {
			t.Errorf("more than the limit: %v", err)
		}
		if got := admitted(t, l, "k", 5); got != 2 {
			t.Errorf("the larger requests have cost something: %d are left, want 2", got)
		}

		if got := admitted(t, tiny, "k", 5); got != 1 {
			t.Errorf("a fifth of a token: admitted %d, want 1", got)
		}
		r := denied(t, tiny, "k", 1)
		if want := 5 * time.Minute; r.RetryAfter != want { // 10 a minute for 50
			t.Errorf("RetryAfter %v, want %v", r.RetryAfter, want)
		}
		time.Sleep(r.RetryAfter)
		if got := admitted(t, tiny, "k", 5); got != 1 {
			t.Errorf("then admitted %d, want 1", got)
		}

		comeBack(t, b, l)
		if r := allowed(t, l, "k", 3); r.Origin != hybrid.Remote {
			t.Errorf("Redis can decide what the share could not: %+v", r)
		}
	})
}

// credits is the sum of what was charged for a key without a lease, and in how many requests.
func (b *bank) credits(key string) (sum int64, requests int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if r.Key == key && r.Credit != 0 {
			sum, requests = sum+r.Credit, requests+1
		}
	}
	return sum, requests
}

func TestWhatWasSpentWithoutRedisIsCharged(t *testing.T) {
	for _, c := range []struct {
		spent int
		after time.Duration // the outage goes on for so long
		owed  int64
	}{
		{10, 0, 10},
		{4, 0, 4},
		{10, 30 * time.Minute, 5}, // half of it would have come back anyway
		{10, time.Hour, 0},
	} {
		t.Run(fmt.Sprintf("%d %v", c.spent, c.after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerHour(10)
				l := newFailing(t, b, lim, hybrid.Options{})
				goDown(t, b, l)
				if got := admitted(t, l, "k", c.spent); got != c.spent {
					t.Fatalf("admitted %d, want %d", got, c.spent)
				}
				time.Sleep(c.after)
				comeBack(t, b, l)
				left := 10 - int(c.owed)
				for i := range 10 {
					r := ask(t, l, "k", 1)
					if r.Allowed != (i < left) || r.Origin == hybrid.Fallback || i == left && r.Origin != hybrid.Remote {
						t.Errorf("request %d after the outage: %+v, want %d allowed", i, r, left)
					}
				}
				if sum, n := b.credits("k"); sum != -c.owed || n > 1 {
					t.Errorf("charged %d in %d requests, want %d in one", -sum, n, c.owed)
				}
				if want := int64(10-left) - c.owed; b.level("k", lim) != want {
					t.Errorf("the bucket has %d tokens, want %d", b.level("k", lim), want)
				}
			})
		})
	}
}

// When a share is charged it is over: the next outage begins with what the bucket has then.
func TestTheNextOutageBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{})
		goDown(t, b, l)
		if got := admitted(t, l, "k", 2); got != 2 {
			t.Fatalf("admitted %d", got)
		}
		comeBack(t, b, l)
		if got := admitted(t, l, "k", 5); got != 5 {
			t.Fatalf("in between admitted %d", got)
		}
		time.Sleep(2 * time.Second) // until no denial is remembered
		goDown(t, b, l)
		if got := admitted(t, l, "k", 12); got != 3 {
			t.Errorf("then admitted %d, want the 3 that were left", got)
		}
	})
}

// A probe may time out and have been heard all the same, and there may be many: they charge nothing. The first request
// after them does, and if its answer is lost it is not said again.
func TestTheChargeIsMadeOnceAndByNoProbe(t *testing.T) {
	for name, fault := range map[string]leasetest.Fault{
		"well": {}, "reply lost": {LoseReply: true}, "request lost": {LoseRequest: true}, "late": {Late: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := limit.Limit{Rate: 1, Period: 1000 * time.Hour, Burst: 100}
				l := newFailing(t, b, lim, hybrid.Options{})
				goDown(t, b, l)
				if got := admitted(t, l, "k", 60); got != 60 {
					t.Fatalf("admitted %d", got)
				}
				b.Down(nil)
				b.always(leasetest.Fault{LoseReply: true}) // the bucket hears the probes
				calls := b.Calls("k")
				for range 5 {
					time.Sleep(time.Second)
					denied(t, l, "k", 50) // there are 40, and no probe changes that
					synctest.Wait()
				}
				if n := b.Calls("k") - calls; n < 3 {
					t.Fatalf("%d probes", n)
				}
				if got := b.level("k", lim); got != 100 {
					t.Errorf("after the probes the bucket has %d tokens, want all 100", got)
				}
				b.always(leasetest.Fault{})
				time.Sleep(2 * time.Second)
				denied(t, l, "k", 50)
				synctest.Wait()
				if l.Stats().Unavailable || b.level("k", lim) != 100 {
					t.Fatalf("after the last probe the bucket has %d tokens: %+v", b.level("k", lim), l.Stats())
				}

				calls = b.Calls("k")
				b.Next(fault)
				own := int64(0) // decided by the share, because an answer did not come: charged in turn
				for range 6 {
					if r := allowed(t, l, "k", 1); r.Origin == hybrid.Fallback {
						own++
					}
					time.Sleep(time.Second)
				}
				if n := b.Calls("k") - calls; n < 5 {
					t.Fatalf("%d calls", n)
				}
				sum, n := b.credits("k")
				lost := fault.LoseRequest || fault.LoseReply || fault.Late > 0
				if lost != (own > 0) || sum != -60-own || n != 1 && !lost || n != 2 && lost {
					t.Errorf("charged %d in %d requests, want 60 and %d", -sum, n, own)
				}
			})
		})
	}
}

// Three processes, all of which spend their share while the source is away, and go on when it is back. What they admit above
// the limit is of three kinds. Who knew nothing of the level took the bucket for full. When one is back and the others are
// not yet, for up to a second, it takes all that the bucket gets, and they go on with what their shares get. And until they
// are back the bucket may be full but for the charge of the first. When all is charged the last is made up for.
func TestProcessesTogetherOverAnOutage(t *testing.T) {
	const processes = 3
	lim := limit.Limit{Rate: 300, Period: 10 * time.Second, Burst: 300}
	const apart = 30 * (processes - 1) / processes // in a second
	for _, c := range []struct {
		name  string
		used  int // before the outage
		by    int // processes
		extra int // burst of the shares of those who took a bucket for full that was not
	}{
		{"full", 0, 3, 0},
		{"half", 150, 3, 0},
		{"drained", 300, 3, 0},
		{"half by one", 150, 1, 200},
		{"drained by one", 300, 1, 200},
	} {
		for _, outage := range []time.Duration{200 * time.Millisecond, 4 * time.Second, 20 * time.Second} {
			if underRace && outage < 20*time.Second {
				continue
			}
			t.Run(fmt.Sprintf("%s %v", c.name, outage), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rnd := newRand(t)
					b := newBank()
					var e leasetest.Envelope
					var procs []*hybrid.Limiter
					for range processes {
						procs = append(procs, newFailing(t, b, lim, hybrid.Options{Instances: processes, Exact: true}))
					}
					try := func(l *hybrid.Limiter) {
						if ask(t, l, "k", 1).Allowed {
							e.Add(b.Now(), 1)
						}
					}
					flood := func(d time.Duration) {
						for start := time.Now(); time.Since(start) < d; time.Sleep(10 * time.Millisecond) {
							for _, i := range rnd.Perm(processes) {
								try(procs[i])
							}
						}
					}
					start := time.Now()
					for i := range c.used {
						try(procs[i%c.by])
					}
					goDown(t, b, procs...)
					flood(outage)
					b.Down(nil)
					flood(15 * time.Second) // a debt is paid within ten
					for i, l := range procs {
						if l.Stats().Unavailable {
							t.Errorf("process %d has not recovered", i)
						}
					}
					uncharged := lim.Burst - lim.Burst/processes
					if w := e.Worst(lim); w.Excess > int64(c.extra+apart+uncharged) {
						t.Errorf("%v", w)
					}
					bound := float64(lim.Burst) + float64(lim.Rate)*time.Since(start).Seconds()/lim.Period.Seconds()
					over := float64(e.Admitted()) - bound
					if over > float64(c.extra+apart+processes) {
						t.Errorf("admitted %d in all, %.1f above the limit", e.Admitted(), over)
					}
					if over < -0.1*bound {
						t.Errorf("admitted %d in all, which is %.1f below the limit", e.Admitted(), -over)
					}
				})
			})
		}
	}
}

// How many share the limit is learnt from the bucket, as long as it answers, and forgotten in time.
func TestInstancesAreLearnt(t *testing.T) {
	const processes = 4
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerSecond(100)
		var procs []*hybrid.Limiter
		for range processes {
			procs = append(procs, newFailing(t, b, lim, hybrid.Options{LeaseSize: 5, LeaseTTL: 400 * time.Millisecond}))
		}
		if n := procs[0].Stats().Instances; n != 1 {
			t.Errorf("before anything was seen: %d instances", n)
		}
		for range 20 {
			for _, l := range procs {
				ask(t, l, "k", 1)
				time.Sleep(time.Millisecond)
			}
		}
		allowed(t, procs[0], "mine", 1) // a key of its own does not change it
		for i, l := range procs {
			if n := l.Stats().Instances; n != processes {
				t.Errorf("process %d takes them to be %d, want %d", i, n, processes)
			}
		}
		goDown(t, b, procs...)
		time.Sleep(time.Second) // until no lease and no denial is left
		got := make([]int, processes)
		for range 1000 {
			for i, l := range procs {
				if ask(t, l, "k", 1).Allowed {
					got[i]++
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		for i, n := range got {
			if n < 250 || n > 275 {
				t.Errorf("process %d admitted %d in 10s, want 25 a second and at most 25 at once", i, n)
			}
		}
		comeBack(t, b, procs...)
		// Periods of five minutes: it is remembered for one more than the one in which it was seen.
		time.Sleep(4 * time.Minute)
		if n := procs[0].Stats().Instances; n != processes {
			t.Errorf("after 4 minutes %d instances, want %d", n, processes)
		}
		time.Sleep(6 * time.Minute)
		allowed(t, procs[0], "k", 1)
		if n := procs[0].Stats().Instances; n != 1 {
			t.Errorf("after 10 minutes %d instances, want 1", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerSecond(100), hybrid.Options{Instances: 7})
		allowed(t, l, "k", 1)
		if n := l.Stats().Instances; n != 7 {
			t.Errorf("%d instances, want the 7 of the options", n)
		}
	})
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
