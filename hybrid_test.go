package hybrid_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

var (
	_ limit.Limiter   = (*hybrid.Limiter)(nil)
	_ limit.Describer = (*hybrid.Limiter)(nil)
	_ lease.Source    = (*bank)(nil)
)

func TestCONC07_NilClientsAndSourcesAreErrorsOfNew(t *testing.T) {
	lim := hybrid.PerSecond(1)
	var client *redis.Client
	var cluster *redis.ClusterClient
	var src *leasetest.Source
	for name, f := range map[string]func() (*hybrid.Limiter, error){
		"nil client":              func() (*hybrid.Limiter, error) { return hybrid.New(nil, lim, hybrid.Options{}) },
		"typed nil client":        func() (*hybrid.Limiter, error) { return hybrid.New(client, lim, hybrid.Options{}) },
		"typed nil cluster":       func() (*hybrid.Limiter, error) { return hybrid.New(cluster, lim, hybrid.Options{}) },
		"nil source":              func() (*hybrid.Limiter, error) { return hybrid.NewFrom(nil, lim, hybrid.Options{}) },
		"typed nil source":        func() (*hybrid.Limiter, error) { return hybrid.NewFrom(src, lim, hybrid.Options{}) },
		"source of another's nil": func() (*hybrid.Limiter, error) { return hybrid.NewFrom((*bank)(nil), lim, hybrid.Options{}) },
	} {
		l, err := f()
		if l != nil || !errors.Is(err, hybrid.ErrInvalid) || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}

func TestRATE03_BadSettingsAreRefusedByName(t *testing.T) {
	good := hybrid.PerSecond(10)
	for _, c := range []struct {
		field string
		lim   limit.Limit
		opts  hybrid.Options
	}{
		{"zero Limit", limit.Limit{}, hybrid.Options{}},
		{"Rate", limit.Limit{Rate: -1, Period: time.Second, Burst: 1}, hybrid.Options{}},
		{"Rate", limit.Limit{Period: time.Second, Burst: 1}, hybrid.Options{}},
		{"Period", limit.Limit{Rate: 1, Burst: 1}, hybrid.Options{}},
		{"Period", limit.Limit{Rate: 1, Period: -time.Second, Burst: 1}, hybrid.Options{}},
		{"Period", limit.Limit{Rate: 1, Period: 1500, Burst: 1}, hybrid.Options{}},
		{"Burst", limit.Limit{Rate: 1, Period: time.Second}, hybrid.Options{}},
		{"Burst", limit.Limit{Rate: 1, Period: time.Second, Burst: -1}, hybrid.Options{}},
		{"Options.Prefix", good, hybrid.Options{Prefix: "a{b"}},
		{"Options.Prefix", good, hybrid.Options{Prefix: "}"}},
		{"Options.LeaseSize", good, hybrid.Options{LeaseSize: -1}},
		{"Options.LeaseTTL", good, hybrid.Options{LeaseTTL: -1}},
		{"Options.MaxLeased", good, hybrid.Options{MaxLeased: -0.1}},
		{"Options.MaxLeased", good, hybrid.Options{MaxLeased: 1.1}},
		{"Options.MaxLeased", good, hybrid.Options{MaxLeased: math.NaN()}},
		{"Options.Slack", good, hybrid.Options{Slack: -0.1}},
		{"Options.Slack", good, hybrid.Options{Slack: 1.5}},
		{"Options.Slack", good, hybrid.Options{Slack: math.Inf(1)}},
		{"Options.Refresh", good, hybrid.Options{Refresh: -time.Second}},
		{"Options.MaxKeys", good, hybrid.Options{MaxKeys: -1}},
		{"Options.Timeout", good, hybrid.Options{Timeout: -1}},
	} {
		b := newBank()
		l, err := hybrid.NewFrom(b, c.lim, c.opts)
		if l != nil || !errors.Is(err, hybrid.ErrInvalid) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%+v %+v: %v, %v; want an error about %s", c.lim, c.opts, l, err, c.field)
		}
		if n := b.Calls(); n != 0 {
			t.Errorf("%s: %d calls", c.field, n)
		}
	}
}

