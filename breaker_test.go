package hybrid_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/hybridlimit/hybrid/remote"
)

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
