package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would report that it cannot reach the servers that are down on purpose
	goleak.VerifyTestMain(m)
}

// t0 is a multiple of all windows used.
var t0 = time.Unix(1_800_000_000, 0)

// clock is set by tests.
type clock struct{ now atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.now.Store(t0.UnixNano())
	return c
}

func (c *clock) Now() time.Time { return time.Unix(0, c.now.Load()) }

// at sets the clock to so long after t0.
func (c *clock) at(d time.Duration) { c.now.Store(t0.Add(d).UnixNano()) }

// bucket is a token bucket on the clock.
func bucket(t testing.TB, c *clock, lim limit.Limit) *local.TokenBucket {
	t.Helper()
	l, err := local.NewTokenBucket(lim, local.Options{Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// window is a fixed window on the clock.
func window(t testing.TB, c *clock, lim limit.Limit) *local.FixedWindow {
	t.Helper()
	l, err := local.NewFixedWindow(lim, local.Options{Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fixed is a limiter that always decides the same. It describes no limit.
type fixed struct {
	res   limit.Result
	err   error
	calls atomic.Int64
}

func (f *fixed) Allow(ctx context.Context, key string) (limit.Result, error) {
	return f.AllowN(ctx, key, 1)
}

func (f *fixed) AllowN(context.Context, string, int) (limit.Result, error) {
	f.calls.Add(1)
	return f.res, f.err
}

// described is a fixed limiter that describes its limit.
type described struct {
	fixed
	lim limit.Limit
}

func (d *described) LimitOf(string) limit.Limit { return d.lim }

func allowed(remaining int) limit.Result {
	return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Local}, Remaining: remaining}
}

func denied(retryAfter time.Duration) limit.Result {
	return limit.Result{Verdict: limit.Verdict{Origin: limit.Local}, RetryAfter: retryAfter}
}

// site is a handler behind a Middleware.
type site struct {
	t      testing.TB
	h      http.Handler
	served atomic.Int64 // requests that came through
}

func newSite(t testing.TB, l limit.Limiter, opts httplimit.Options) *site {
	t.Helper()
	mw, err := httplimit.New(l, opts)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t}
	s.h = mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.served.Add(1) }))
	return s
}

// get asks the site. Headers are given as "Name: value".
func (s *site) get(headers ...string) *http.Response {
	s.t.Helper()
	return s.do(request("GET", "/", headers...))
}

// from asks the site from a peer.
func (s *site) from(peer string, headers ...string) *http.Response {
	s.t.Helper()
	r := request("GET", "/", headers...)
	r.RemoteAddr = peer
	return s.do(r)
}

func (s *site) do(r *http.Request) *http.Response {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, r)
	return w.Result()
}

func request(method, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// want compares headers, given as "Name: value", or "Name:" for one that must not be there.
func want(t testing.TB, resp *http.Response, status int, headers ...string) {
	t.Helper()
	if resp.StatusCode != status {
		t.Errorf("status %d, want %d", resp.StatusCode, status)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		value = strings.TrimPrefix(value, " ")
		if got := strings.Join(resp.Header.Values(name), " | "); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
}

// noRateHeaders are for want.
var noRateHeaders = []string{"X-RateLimit-Limit:", "X-RateLimit-Remaining:", "X-RateLimit-Reset:", "RateLimit:", "RateLimit-Policy:"}
