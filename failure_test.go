package hybrid_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

var policies = []hybrid.FailurePolicy{hybrid.FailLocal, hybrid.FailClosed, hybrid.FailOpen}

// eachPolicy runs a test in a bubble for each policy.
func eachPolicy(t *testing.T, f func(t *testing.T, policy hybrid.FailurePolicy)) {
	for _, policy := range policies {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, policy) })
		})
	}
}

// newFailing is newLimiter with the policy that the options say. It is closed at the end, and it does not matter whether
// the source answers then.
func newFailing(t *testing.T, src lease.Source, lim limit.Limit, opts hybrid.Options) *hybrid.Limiter {
	t.Helper()
	l, err := hybrid.NewFrom(src, lim, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close(context.Background())
		time.Sleep(time.Second) // until calls that nobody waits for any more have ended too
	})
	time.Sleep(time.Millisecond) // an answer in the first nanosecond of a limiter would count as none
	return l
}

var errAway = errors.New("connection refused")

// goDown takes the source away, and lets each limiter find out by keys that do not matter: requests that fail say what
// was spent without the source, and that is then lost with them.
func goDown(t *testing.T, b *bank, limiters ...*hybrid.Limiter) {
	t.Helper()
	b.Down(errAway)
	for _, l := range limiters {
		for i := range 5 {
			l.Allow(t.Context(), "down"+strconv.Itoa(i))
		}
		if !l.Stats().Unavailable {
			t.Fatal("a source that refuses everything counts as available")
		}
	}
}

// comeBack mends the source and waits until each limiter has noticed.
func comeBack(t *testing.T, b *bank, limiters ...*hybrid.Limiter) {
	t.Helper()
	b.Down(nil)
	b.always(leasetest.Fault{})
	for _, l := range limiters {
		recovered(t, l)
	}
}

// meter counts how many calls are out at the same time.
type meter struct {
	*bank
	out, most atomic.Int64
}

func (m *meter) Acquire(ctx context.Context, reqs []lease.Request, grants []lease.Grant) {
	n := m.out.Add(1)
	defer m.out.Add(-1)
	for most := m.most.Load(); n > most && !m.most.CompareAndSwap(most, n); most = m.most.Load() {
	}
	m.bank.Acquire(ctx, reqs, grants)
}

// probes is how many probes fit into a time when each of them takes so long, and after each pause, of which part is kept,
// it takes at most late until there is somebody to make it.
func probes(d, takes time.Duration, part float64, late time.Duration) (n int) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		d -= time.Duration(part*float64(pause)) + late
		if d < 0 {
			return n
		}
		n++
		d -= takes
	}
}

func TestFAIL01_DenialsReachNeitherPolicyNorBreaker(t *testing.T) {
	for _, policy := range []hybrid.FailurePolicy{hybrid.FailLocal, hybrid.FailOpen} {
		for name, opts := range modes() {
			t.Run(policy.String()+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBank()
					opts.OnFailure = policy
					l := newFailing(t, b, hybrid.PerSecond(2), opts)
					if got := admitted(t, l, "k", 10); got != 2 {
						t.Errorf("healthy: admitted %d of 10, want 2", got)
					}
					no := 0
					for range 1000 {
						if r := ask(t, l, "k", 1); r.Origin == hybrid.Fallback {
							t.Fatalf("healthy: %+v", r)
						} else if !r.Allowed {
							no++
						}
						time.Sleep(10 * time.Millisecond)
					}
					if s := l.Stats(); no < 970 || b.Calls("k") < 20 || s.Unavailable || s.Err != nil || s.Failed != 0 || s.Fallbacks != 0 {
						t.Errorf("%d denials in %d calls: %+v", no, b.Calls("k"), s)
					}

					goDown(t, b, l)
					time.Sleep(time.Second) // the last denial is remembered for no longer
					got := 0
					for range 150 {
						r := ask(t, l, "k", 1)
						if r.Origin != hybrid.Fallback {
							t.Fatalf("away: %+v", r)
						}
						if r.Allowed {
							got++
						}
						time.Sleep(time.Second / 150)
					}
					if policy == hybrid.FailOpen && got != 150 || policy == hybrid.FailLocal && (got < 3 || got > 4) {
						t.Errorf("away: admitted %d of 150 in a second", got)
					}

					comeBack(t, b, l)
					time.Sleep(2 * time.Second) // until the bucket is full
					fallbacks := l.Stats().Fallbacks
					if got := admitted(t, l, "k", 10); got != 2 || l.Stats().Fallbacks != fallbacks {
						t.Errorf("healthy again: admitted %d of 10, want 2", got)
					}
				})
			})
		}
	}
}

