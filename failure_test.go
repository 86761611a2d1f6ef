package hybrid_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
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

// While a refused key is not asked for, callers hear why.
func TestARefusedKeyTellsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: hybrid.FailClosed})
		b.Next(leasetest.Fault{Err: fmt.Errorf("%w: yesterday", hybrid.ErrUnavailable)})
		l.Allow(t.Context(), "k")
		allowed(t, l, "k", 1)
		time.Sleep(24 * time.Hour)
		b.always(leasetest.Fault{Err: fmt.Errorf("%w: %w: NOPERM", hybrid.ErrUnavailable, remote.ErrRefused)})
		l.Allow(t.Context(), "k")
		_, err := l.Allow(t.Context(), "k")
		if !errors.Is(err, remote.ErrRefused) {
			t.Errorf("%v", err)
		}
	})
}

// That it lay idle during the outage does not matter any more.
func TestABusyLeaseIsNotGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newFailing(t, b, limit.Limit{Rate: 1, Period: time.Hour, Burst: 1000}, hybrid.Options{LeaseSize: 100, LeaseTTL: time.Hour, OnFailure: hybrid.FailOpen})
		allowed(t, l, "k", 1)
		goDown(t, b, l)
		time.Sleep(20 * time.Minute) // the lease lies idle, and cannot be given back
		comeBack(t, b, l)
		from := b.requested()
		for range 76 {
			allowed(t, l, "k", 1)
			synctest.Wait()
		}
		for _, r := range b.requests[from:] {
			if r.Key == "k" && r.Lease.Want == 0 {
				t.Errorf("gave a lease back that is in use: %+v", r.Lease)
			}
		}
	})
}

// A caller who is alone waits for each of the failures that open the breaker, and then no more.
func TestOneCallerAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.always(leasetest.Fault{LoseRequest: true})
		l := newLimiter(t, b, hybrid.PerSecond(10), hybrid.Options{})
		defer l.Close(t.Context())
		for i := range 8 {
			start, want := time.Now(), 100*time.Millisecond
			if i >= 5 {
				want = 0
			}
			if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, hybrid.ErrUnavailable) || time.Since(start) != want {
				t.Errorf("number %d: %v after %v, want ErrUnavailable after %v", i, err, time.Since(start), want)
			}
		}
	})
}