// What cannot be decided is refused before anything is charged, asked or kept.
func TestCOST03_BadRequestsReachNobody(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerHour(20)
				l := newLimiter(t, b, lim, opts)
				defer closeLimiter(t, l)
				long := strings.Repeat("k", limit.MaxKeyLen+1)
				refuse := func() {
					t.Helper()
					calls, stats := b.Calls(), l.Stats()
					for _, c := range []struct {
						key  string
						n    int
						want error
					}{
						{"", 1, hybrid.ErrInvalidKey}, {long, 1, hybrid.ErrInvalidKey}, {"", -1, hybrid.ErrInvalidKey}, {long, 0, hybrid.ErrInvalidKey},
						{"k", -1, hybrid.ErrInvalidTokens}, {"k", -1000, hybrid.ErrInvalidTokens}, {"k", math.MinInt, hybrid.ErrInvalidTokens},
						{"k", 21, hybrid.ErrExceedsBurst}, {"k", math.MaxInt, hybrid.ErrExceedsBurst},
					} {
						for way, f := range map[string]func() (limit.Result, error){
							"limiter": func() (limit.Result, error) { return l.AllowN(t.Context(), c.key, c.n) },
							"handle":  func() (limit.Result, error) { return l.Key(c.key).AllowN(t.Context(), c.n) },
						} {
							if r, err := f(); !errors.Is(err, c.want) || r != (limit.Result{}) {
								t.Errorf("%s, key of %d bytes, n = %d: %+v, %v; want %v", way, len(c.key), c.n, r, err, c.want)
							}
						}
					}
					if now := l.Stats(); b.Calls() != calls || now.Held != stats.Held {
						t.Errorf("bad requests made %d calls, and %+v of %+v", b.Calls()-calls, now, stats)
					}
				}
				refuse()
				if got := admitted(t, l, "k", 30); got != 20 {
					t.Errorf("admitted %d, want 20", got)
				}
				refuse()
				denied(t, l, "k", 1)
				refuse()
			})
		})
	}
}

func TestRATE05_LimitsWithoutARateNeverAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		for _, lim := range []limit.Limit{hybrid.Unlimited(), hybrid.Blocked()} {
			for name, opts := range modes() {
				l := newLimiter(t, b, lim, opts)
				k := l.Key("k")
				for _, n := range []int{0, 1, 1000, math.MaxInt} {
					want := limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: hybrid.Local}, Remaining: math.MaxInt}
					if lim == hybrid.Blocked() {
						want.Remaining = 0
						if n > 0 {
							want.Allowed, want.RetryAfter = false, hybrid.Never
						}
					}
					r, err := l.AllowN(t.Context(), "k", n)
					if r != want || err != nil {
						t.Errorf("%v, %s: AllowN(%d) = %+v, %v; want %+v", lim, name, n, r, err, want)
					}
					if r, err = k.AllowN(t.Context(), n); r != want || err != nil {
						t.Errorf("%v, %s: handle AllowN(%d) = %+v, %v; want %+v", lim, name, n, r, err, want)
					}
				}
				if _, err := l.AllowN(t.Context(), "k", -1); !errors.Is(err, hybrid.ErrInvalidTokens) {
					t.Errorf("%v: n = -1: %v", lim, err)
				}
				reset(t, l, "k")
				closeLimiter(t, l)
				if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, hybrid.ErrClosed) {
					t.Errorf("%v: after Close: %v", lim, err)
				}
			}
		}
		if n := b.Calls(); n != 0 {
			t.Errorf("%d calls", n)
		}
	})
}