// The first five failures open the breaker, and it does not close for want of traffic. Nor does a failed probe mean a new
// allowance.
func TestFAIL02_AnOutageLastsWhetherOrNotThereIsTraffic(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: policy})
		b.Down(errAway)
		for i := range 5 {
			if l.Stats().Unavailable {
				t.Fatalf("unavailable after %d failures", i)
			}
			l.Allow(t.Context(), "k")
		}
		down := func(calls int) {
			t.Helper()
			if s := l.Stats(); !s.Unavailable || !errors.Is(s.Err, errAway) || b.Calls() != calls {
				t.Fatalf("%d calls, want %d, and %+v", b.Calls(), calls, s)
			}
		}
		down(5)
		time.Sleep(time.Hour)
		down(5)

		var o outcome
		for range 120 {
			r, err := l.Allow(t.Context(), "k")
			o.note(t.Context(), r, err)
			time.Sleep(time.Second)
		}
		down(125) // one probe with each request, because they are further apart than the longest pause
		switch {
		case policy == hybrid.FailOpen && o.allowed.Load() == 120:
		case policy == hybrid.FailClosed && o.failed.Load() == 120:
		case policy == hybrid.FailLocal && o.allowed.Load() == 10 && o.denied.Load() == 110: // the burst, after that hour
		default:
			t.Errorf("120 requests in 2 minutes: %v", &o)
		}

		// Up for a moment and down again: the share is the same.
		b.Down(nil)
		l.Allow(t.Context(), "other")
		synctest.Wait()
		if l.Stats().Unavailable {
			t.Fatal("a good probe does not close the breaker")
		}
		b.Down(errAway)
		calls := b.Calls()
		l.Allow(t.Context(), "another")
		if !l.Stats().Unavailable || b.Calls() != calls+1 {
			t.Errorf("after a good probe it takes more than one failure to open: %d calls, %+v", b.Calls()-calls, l.Stats())
		}
		var again outcome
		for range 60 {
			r, err := l.Allow(t.Context(), "k")
			again.note(t.Context(), r, err)
			time.Sleep(time.Second)
		}
		if policy == hybrid.FailLocal && again.allowed.Load() != 0 || policy == hybrid.FailClosed && again.failed.Load() != 60 {
			t.Errorf("after a moment without failures: %v", &again)
		}
	})
}

func TestFAIL03_AHangingServerIsAskedSeldomAndHoldsUpNobody(t *testing.T) {
	const (
		timeout = 50 * time.Millisecond
		callers = 20
		run     = 10 * time.Second
		rounds  = 50
		every   = run / rounds
	)
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		b.Source.Timeout = time.Hour // only the limiter's counts
		m := &meter{bank: b}
		l := newFailing(t, m, hybrid.PerSecond(100), hybrid.Options{OnFailure: policy, Timeout: timeout})
		b.always(leasetest.Fault{LoseRequest: true})
		start := time.Now()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for round := range rounds {
					began := time.Now()
					r, err := l.Allow(t.Context(), strconv.Itoa(i))
					switch took := time.Since(began); {
					case took > 0 && round > 0, took > timeout:
						t.Errorf("round %d: waited %v", round, took)
					case policy == hybrid.FailClosed && !errors.Is(err, hybrid.ErrUnavailable), policy != hybrid.FailClosed && (err != nil || r.Origin != hybrid.Fallback):
						t.Errorf("round %d: %+v, %v", round, r, err)
					}
					// All at once in the first round, evenly in the others.
					time.Sleep(time.Until(start.Add(time.Duration(round+1)*every + time.Duration(i)*every/callers)))
				}
			})
		}
		time.Sleep(time.Second - time.Millisecond)
		synctest.Wait()
		goroutines := runtime.NumGoroutine()
		m.most.Store(0)
		time.Sleep(run - 2*time.Second)
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > goroutines+2 { // a probe may be out
			t.Errorf("%d goroutines, then %d", goroutines, n)
		}
		wg.Wait()
		if n := m.most.Load(); n != 1 {
			t.Errorf("up to %d probes at a time, want 1", n)
		}
		most := 5 + callers - 1 + probes(run, timeout, 0.5, 0)
		least := 4 + probes(run, timeout, 1, every/callers)
		if n := b.Calls(); n < least || n > most {
			t.Errorf("%d calls, want %d to %d", n, least, most)
		}

		// It answers again.
		b.always(leasetest.Fault{})
		mended := time.Now()
		for {
			r, err := l.Allow(t.Context(), "k")
			if err == nil && r.Origin != hybrid.Fallback {
				break
			}
			if time.Since(mended) > time.Minute {
				t.Fatal("never recovers")
			}
			time.Sleep(every / callers)
		}
		if took := time.Since(mended); took > time.Second+timeout+every/callers {
			t.Errorf("recovered after %v", took)
		}
		for i := range 100 {
			if r := allowed(t, l, strconv.Itoa(i), 1); r.Origin == hybrid.Fallback {
				t.Fatalf("after the recovery: %+v", r)
			}
		}
		if s := l.Stats(); s.Unavailable {
			t.Errorf("%+v", s)
		}
	})
}

