package httplimit_test

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func TestHDR01_SecondsOrEpoch(t *testing.T) {
	c := newClock()
	c.at(17 * time.Second)
	s := newSite(t, window(t, c, limit.PerMinute(10)), httplimit.Options{Dialect: httplimit.Draft11})
	want(t, s.get(), 200, "X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 9", "X-RateLimit-Reset: 43",
		`RateLimit-Policy: "default";q=10;w=60`, `RateLimit: "default";r=9;t=43`, "Retry-After:")

	synctest.Test(t, func(t *testing.T) { // epoch seconds are those of the real clock
		start := time.Now()
		l, err := local.NewFixedWindow(limit.PerMinute(10), local.Options{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(17 * time.Second)
		s := newSite(t, l, httplimit.Options{XRateLimit: httplimit.XEpoch, Dialect: httplimit.Draft12})
		want(t, s.get(), 200, fmt.Sprintf("X-RateLimit-Reset: %d", start.Unix()+60), `RateLimit: "default";a=9;w=43`)
	})
}

func TestHDR02_RetryAfterIsSecondsToTheEndOfTheWindow(t *testing.T) {
	c := newClock()
	s := newSite(t, window(t, c, limit.PerMinute(5)), httplimit.Options{})
	for i := range 5 {
		c.at(time.Duration(2*i) * time.Second)
		want(t, s.get(), 200)
	}
	c.at(20 * time.Second)
	want(t, s.get(), 429, "Retry-After: 40")
}

var number = regexp.MustCompile(`^[0-9]+$`)

func TestHDR03_WholeNumbers(t *testing.T) {
	c := newClock()
	s := newSite(t, bucket(t, c, limit.PerSecond(2).WithBurst(1)), httplimit.Options{})
	want(t, s.get(), 200)
	resp := s.get()
	want(t, resp, 429, "Retry-After: 1")
	checkNumbers(t, resp, "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")

	res := denied(3_000_000_000*time.Second + 1)
	res.Remaining = math.MaxInt32 - 5
	l := &described{fixed{res: res}, limit.PerSecond(math.MaxInt32)}
	resp = newSite(t, l, httplimit.Options{}).get()
	want(t, resp, 429, "Retry-After: 3000000001", "X-RateLimit-Limit: 2147483647", "X-RateLimit-Remaining: 2147483642")
	checkNumbers(t, resp, "X-RateLimit-Reset")

	if math.MaxInt == math.MaxInt32 {
		return
	}
	huge := math.MaxInt32 // a variable, or it would not compile for 32 bits
	huge++
	res.Remaining = huge * 2
	l = &described{fixed{res: res}, limit.PerSecond(huge * 4)}
	want(t, newSite(t, l, httplimit.Options{}).get(), 429, "X-RateLimit-Limit: 8589934592", "X-RateLimit-Remaining: 4294967296")
}

func checkNumbers(t *testing.T, resp *http.Response, names ...string) {
	t.Helper()
	for _, name := range names {
		if v := resp.Header.Get(name); !number.MatchString(v) {
			t.Errorf("%s: %q is no whole number", name, v)
		}
	}
}

func TestHDR04_RetryAfterOnlyOnDenials(t *testing.T) {
	s := newSite(t, window(t, newClock(), limit.PerMinute(2)), httplimit.Options{})
	want(t, s.get(), 200, "X-RateLimit-Limit: 2", "X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 60", "Retry-After:", "Cache-Control:")
	want(t, s.get(), 200, "X-RateLimit-Limit: 2", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60", "Retry-After:")
	want(t, s.get(), 429, "X-RateLimit-Limit: 2", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60", "Retry-After: 60", "Cache-Control: no-store")
}

func TestHDR05_ResetDoesNotMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		for _, style := range []httplimit.XStyle{httplimit.XDelta, httplimit.XEpoch} {
			begin := time.Now()
			l, err := local.NewFixedWindow(limit.PerMinute(5), local.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := newSite(t, l, httplimit.Options{XRateLimit: style})
			for i, at := range []int64{1, 2, 3, 50, 61} {
				time.Sleep(time.Until(begin.Add(time.Duration(at) * time.Second)))
				reset := []int64{59, 58, 57, 10, 59}[i]
				if style == httplimit.XEpoch {
					reset = begin.Unix() + []int64{60, 60, 60, 60, 120}[i]
				}
				want(t, s.get(), 200, fmt.Sprintf("X-RateLimit-Reset: %d", reset))
			}
			time.Sleep(time.Until(start.Add(2 * time.Minute)))
		}
		// The limiter reads its clock a little before the headers are made.
		l := &described{fixed{res: limit.Result{Verdict: allowed(1).Verdict, Remaining: 1, ResetAfter: 30 * time.Second}}, limit.PerMinute(5)}
		now := time.Now().Unix()
		time.Sleep(20 * time.Millisecond)
		want(t, newSite(t, l, httplimit.Options{XRateLimit: httplimit.XEpoch}).get(), 200, fmt.Sprintf("X-RateLimit-Reset: %d", now+30))
	})
}

func TestHDR06_NothingAbsurd(t *testing.T) {
	c := newClock()
	l := window(t, c, limit.PerMinute(5))
	s := newSite(t, l, httplimit.Options{Dialect: httplimit.Draft11})
	c.at(17 * time.Second)
	want(t, s.get(), 200, "X-RateLimit-Remaining: 4", "X-RateLimit-Reset: 43") // the first request ever
	c.at(60 * time.Second)
	want(t, s.get(), 200, "X-RateLimit-Remaining: 4", "X-RateLimit-Reset: 60") // at the edge
	c.at(70 * time.Second)
	want(t, s.get(), 200, "X-RateLimit-Remaining: 3", "X-RateLimit-Reset: 50")
	if err := l.Reset(t.Context(), "addr:192.0.2.1"); err != nil { // the key is lost
		t.Fatal(err)
	}
	want(t, s.get(), 200, "X-RateLimit-Remaining: 4", "X-RateLimit-Reset: 50")

	open := limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Fallback}}
	s = newSite(t, &described{fixed{res: open}, limit.PerMinute(5)}, httplimit.Options{Dialect: httplimit.Draft11})
	want(t, s.get(), 200, append(noRateHeaders, "Retry-After:")...)

	// A limiter that computes nonsense.
	bad := limit.Result{Verdict: limit.Verdict{Origin: limit.Remote}, Remaining: -3, RetryAfter: -time.Hour, ResetAfter: -time.Hour}
	s = newSite(t, &described{fixed{res: bad}, limit.PerMinute(5)}, httplimit.Options{Dialect: httplimit.Draft11})
	want(t, s.get(), 429, "Retry-After: 1", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60", `RateLimit: "default";r=0;t=1`)
}

// With whole seconds there are only four values from 30 to 33, so the five values that the case asks for need a larger
// jitter.
func TestHDR07_Jitter(t *testing.T) {
	c := newClock()
	l := window(t, c, limit.PerMinute(100))
	for range 100 {
		if _, err := l.Allow(t.Context(), "addr:192.0.2.1"); err != nil {
			t.Fatal(err)
		}
	}
	c.at(30 * time.Second)
	for _, tt := range []struct {
		jitter float64
		most   int
	}{{0, 30}, {0.1, 33}, {0.2, 36}} {
		s := newSite(t, l, httplimit.Options{Jitter: tt.jitter, Dialect: httplimit.Draft11})
		seen := map[int]bool{}
		for range 1000 {
			resp := s.get()
			want(t, resp, 429, "X-RateLimit-Reset: 30", `RateLimit: "default";r=0;t=30`)
			n, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			if err != nil || n < 30 || n > tt.most {
				t.Fatalf("jitter %v: Retry-After %q, want 30 to %d", tt.jitter, resp.Header.Get("Retry-After"), tt.most)
			}
			seen[n] = true
		}
		if len(seen) != tt.most-29 {
			t.Errorf("jitter %v: %d different values, want %d", tt.jitter, len(seen), tt.most-29)
		}
	}
}

func TestRETRY01_RoundedUp(t *testing.T) {
	c := newClock()
	s := newSite(t, bucket(t, c, limit.Limit{Rate: 2, Period: 3 * time.Second, Burst: 1}), httplimit.Options{})
	want(t, s.get(), 200)
	c.at(200 * time.Millisecond)
	want(t, s.get(), 429, "Retry-After: 2")
	c.at(1499 * time.Millisecond)
	want(t, s.get(), 429, "Retry-After: 1")
	c.at(1500 * time.Millisecond)
	want(t, s.get(), 200)
	for wait, header := range map[time.Duration]string{
		0: "1", 1: "1", time.Millisecond: "1", time.Second: "1", time.Second + 1: "2", 1001 * time.Millisecond: "2", time.Hour: "3600",
		limit.Never - 1: "9223372037", limit.Never: "",
	} {
		want(t, newSite(t, &fixed{res: denied(wait)}, httplimit.Options{}).get(), 429, "Retry-After: "+header)
	}
}

// TestFields says what is told about limits of all sorts, with one token taken.
func TestFields(t *testing.T) {
	for _, tt := range []struct {
		lim           limit.Limit
		policy, field string
		x             string // limit remaining reset
	}{
		{limit.PerSecond(10), `q=10;w=1`, `r=9;t=1`, "10 9 1"},
		{limit.PerMinute(100), `q=100;w=60`, `r=99;t=1`, "100 99 1"},
		{limit.PerMinute(3), `q=3;w=60`, `r=2;t=20`, "3 2 20"},
		{limit.PerHour(10), `q=10;w=3600`, `r=9;t=360`, "10 9 360"},
		{limit.PerDay(1), `q=1;w=86400`, `r=0;t=86400`, "1 0 86400"},
		// A burst that is not the rate: the policy tells the rate, over the time in which the burst is refilled.
		{limit.PerSecond(10).WithBurst(25), `q=30;w=3`, `r=24;t=1`, "25 24 1"},
		{limit.PerSecond(1000).WithBurst(10), `q=1000;w=1`, `r=9;t=1`, "10 9 1"},
		{limit.PerSecond(100).WithBurst(600), `q=600;w=6`, `r=599;t=1`, "600 599 1"},
		{limit.Limit{Rate: math.MaxInt32, Period: time.Microsecond, Burst: math.MaxInt32}, `q=999999999999999;w=1`, `r=2147483646;t=1`, "2147483647 2147483646 1"},
		{limit.Every(1500 * time.Millisecond), `q=1;w=2`, `r=0;t=2`, "1 0 2"},
	} {
		s := newSite(t, bucket(t, newClock(), tt.lim), httplimit.Options{Dialect: httplimit.Draft11, Policy: "p"})
		resp := s.get()
		want(t, resp, 200, `RateLimit-Policy: "p";`+tt.policy, `RateLimit: "p";`+tt.field)
		h := resp.Header
		if got := fmt.Sprint(h.Get("X-RateLimit-Limit"), " ", h.Get("X-RateLimit-Remaining"), " ", h.Get("X-RateLimit-Reset")); got != tt.x {
			t.Errorf("%v: X-RateLimit %q, want %q", tt.lim, got, tt.x)
		}
	}
}

func TestFieldsOfDenials(t *testing.T) {
	c := newClock()
	s := newSite(t, bucket(t, c, limit.PerMinute(3)), httplimit.Options{Dialect: httplimit.Draft12, Cost: func(*http.Request) int { return 2 }})
	want(t, s.get(), 200, `RateLimit: "default";a=1;w=20`)
	c.at(3 * time.Second)
	// One more is needed, in 17 s, and the bucket is full in 37.
	want(t, s.get(), 429, "Retry-After: 17", `RateLimit: "default";a=1;w=17`, "X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 37")
}

func TestUnlimitedAndBlocked(t *testing.T) {
	opts := httplimit.Options{Dialect: httplimit.Draft11}
	want(t, newSite(t, bucket(t, newClock(), limit.Unlimited()), opts).get(), 200, append(noRateHeaders, "Retry-After:")...)
	want(t, newSite(t, &fixed{res: allowed(math.MaxInt)}, opts).get(), 200, noRateHeaders...)

	blocked := newSite(t, bucket(t, newClock(), limit.Blocked()), opts)
	want(t, blocked.get(), 429, "Retry-After:", "X-RateLimit-Limit: 0", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset:",
		`RateLimit-Policy: "default";q=0`, `RateLimit: "default";r=0`)
}

// A limiter that is no Describer still tells what is in its results.
func TestWithoutDescriber(t *testing.T) {
	opts := httplimit.Options{Dialect: httplimit.Draft11}
	want(t, newSite(t, &fixed{res: allowed(7)}, opts).get(), 200, "X-RateLimit-Limit:", "X-RateLimit-Remaining: 7", "X-RateLimit-Reset:",
		"RateLimit-Policy:", `RateLimit: "default";r=7`)
	res := denied(3 * time.Second)
	res.ResetAfter = 9 * time.Second
	want(t, newSite(t, &fixed{res: res}, opts).get(), 429, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 9", `RateLimit: "default";r=0;t=3`)
	// One whose limit is the zero Limit.
	want(t, newSite(t, &described{fixed{res: allowed(7)}, limit.Limit{}}, opts).get(), 200, "X-RateLimit-Limit:", "X-RateLimit-Remaining: 7")
	// One whose limit was lowered between the decision and the headers.
	want(t, newSite(t, &described{fixed{res: allowed(7)}, limit.PerMinute(5)}, opts).get(), 200, "X-RateLimit-Limit: 5", "X-RateLimit-Remaining: 5")
}

func TestSwitchedOff(t *testing.T) {
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(1)), httplimit.Options{XRateLimit: httplimit.XNone})
	want(t, s.get(), 200, noRateHeaders...)
	want(t, s.get(), 429, append(noRateHeaders, "Retry-After: 60")...)
}