func TestCOST04_PeekTakesNothingAndLeavesNoTrace(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				lim := hybrid.PerHour(10)
				l := newLimiter(t, b, lim, opts)
				defer closeLimiter(t, l)
				peek := func(want int) limit.Result {
					t.Helper()
					r := allowed(t, l, "k", 0)
					if r.Remaining != want {
						t.Fatalf("%d remain, want %d", r.Remaining, want)
					}
					return r
				}
				for range 5 {
					peek(10)
				}
				if s := l.Stats(); s.Keys != 0 || s.Leased != 0 || b.State("k").Exists {
					t.Errorf("peeks at an unknown key left %+v, %+v", s, b.State("k"))
				}
				for range 4 {
					allowed(t, l, "k", 1)
				}
				synctest.Wait() // for a lease ahead of need
				before := b.State("k")
				for range 5 {
					peek(6)
				}
				if r := allowed(t, l, "k", 1); r.Remaining != 5 {
					t.Errorf("%d remain, want 5", r.Remaining)
				}
				if after := b.State("k"); l.Stats().Held > 0 && after.Deadline != before.Deadline {
					t.Errorf("peeks renewed the key")
				}
				admitted(t, l, "k", 10)
				denied(t, l, "k", 1)
				synctest.Wait()
				calls := b.Calls()
				if r := peek(0); r.Origin != hybrid.Local || b.Calls() != calls {
					t.Errorf("a peek at a key known to be dry: %+v, %d calls", r, b.Calls()-calls)
				}
				denied(t, l, "k", 1)
			})
		})
	}
}

func TestPeekAnswersFromMemoryWhileTokensAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerMinute(100), hybrid.Options{LeaseSize: 10})
		defer closeLimiter(t, l)
		if r := allowed(t, l, "k", 0); r.Origin != hybrid.Remote || r.Remaining != 100 {
			t.Errorf("unknown key: %+v", r)
		}
		allowed(t, l, "k", 1)
		synctest.Wait()
		calls := b.Calls()
		if r := allowed(t, l, "k", 0); r.Origin != hybrid.Local || r.Remaining != 99 || b.Calls() != calls {
			t.Errorf("tokens held: %+v, %d calls", r, b.Calls()-calls)
		}
	})
}

func TestREM03_PeekSeesTheRefill(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newBank(), hybrid.PerSecond(1).WithBurst(10), opts)
				defer closeLimiter(t, l)
				if got := admitted(t, l, "k", 12); got != 10 {
					t.Fatalf("admitted %d, want 10", got)
				}
				start := time.Now()
				for _, s := range []struct {
					at   time.Duration
					want int
				}{{500 * time.Millisecond, 0}, {3 * time.Second, 3}, {3500 * time.Millisecond, 3}, {20 * time.Second, 10}} {
					time.Sleep(time.Until(start.Add(s.at)))
					if r := allowed(t, l, "k", 0); r.Remaining != s.want {
						t.Errorf("after %v %d remain, want %d", s.at, r.Remaining, s.want)
					}
				}
				if r := allowed(t, l, "k", 1); r.Remaining != 9 {
					t.Errorf("%d remain, want 9", r.Remaining)
				}
			})
		})
	}
}

// The tenth of ten leaves none, and Remaining falls by one with each: however the tokens come.
func TestREM02_TheLastTokenIsTheLast(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newBank(), limit.Limit{Rate: 10, Period: time.Hour, Burst: 10}, opts)
				defer closeLimiter(t, l)
				for i := range 10 {
					if r := allowed(t, l, "k", 1); r.Remaining != 9-i {
						t.Errorf("request %d: %d remain, want %d", i+1, r.Remaining, 9-i)
					}
					synctest.Wait() // while a lease comes in, what remains is an estimate
				}
				denied(t, l, "k", 1)
			})
		})
	}
}