// Callers of one key wait one behind the other. When the first call times out, those behind it have waited nearly as long
// and give up too, and it counts for each of them.
func TestFAIL03_AHotKeyWaitsForOneTimeout(t *testing.T) {
	const timeout = 50 * time.Millisecond
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		for _, late := range []time.Duration{time.Millisecond, 40 * time.Millisecond} {
			b := newBank()
			b.Source.Timeout = time.Hour
			l := newFailing(t, b, hybrid.PerSecond(100), hybrid.Options{OnFailure: policy, Timeout: timeout})
			b.always(leasetest.Fault{LoseRequest: true})
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 64 {
				if i == 1 {
					time.Sleep(late)
				}
				wg.Go(func() {
					_, err := l.Allow(t.Context(), "k")
					if took := time.Since(start); took != timeout || (policy == hybrid.FailClosed) != errors.Is(err, hybrid.ErrUnavailable) {
						t.Errorf("%v after %v", err, took)
					}
				})
			}
			wg.Wait()
			synctest.Wait() // the call that has timed out returns at the same instant
			if s := l.Stats(); !s.Unavailable || b.Calls() != 1 {
				t.Errorf("others %v later: %d calls, %+v", late, b.Calls(), s)
			}
			for range 20 { // before the first probe is due
				l.Allow(t.Context(), "k")
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(start); took != timeout+20*time.Millisecond || b.Calls() != 1 {
				t.Errorf("afterwards 20 requests took %v and %d calls", took-timeout-20*time.Millisecond, b.Calls()-1)
			}
		}
	})
}

// A call that times out counts for each caller it was made for.
func TestAHangingCallCountsForEachCaller(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for _, callers := range []int{4, 5} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			b.Source.Timeout = time.Hour
			l := newFailing(t, b, hybrid.PerHour(100), hybrid.Options{OnFailure: hybrid.FailOpen, Timeout: timeout})
			b.Next(leasetest.Fault{Delay: 10 * time.Millisecond}, leasetest.Fault{LoseRequest: true})
			go l.Allow(t.Context(), "k")
			synctest.Wait()
			start := time.Now()
			burst(t.Context(), l, "k", callers) // go together, when that call is back
			synctest.Wait()
			if took := time.Since(start); took != 10*time.Millisecond+timeout || b.Calls() != 2 || l.Stats().Unavailable != (callers >= 5) {
				t.Errorf("%d callers, %d calls in %v: %+v", callers, b.Calls(), took, l.Stats())
			}
		})
	}
}

// Who waits for his turn when the breaker opens is decided by the policy, and the call is not made.
func TestAnOpenBreakerStopsThoseWhoWait(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(100), hybrid.Options{OnFailure: policy})
		b.Down(errAway)
		for i := range 4 {
			l.Allow(t.Context(), strconv.Itoa(i))
		}
		b.hook(func(lease.Request) { time.Sleep(20 * time.Millisecond) })
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				r, err := l.Allow(t.Context(), "k")
				if took := time.Since(start); took != 20*time.Millisecond || (policy == hybrid.FailClosed) != errors.Is(err, errAway) || err == nil && r.Origin != hybrid.Fallback {
					t.Errorf("%+v, %v after %v", r, err, took)
				}
			})
			if i == 0 {
				synctest.Wait()
			}
		}
		wg.Wait()
		if n := b.Calls("k"); n != 1 {
			t.Errorf("%d calls, want the one that opened the breaker", n)
		}
	})
}