// Of two limits around each other the drafts' fields list both, and the headers that have room for one tell the tighter.
func TestTwoLimits(t *testing.T) {
	for _, tt := range []struct {
		outer, inner int
		x            string
	}{{10, 5, "5"}, {5, 10, "5"}, {5, 5, "5"}} {
		c := newClock()
		inner := newSite(t, bucket(t, c, limit.PerMinute(tt.inner)), httplimit.Options{Dialect: httplimit.Draft11, Policy: "inner"})
		mw, err := httplimit.New(bucket(t, c, limit.PerMinute(tt.outer)), httplimit.Options{Dialect: httplimit.Draft11, Policy: "outer"})
		if err != nil {
			t.Fatal(err)
		}
		inner.h = mw.Handler(inner.h)
		want(t, inner.get(), 200, "X-RateLimit-Limit: "+tt.x,
			fmt.Sprintf(`RateLimit-Policy: "outer";q=%d;w=60 | "inner";q=%d;w=60`, tt.outer, tt.inner))
	}

	// The inner one denies, though it has more left than the outer one: its denial is what counts.
	outer, err := httplimit.New(&described{fixed{res: allowed(1)}, limit.PerMinute(5)}, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	res := denied(time.Second)
	res.Remaining = 3
	inner := newSite(t, &fixed{res: res}, httplimit.Options{})
	inner.h = outer.Handler(inner.h)
	want(t, inner.get(), 429, "X-RateLimit-Remaining: 3", "X-RateLimit-Limit:", "X-RateLimit-Reset:")
}

func TestREM01_FirstRequestTakesOne(t *testing.T) {
	c := newClock()
	s := newSite(t, window(t, c, limit.PerMinute(150)), httplimit.Options{})
	want(t, s.get(), 200, "X-RateLimit-Remaining: 149")
	for range 149 {
		want(t, s.get(), 200)
	}
	want(t, s.get(), 429, "X-RateLimit-Remaining: 0")
	c.at(time.Minute)
	want(t, s.get(), 200, "X-RateLimit-Remaining: 149")
	if got := s.served.Load(); got != 151 {
		t.Errorf("%d served, want 151", got)
	}
}