func TestREM01_TheFirstRequestCountsOne(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newBank(), hybrid.PerHour(150), opts)
				defer closeLimiter(t, l)
				for range 2 {
					if r := allowed(t, l, "k", 1); r.Remaining != 149 {
						t.Errorf("%d remain after the first, want 149", r.Remaining)
					}
					if got := admitted(t, l, "k", 160); got != 149 {
						t.Errorf("admitted %d more, want 149", got)
					}
					time.Sleep(time.Hour + time.Second)
				}
			})
		})
	}
}

// Whoever waits for RetryAfter and meets no other traffic is admitted, and sooner it was not possible by more than the
// hold-off of a second. The exception are costs that do not fit beside what may be lent: tokens that this process has
// spent of a lease keep their place in the bucket until it reports them, with its next call.
func TestRETRY06_RetryAfterIsEnough(t *testing.T) {
	limits := []limit.Limit{
		hybrid.PerSecond(1), hybrid.PerSecond(10), hybrid.PerSecond(1000), hybrid.PerMinute(7), hybrid.PerHour(3),
		{Rate: 1000, Period: time.Second, Burst: 40}, {Rate: 3, Period: time.Second, Burst: 1},
		{Rate: 999_983, Period: time.Second, Burst: 5000}, {Rate: 10, Period: time.Second, Burst: 300},
	}
	for name, opts := range modes() {
		for _, delay := range []time.Duration{0, 3 * time.Millisecond} {
			t.Run(name+" "+delay.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rng := newRand(t)
					denials := 0
					for _, lim := range limits {
						b := newBank()
						b.always(leasetest.Fault{Delay: delay / 3, Reply: delay - delay/3})
						l := newLimiter(t, b, lim, opts)
						largest := lim.Burst
						if !opts.Exact {
							lent := l.Stats().Terms.MaxLeased
							if fixed := l.Stats().Terms.Fixed; fixed > 0 {
								lent = fixed
							}
							largest = max(1, lim.Burst-int(lent))
						}
						for range 60 {
							n := 1 + rng.IntN(largest)
							if rng.IntN(2) == 0 {
								n = 1 + rng.IntN(min(largest, 4))
							}
							r := ask(t, l, "k", n)
							for range rng.IntN(3) { // others are denied meanwhile
								ask(t, l, "k", n)
							}
							if r = ask(t, l, "k", n); r.Allowed {
								if rng.IntN(4) == 0 {
									time.Sleep(time.Duration(rng.Int64N(int64(lim.ResetAfter(0) / 2))))
								}
								continue
							}
							denials++
							full := lim.ResetAfter(0)
							if r.RetryAfter > full+time.Second || r.ResetAfter > full+time.Second {
								t.Errorf("%v: n = %d: %+v, though all is back after %v", lim, n, r, full)
							}
							time.Sleep(r.RetryAfter)
							if again := ask(t, l, "k", n); !again.Allowed {
								t.Errorf("%v: n = %d: denied with %+v and after that time with %+v", lim, n, r, again)
							}
						}
						closeLimiter(t, l)
					}
					if denials < 50 {
						t.Errorf("only %d denials", denials)
					}
				})
			})
		}
	}
}

func TestOriginSaysWhereItWasDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerMinute(100)
		leased := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 3})
		exact := newLimiter(t, b, lim, hybrid.Options{Exact: true})
		defer closeLimiter(t, leased)
		defer closeLimiter(t, exact)
		for i, want := range []limit.Origin{hybrid.Remote, hybrid.Local} {
			if r := allowed(t, leased, "k", 1); r.Origin != want || r.Remaining != 99-i {
				t.Errorf("leased, request %d: %+v, want it from %v", i, r, want)
			}
			synctest.Wait()
		}
		for i := range 3 {
			if r := allowed(t, exact, "x", 1); r.Origin != hybrid.Remote || r.Remaining != 99-i {
				t.Errorf("exact, request %d: %+v", i, r)
			}
		}
		allowed(t, exact, "x", 97)
		for i, want := range []limit.Origin{hybrid.Remote, hybrid.Local, hybrid.Local} {
			if r := denied(t, exact, "x", 1); r.Origin != want {
				t.Errorf("denial %d: %+v, want it from %v", i, r, want)
			}
		}
	})
}

func TestExactKeepsNoTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerSecond(100)
		l := newLimiter(t, b, lim, hybrid.Options{Exact: true})
		for i := range 50 {
			if r := allowed(t, l, "k", 1); r.Origin != hybrid.Remote {
				t.Fatalf("%+v", r)
			}
			if got := b.level("k", lim); got != int64(99-i) {
				t.Fatalf("after %d requests the bucket holds %d", i+1, got)
			}
			if req := b.last(); req.Lease.ID != "" {
				t.Fatalf("asked for a lease: %+v", req)
			}
		}
		if s := l.Stats(); s.Leased != 0 || s.Held != 0 || s.Calls != 50 {
			t.Errorf("%+v", s)
		}
		closeLimiter(t, l)
		if b.Calls() != 50 {
			t.Errorf("%d calls", b.Calls())
		}
	})
}

// Denials that are certain are answered in memory; a smaller cost may pass and is asked for.
func TestExactAnswersCertainDenialsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		l := newLimiter(t, b, hybrid.PerSecond(10), hybrid.Options{Exact: true})
		defer closeLimiter(t, l)
		allowed(t, l, "k", 8)
		start := time.Now()
		if r := denied(t, l, "k", 5); r.Origin != hybrid.Remote || r.Remaining != 2 || r.RetryAfter != 300*time.Millisecond {
			t.Errorf("%+v", r)
		}
		calls := b.Calls()
		for range 100 {
			r := denied(t, l, "k", 5+b.Calls()%3)
			if r.Origin != hybrid.Local || r.RetryAfter > 500*time.Millisecond {
				t.Errorf("%+v", r)
			}
			time.Sleep(time.Millisecond)
		}
		if b.Calls() != calls {
			t.Errorf("%d calls for certain denials", b.Calls()-calls)
		}
		if r := allowed(t, l, "k", 2); r.Origin != hybrid.Remote || r.Remaining != 1 {
			t.Errorf("a cost that fits: %+v", r)
		}
		time.Sleep(time.Until(start.Add(500 * time.Millisecond)))
		allowed(t, l, "k", 5)
	})
}

func TestLeasedAndExactProcessesShareAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerMinute(60)
		var e leasetest.Envelope
		var all []*hybrid.Limiter
		for _, opts := range []hybrid.Options{{}, {Exact: true}, {LeaseSize: 5}, {Exact: true}} {
			all = append(all, newLimiter(t, b, lim, opts))
		}
		rng := newRand(t)
		for range 4000 {
			if ask(t, all[rng.IntN(len(all))], "k", 1).Allowed {
				e.Add(b.Now(), 1)
			}
			time.Sleep(time.Duration(rng.Int64N(int64(60 * time.Millisecond))))
		}
		for _, l := range all {
			closeLimiter(t, l)
		}
		if w := e.Worst(lim); w.Excess > 0 {
			t.Error(w)
		}
		if got := e.Admitted(); got < 60+115 { // two minutes
			t.Errorf("admitted %d", got)
		}
	})
}

func TestStringAndStatsShowWhatIsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		for _, c := range []struct {
			lim  limit.Limit
			opts hybrid.Options
			want []string
		}{
			{hybrid.PerSecond(100), hybrid.Options{}, []string{"100/s", "leases of 50ms ", "200ms", "at most 25 ", "slack 0"}},
			{hybrid.PerSecond(100), hybrid.Options{LeaseSize: 1000}, []string{"leases of 25 "}},
			{hybrid.PerSecond(100), hybrid.Options{LeaseSize: 7, MaxLeased: 0.5, Slack: 0.1}, []string{"leases of 7 ", "at most 50 ", "slack 10"}},
			{hybrid.PerSecond(100), hybrid.Options{LeaseTTL: time.Hour}, []string{"500ms"}},
			{hybrid.PerSecond(100), hybrid.Options{Refresh: 20 * time.Millisecond}, []string{"leases of 20ms ", "80ms"}},
			{hybrid.PerSecond(100), hybrid.Options{Exact: true}, []string{"100/s, exact"}},
			{hybrid.PerSecond(2), hybrid.Options{LeaseSize: 5}, []string{"leases of 1 ", "at most 1 "}},
			{hybrid.Blocked(), hybrid.Options{}, []string{"blocked"}},
			{hybrid.Unlimited(), hybrid.Options{}, []string{"unlimited"}},
		} {
			l := newLimiter(t, b, c.lim, c.opts)
			for _, want := range c.want {
				if got := l.String(); !strings.Contains(got, want) {
					t.Errorf("%q does not say %q", got, want)
				}
				if got := l.Key("secret").String(); !strings.Contains(got, want) || strings.Contains(got, "secret") {
					t.Errorf("handle: %q", got)
				}
			}
			closeLimiter(t, l)
		}
		l := newLimiter(t, b, hybrid.PerMinute(100), hybrid.Options{LeaseSize: 10})
		b.always(leasetest.Fault{Delay: time.Millisecond, Reply: time.Millisecond})
		if s := l.Stats(); s.Terms.Fixed != 10 || s.Terms.Limit != hybrid.PerMinute(100) || s.Calls != 0 || s.Held != 0 || s.Keys != 0 {
			t.Errorf("at first: %+v", s)
		}
		for range 5 {
			allowed(t, l, "a", 1)
		}
		b.Down(errors.New("away"))
		if _, err := l.Allow(t.Context(), "b"); !errors.Is(err, hybrid.ErrUnavailable) {
			t.Error(err)
		}
		s := l.Stats()
		if s.Keys != 2 || s.Calls != 2 || s.Failed != 1 || s.Leased != 9 || s.Held != 5 || s.RoundTrip < 2*time.Millisecond {
			t.Errorf("then: %+v", s)
		}
		b.Down(nil)
		closeLimiter(t, l)
		if s := l.Stats(); s.Held != 0 || s.Returned != 5 {
			t.Errorf("after Close: %+v", s)
		}
	})
}

func TestHandleSurvivesEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerHour(50)
		l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 5, MaxKeys: 1})
		k := l.Key("k")
		got := 0
		for range 100 {
			r, err := k.Allow(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if r.Allowed {
				got++
			}
			if r, err = k.AllowN(t.Context(), 0); err != nil || !r.Allowed {
				t.Fatalf("peek: %+v, %v", r, err)
			}
			allowed(t, l, "another", 0)
			ask(t, l, "another", 1)
			synctest.Wait()
		}
		if got != 50 {
			t.Errorf("admitted %d through a handle whose key was forgotten again and again, want 50", got)
		}
		if k.LimitOf() != lim {
			t.Errorf("LimitOf: %v", k.LimitOf())
		}
		closeLimiter(t, l)
	})
}

// The local path does not look at ctx, the way to Redis does.
func TestWAIT03_ContextsThatHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l := newLimiter(t, b, hybrid.PerMinute(100), hybrid.Options{LeaseSize: 10})
		defer closeLimiter(t, l)
		for _, n := range []int{0, 1} {
			if r, err := l.AllowN(ctx, "k", n); !errors.Is(err, context.Canceled) || r != (limit.Result{}) {
				t.Errorf("n = %d, nothing held: %+v, %v", n, r, err)
			}
		}
		if n := b.Calls(); n != 0 {
			t.Errorf("%d calls for a caller who has left", n)
		}
		allowed(t, l, "k", 1)
		if r, err := l.Allow(ctx, "k"); err != nil || !r.Allowed || r.Origin != hybrid.Local {
			t.Errorf("tokens held: %+v, %v", r, err)
		}
	})
}