func TestTIME03_OwnDeadlinesOpenNoBreaker(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		w := &listener{}
		l := newFailing(t, b, hybrid.PerHour(100_000), hybrid.Options{OnFailure: policy, Observer: w})
		b.slow(20 * time.Millisecond)
		var o outcome
		var wg sync.WaitGroup
		for i := range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%15)*time.Millisecond)
			defer cancel()
			if i%2 == 0 {
				time.AfterFunc(time.Millisecond, cancel)
			}
			wg.Go(func() {
				r, err := l.Allow(ctx, strconv.Itoa(i%50))
				o.note(ctx, r, err)
			})
			if i%100 == 99 {
				time.Sleep(time.Millisecond)
			}
		}
		wg.Wait()
		time.Sleep(200 * time.Millisecond)
		if s := l.Stats(); o.left.Load() != 1000 || s.Failed != 0 || s.Unavailable || s.Err != nil || s.Fallbacks != 0 {
			t.Errorf("%v: %+v", &o, s)
		}
		if called, failed := w.calls(); called != b.Calls() || failed != 0 {
			t.Errorf("the observer was told of %d calls and %d failures, want %d and none", called, failed, b.Calls())
		}
		if r := allowed(t, l, "k", 1); r.Origin != hybrid.Remote {
			t.Errorf("%+v", r)
		}
	})
}

// Where all callers are less patient than Timeout, a server that hangs must be found out all the same.
func TestTIME03_AHangingServerOpensItHoweverShortTheDeadlines(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for _, keys := range []int{1, 3, 1000} {
		t.Run(strconv.Itoa(keys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				b.Source.Timeout = time.Hour
				l := newFailing(t, b, hybrid.PerHour(1000), hybrid.Options{OnFailure: hybrid.FailOpen, Timeout: timeout})
				b.always(leasetest.Fault{LoseRequest: true})
				start := time.Now()
				i := 0
				for ; !l.Stats().Unavailable && time.Since(start) < time.Minute; i++ {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					if r, err := l.Allow(ctx, strconv.Itoa(i%keys)); err == nil && r.Origin != hybrid.Fallback || err != nil && err != ctx.Err() {
						t.Fatalf("%+v, %v", r, err)
					}
					cancel()
				}
				// Five calls, one after the other if there is one key.
				if took := time.Since(start); took > 5*(timeout+10*time.Millisecond) {
					t.Errorf("%d requests in %v until the breaker opened", i, took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if r, err := l.Allow(ctx, "k"); err != nil || !r.Allowed {
					t.Errorf("then %+v, %v", r, err)
				}
			})
		})
	}
}

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

func TestFailClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.Source.Timeout = time.Hour
		l := newFailing(t, b, hybrid.PerSecond(10), hybrid.Options{OnFailure: hybrid.FailClosed, Timeout: 50 * time.Millisecond})
		for _, cause := range []error{errAway, nil} {
			const key = "secret-key"
			if cause != nil {
				b.Down(cause)
			} else {
				b.always(leasetest.Fault{LoseRequest: true}) // no answer
			}
			for range 5 {
				l.Allow(t.Context(), key)
			}
			synctest.Wait()
			start := time.Now()
			for range 100 {
				for _, n := range []int{0, 1, 3} {
					r, err := l.AllowN(t.Context(), key, n)
					if !errors.Is(err, hybrid.ErrUnavailable) || cause != nil && !errors.Is(err, cause) || r != (limit.Result{}) || strings.Contains(err.Error(), key) {
						t.Fatalf("AllowN(%d): %+v, %v", n, r, err)
					}
				}
			}
			if took := time.Since(start); took != 0 || !l.Stats().Unavailable || l.Stats().Fallbacks != 0 {
				t.Errorf("took %v: %+v", took, l.Stats())
			}
			comeBack(t, b, l)
			if r := allowed(t, l, key, 1); r.Origin != hybrid.Remote {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestFailOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerSecond(10), hybrid.Options{OnFailure: hybrid.FailOpen})
		goDown(t, b, l)
		before := l.Stats().Fallbacks
		for range 100 {
			for _, n := range []int{0, 1, 3, 10} {
				if r := allowed(t, l, "k", n); r.Origin != hybrid.Fallback {
					t.Fatalf("AllowN(%d): %+v", n, r)
				}
			}
		}
		// What could never be admitted is no matter of policy.
		if _, err := l.AllowN(t.Context(), "k", 11); !errors.Is(err, hybrid.ErrExceedsBurst) {
			t.Error(err)
		}
		if got := l.Stats().Fallbacks - before; got != 400 {
			t.Errorf("%d fallbacks counted, want 400", got)
		}
	})
}

func TestEveryPolicyLeavesAloneWhatNeedsNoRedis(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		l := newFailing(t, b, limit.Limit{Rate: 1, Period: time.Hour, Burst: 100}, hybrid.Options{
			OnFailure: policy, LeaseSize: 10, LeaseTTL: time.Minute,
			LimitFor: func(key string) limit.Limit {
				switch {
				case strings.HasPrefix(key, "blocked"):
					return hybrid.Blocked()
				case strings.HasPrefix(key, "free"):
					return hybrid.Unlimited()
				}
				return limit.Limit{}
			},
		})
		allowed(t, l, "free", 1)
		allowed(t, l, "leased", 1)
		held := int(l.Stats().Held)
		goDown(t, b, l)
		for _, key := range []string{"", "2"} { // seen before and not
			if r := allowed(t, l, "free"+key, 1000); r.Origin != hybrid.Local {
				t.Errorf("%+v", r)
			}
			if r := denied(t, l, "blocked"+key, 1); r.Origin != hybrid.Local || r.RetryAfter != hybrid.Never {
				t.Errorf("%+v", r)
			}
			allowed(t, l, "blocked"+key, 0)
		}
		// Tokens that are held come first.
		fallbacks := l.Stats().Fallbacks
		if held != 9 {
			t.Fatalf("%d tokens held", held)
		}
		for _, n := range []int{3, 1, 2, 1, 1, 1} {
			if r := allowed(t, l, "leased", n); r.Origin != hybrid.Local {
				t.Errorf("a token is held, and yet %+v", r)
			}
		}
		if l.Stats().Held != 0 || l.Stats().Fallbacks != fallbacks {
			t.Errorf("%+v", l.Stats())
		}
		r, err := l.Allow(t.Context(), "leased")
		if policy == hybrid.FailClosed && !errors.Is(err, hybrid.ErrUnavailable) || policy != hybrid.FailClosed && (err != nil || !r.Allowed || r.Origin != hybrid.Fallback) {
			t.Errorf("without tokens: %+v, %v", r, err)
		}
	})
}

// Tokens whose lease ends during an outage are not spent.
func TestLeasesEndDuringAnOutage(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(100), hybrid.Options{OnFailure: policy, LeaseSize: 10, LeaseTTL: time.Second})
		allowed(t, l, "k", 1)
		goDown(t, b, l)
		time.Sleep(990 * time.Millisecond)
		if r := allowed(t, l, "k", 1); r.Origin != hybrid.Local {
			t.Errorf("before its end: %+v", r)
		}
		time.Sleep(20 * time.Millisecond)
		if r, err := l.Allow(t.Context(), "k"); err == nil && r.Origin != hybrid.Fallback {
			t.Errorf("after its end: %+v", r)
		}
	})
}

func TestPeeksLeaveNoTraceDuringAnOutage(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: policy})
		allowed(t, l, "seen", 3)
		goDown(t, b, l)
		keys, calls := l.Stats().Keys, b.Calls()
		for i := range 1000 {
			for _, key := range []string{"seen", strconv.Itoa(i)} {
				r, err := l.AllowN(t.Context(), key, 0)
				switch policy {
				case hybrid.FailClosed:
					if !errors.Is(err, hybrid.ErrUnavailable) {
						t.Fatalf("%+v, %v", r, err)
					}
				default:
					if err != nil || !r.Allowed || r.Origin != hybrid.Fallback {
						t.Fatalf("%+v, %v", r, err)
					}
				}
				if want := map[bool]int{true: 7, false: 10}[key == "seen"]; policy == hybrid.FailLocal && r.Remaining != want {
					t.Fatalf("%+v, want %d remaining", r, want)
				}
			}
		}
		if l.Stats().Keys != keys || b.Calls() != calls {
			t.Errorf("%d keys are remembered after the peeks, and %d calls were made", l.Stats().Keys-keys, b.Calls()-calls)
		}
		if policy == hybrid.FailLocal {
			if got := admitted(t, l, "seen", 12); got != 7 {
				t.Errorf("admitted %d, want 7", got)
			}
			// A share that is used is what is seen.
			if r := allowed(t, l, "seen", 0); r.Remaining != 0 {
				t.Errorf("%+v", r)
			}
			// Nothing was spent of the others, so nothing is charged.
			comeBack(t, b, l)
			allowed(t, l, "5", 1)
			if sum, _ := b.credits("5"); sum != 0 {
				t.Errorf("peeks were charged: %d", sum)
			}
		}
	})
}

func TestCONC01_CloseDuringAnOutage(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for name, fault := range map[string]leasetest.Fault{
		"silent": {LoseRequest: true}, "refusing": {Err: fmt.Errorf("%w: %w", hybrid.ErrUnavailable, errAway)},
	} {
		t.Run(name, func(t *testing.T) {
			eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
				b := newBank()
				b.Source.Timeout = time.Hour
				l := newFailing(t, b, hybrid.PerHour(100), hybrid.Options{OnFailure: policy, Timeout: timeout, LeaseSize: 5, LeaseTTL: 10 * time.Minute})
				for i := range 150 {
					allowed(t, l, strconv.Itoa(i), 1)
				}
				handle := l.Key("spent")
				b.always(fault)
				burst(t.Context(), l, "k", 10)
				for range 200 {
					l.Allow(t.Context(), "k")
					handle.Allow(t.Context())
				}
				if s := l.Stats(); !s.Unavailable || s.Held == 0 {
					t.Fatalf("%+v", s)
				}
				time.Sleep(time.Second)
				l.Allow(t.Context(), "k") // a probe is out
				start := time.Now()
				err := l.Close(t.Context())
				if took := time.Since(start); err == nil || took > 2*timeout {
					t.Errorf("Close: %v after %v, want an error within two Timeouts", err, took)
				}
				if s := l.Stats(); s.Held != 0 {
					t.Errorf("%+v", s)
				}
				checkClosed(t, l, "k", "0", "149", "never seen")
				for _, n := range []int{0, 1} {
					if r, err := handle.AllowN(t.Context(), n); !errors.Is(err, hybrid.ErrClosed) || r != (limit.Result{}) {
						t.Errorf("a handle: %+v, %v", r, err)
					}
				}
			})
		})
	}
}

// A Redis that is well but refuses, for want of rights or memory or because a key is somebody else's: only its keys are
// decided by the policy, and it is not asked over and over again.
func TestRefusedKeys(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		var text syncBuffer
		w := &listener{}
		l := newFailing(t, b, hybrid.PerMinute(600), hybrid.Options{OnFailure: policy, Observer: w, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		refuse := fmt.Errorf("%w: %w: NOPERM", hybrid.ErrUnavailable, remote.ErrRefused)
		b.Always(func(req lease.Request) leasetest.Fault {
			if strings.HasPrefix(req.Key, "bad") {
				return leasetest.Fault{Err: refuse}
			}
			return leasetest.Fault{}
		})
		_, err := l.Allow(t.Context(), "bad")
		if policy == hybrid.FailClosed && (!errors.Is(err, hybrid.ErrUnavailable) || !errors.Is(err, remote.ErrRefused)) {
			t.Errorf("%v", err)
		}
		var o outcome
		for range 1000 {
			r, err := l.Allow(t.Context(), "bad")
			o.note(t.Context(), r, err)
			if err == nil && r.Origin != hybrid.Fallback || err != nil && !errors.Is(err, hybrid.ErrUnavailable) {
				t.Fatalf("%+v, %v", r, err)
			}
			if r := ask(t, l, "good", 1); r.Origin == hybrid.Fallback {
				t.Fatalf("another key: %+v", r)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if policy == hybrid.FailClosed && o.failed.Load() != 1000 || policy == hybrid.FailOpen && o.allowed.Load() != 1000 ||
			policy == hybrid.FailLocal && (o.allowed.Load() < 695 || o.allowed.Load() > 700) {
			t.Errorf("%v", &o)
		}
		if n := b.Calls("bad"); n < 9 || n > 11 {
			t.Errorf("asked %d times in 10s", n)
		}
		for i := range 50 { // nothing but refusals
			l.Allow(t.Context(), "bad"+strconv.Itoa(i))
		}
		if s := l.Stats(); s.Unavailable || w.String() != "" {
			t.Errorf("keys are refused, and %+v, the observer was told %q", s, w)
		}
		if _, failed := w.calls(); failed < 59 {
			t.Errorf("the observer was told of %d refusals", failed)
		}
		if lines := strings.Count(text.String(), "\n"); lines == 0 || lines > 50+b.Calls("bad") || strings.Contains(text.String(), "bad") {
			t.Errorf("%d lines for %d refusals:\n%s", lines, 50+b.Calls("bad"), &text)
		}
		b.always(leasetest.Fault{})
		time.Sleep(time.Second)
		if r := ask(t, l, "bad", 1); r.Origin == hybrid.Fallback {
			t.Errorf("a second after it was mended: %+v", r)
		}
	})
}

// A probe that is refused was answered: Redis is there.
func TestARefusedProbeClosesTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: hybrid.FailOpen})
		goDown(t, b, l)
		b.Down(nil)
		b.Next(leasetest.Fault{Err: fmt.Errorf("%w: %w: NOPERM", hybrid.ErrUnavailable, remote.ErrRefused)})
		time.Sleep(time.Second)
		allowed(t, l, "bad", 1)
		synctest.Wait()
		if l.Stats().Unavailable {
			t.Error("a refusal counts as no answer")
		}
		if r := allowed(t, l, "good", 1); r.Origin != hybrid.Remote {
			t.Errorf("%+v", r)
		}
	})
}

// A probe may end in any way, and there is a next one.
func TestSF02_ProbesThatPanicAreFollowedByOthers(t *testing.T) {
	for name, f := range map[string]func(lease.Request){
		"panic":         func(lease.Request) { panic("boom") },
		"runtime error": func(lease.Request) { _ = []int{}[len(name(3))] },
		"Goexit":        func(lease.Request) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
				b := newBank()
				l := newFailing(t, b, hybrid.PerSecond(1000), hybrid.Options{OnFailure: policy})
				goDown(t, b, l)
				b.Down(nil)
				b.hook(f)
				calls := b.requested()
				for range 1000 {
					l.Allow(t.Context(), "k")
					time.Sleep(10 * time.Millisecond)
				}
				if n := b.requested() - calls; n < probes(10*time.Second, 0, 1, 10*time.Millisecond) || n > probes(10*time.Second, 0, 0.5, 0) {
					t.Errorf("%d probes in 10s", n)
				}
				if !l.Stats().Unavailable {
					t.Error("a probe without an answer closes the breaker")
				}
				b.hook(nil)
				comeBack(t, b, l)
				if r := allowed(t, l, "k", 1); r.Origin != hybrid.Remote {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// requested is how many requests were made, those included that never came to be sent.
func (b *bank) requested() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.requests)
}

// name is something the compiler does not know the length of.
func name(n int) string { return strings.Repeat("x", n) }

func TestCONC07_StartsWithoutRedisAndRecovers(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		b := newBank()
		b.Down(errAway)
		l := newFailing(t, b, hybrid.PerSecond(10), hybrid.Options{OnFailure: policy})
		start := time.Now()
		var o outcome
		for range 500 { // five seconds
			r, err := l.Allow(t.Context(), "k")
			o.note(t.Context(), r, err)
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("requests took %v", took-5*time.Second)
		}
		switch {
		case policy == hybrid.FailOpen && o.allowed.Load() == 500, policy == hybrid.FailClosed && o.failed.Load() == 500:
		case policy == hybrid.FailLocal && o.allowed.Load() >= 59 && o.allowed.Load() <= 60:
		default:
			t.Errorf("%v", &o)
		}
		comeBack(t, b, l)
		if r := ask(t, l, "k", 1); r.Origin == hybrid.Fallback {
			t.Errorf("%+v", r)
		}
	})
}

// However often the source goes and comes, after the last time the limiter is back within a second.
func TestFlapping(t *testing.T) {
	rnd := newRand(t)
	for i := range 4 {
		synctest.Test(t, func(t *testing.T) { flap(t, rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))) })
	}
}

func flap(t *testing.T, rnd *rand.Rand) {
	b := newBank()
	w := &listener{}
	l := newFailing(t, b, hybrid.PerSecond(50), hybrid.Options{
		OnFailure: policies[rnd.IntN(len(policies))], Observer: w, LeaseSize: rnd.IntN(2) * 5, Exact: rnd.IntN(3) == 0,
		MaxKeys: 1 + rnd.IntN(10),
	})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rnd.IntN(20)) * time.Millisecond):
				}
				l.AllowN(t.Context(), strconv.Itoa(rnd.IntN(12)), rnd.IntN(3))
			}
		})
	}
	for range 15 {
		switch rnd.IntN(3) {
		case 0:
			b.Down(errAway)
		case 1: // every other request
			b.Down(nil)
			up := false
			b.Always(func(lease.Request) leasetest.Fault {
				if up = !up; up {
					return leasetest.Fault{}
				}
				return leasetest.Fault{Err: hybrid.ErrUnavailable}
			})
		default:
			b.Down(nil)
			b.always(leasetest.Fault{Delay: time.Duration(rnd.IntN(5)) * time.Millisecond})
		}
		time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
	}
	b.Down(nil)
	b.always(leasetest.Fault{})
	time.Sleep(1100 * time.Millisecond)
	synctest.Wait()
	if s := l.Stats(); s.Unavailable {
		t.Errorf("stuck: %+v, after %v", s, w)
	}
	close(stop)
	wg.Wait()
	if s := l.Stats(); s.Failed == 0 || s.Calls == s.Failed {
		t.Errorf("nothing was tried: %+v", s)
	}
	if told := w.String(); strings.Trim(strings.ReplaceAll(told, "down up ", ""), " ") != "" {
		t.Errorf("the observer was told %q", told)
	}
}

// syncBuffer is a bytes.Buffer for many goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// listener is an Observer that remembers what it was told.
type listener struct {
	mu     sync.Mutex
	told   strings.Builder // "down" and "up", in order
	took   []time.Duration
	failed []error
	causes []error
	after  []time.Duration
}

func (w *listener) Called(took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = append(w.took, took)
	if err != nil {
		w.failed = append(w.failed, err)
	}
}

func (w *listener) Unavailable(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told.WriteString("down ")
	w.causes = append(w.causes, err)
}

func (w *listener) Available(after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told.WriteString("up ")
	w.after = append(w.after, after)
}

func (w *listener) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told.String()
}

func (w *listener) calls() (called, failed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.took), len(w.failed)
}

func TestObserverAndLogger(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		const key = "secret-key"
		b := newBank()
		w := &listener{}
		var text syncBuffer
		l := newFailing(t, b, hybrid.PerHour(100), hybrid.Options{OnFailure: policy, Observer: w, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		b.slow(20 * time.Millisecond)
		allowed(t, l, key, 1)
		allowed(t, l, "peek", 0)
		if len(w.took) != 2 || w.took[0] != 20*time.Millisecond || w.took[1] != 20*time.Millisecond || len(w.failed) != 0 {
			t.Errorf("told of calls that took %v and failed with %v", w.took, w.failed)
		}

		opened := time.Now()
		b.Down(errAway)
		for i := range 1000 {
			l.Allow(t.Context(), key+strconv.Itoa(i%10))
			time.Sleep(10 * time.Millisecond)
		}
		if w.String() != "down " || !errors.Is(w.causes[0], errAway) {
			t.Fatalf("told %q for %v", w, w.causes)
		}
		called, failed := w.calls()
		if called != b.Calls() || failed != called-2 || int64(failed) != l.Stats().Failed || !errors.Is(w.failed[failed-1], errAway) {
			t.Errorf("told of %d calls of %d, and %d failures, the last was %v", called, b.Calls(), failed, w.failed[failed-1])
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], policy.String()) || !strings.Contains(lines[0], errAway.Error()) {
			t.Errorf("logged after 10s of outage:\n%s", &text)
		}

		b.Down(nil)
		b.always(leasetest.Fault{})
		recovered(t, l)
		// Down since the fifth request, the last but one probe was in vain.
		took := time.Since(opened)
		if w.String() != "down up " || w.after[0] < 10*time.Second || w.after[0] > took {
			t.Errorf("told %q, %v after %v", w, w.after, took)
		}
		lines = strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[1], "level=INFO") || !strings.Contains(lines[1], "after="+w.after[0].String()) {
			t.Errorf("logged after the outage:\n%s", &text)
		}
		if strings.Contains(text.String(), key) {
			t.Errorf("a key was logged:\n%s", &text)
		}
	})
}

func TestRATE03_BadFailureSettingsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		field string
		opts  hybrid.Options
	}{
		{"Options.OnFailure", hybrid.Options{OnFailure: -1}},
		{"Options.OnFailure", hybrid.Options{OnFailure: hybrid.FailOpen + 1}},
		{"Options.Instances", hybrid.Options{Instances: -1}},
		{"Options.Instances", hybrid.Options{Instances: -1 << 31}},
	} {
		l, err := hybrid.NewFrom(newBank(), hybrid.PerSecond(1), c.opts)
		if l != nil || !errors.Is(err, hybrid.ErrInvalid) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%+v: %v, %v; want an error about %s", c.opts, l, err, c.field)
		}
	}
	for policy, want := range map[hybrid.FailurePolicy]string{
		hybrid.FailLocal: "local", hybrid.FailClosed: "closed", hybrid.FailOpen: "open", 7: "FailurePolicy(7)",
	} {
		if policy.String() != want {
			t.Errorf("%d is %q, want %q", int(policy), policy, want)
		}
	}
	if (hybrid.Options{}).OnFailure != hybrid.FailLocal {
		t.Error("the default is not FailLocal")
	}
	synctest.Test(t, func(t *testing.T) {
		if n := newFailing(t, newBank(), hybrid.PerSecond(1), hybrid.Options{}).Stats().Instances; n != 1 {
			t.Errorf("%d instances by default, want 1", n)
		}
	})
}
