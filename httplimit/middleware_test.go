package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// body reads a problem.
func body(t testing.TB, resp *http.Response) map[string]any {
	t.Helper()
	want(t, resp, resp.StatusCode, "Content-Type: application/problem+json", "Cache-Control: no-store")
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Length"); got != fmt.Sprint(len(text)) {
		t.Errorf("Content-Length %s of %d bytes", got, len(text))
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if m["status"] != float64(resp.StatusCode) {
		t.Errorf("status %d, and %v in the body", resp.StatusCode, m["status"])
	}
	return m
}

func TestFAIL04_OutageIsNoDenial(t *testing.T) {
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: "127.0.0.1:1"})) // nobody listens there
	defer rdb.Close()
	of := func(policy hybrid.FailurePolicy) limit.Limiter {
		l, err := hybrid.New(rdb, hybrid.PerMinute(2), hybrid.Options{OnFailure: policy})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(context.Background()) })
		return l
	}
	none := append([]string{"Retry-After:"}, noRateHeaders...)

	closed := newSite(t, of(hybrid.FailClosed), httplimit.Options{Dialect: httplimit.Draft11})
	resp := closed.get()
	want(t, resp, 503, none...)
	if m := body(t, resp); !strings.HasSuffix(m["type"].(string), "#temporary-reduced-capacity") || m["violated-policies"] != nil {
		t.Errorf("body %v", m)
	}
	if n := closed.served.Load(); n != 0 {
		t.Errorf("%d requests came through", n)
	}
	want(t, newSite(t, of(hybrid.FailClosed), httplimit.Options{FailOpen: true}).get(), 200, none...)
	for range 4 {
		want(t, newSite(t, of(hybrid.FailOpen), httplimit.Options{Dialect: httplimit.Draft11}).get(), 200, none...)
	}
	local := newSite(t, of(hybrid.FailLocal), httplimit.Options{Dialect: httplimit.Draft11})
	want(t, local.get(), 200, none...)
	want(t, local.get(), 200, none...)
	want(t, local.get(), 429, append([]string{"Retry-After: 30"}, noRateHeaders...)...) // a denial is one, whoever decided

	var got error
	custom := newSite(t, of(hybrid.FailClosed), httplimit.Options{OnError: func(w http.ResponseWriter, _ *http.Request, err error) {
		got = err
		w.WriteHeader(http.StatusTeapot)
	}})
	want(t, custom.get(), 418, none...)
	if !errors.Is(got, limit.ErrUnavailable) {
		t.Errorf("the error handler was called with %v", got)
	}
	other := newSite(t, of(hybrid.FailClosed), httplimit.Options{EditProblem: func(_ *http.Request, p *httplimit.Problem) { p.Status = 500 }})
	want(t, other.get(), 500, none...)
}

// probing is an outage whose end is known.
type probing struct{ after time.Duration }

func (p probing) Error() string             { return "probing" }
func (p probing) Unwrap() error             { return limit.ErrUnavailable }
func (p probing) RetryAfter() time.Duration { return p.after }

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		retry  string
	}{
		{limit.ErrUnavailable, 503, ""},
		{fmt.Errorf("more: %w", limit.ErrUnavailable), 503, ""},
		{fmt.Errorf("more: %w", probing{1500 * time.Millisecond}), 503, "2"},
		{probing{-1}, 503, "1"},
		{probing{limit.Never}, 503, ""},
		{limit.ErrClosed, 503, ""},
		{context.DeadlineExceeded, 503, ""},
		{context.Canceled, 503, ""},
		{limit.ErrExceedsBurst, 413, ""},
		{limit.ErrInvalidTokens, 400, ""},
		{limit.ErrInvalidKey, 400, ""},
		{httplimit.ErrNoKey, 400, ""},
		{limit.ErrInvalid, 500, ""},
		{errors.New("secret customer-42"), 500, ""},
	} {
		if got := httplimit.Status(tt.err); got != tt.status {
			t.Errorf("Status(%v) = %d, want %d", tt.err, got, tt.status)
		}
		s := newSite(t, &described{fixed{err: tt.err}, limit.PerMinute(5)}, httplimit.Options{Dialect: httplimit.Draft11})
		resp := s.get()
		want(t, resp, tt.status, append([]string{"Retry-After: " + tt.retry}, noRateHeaders...)...)
		m := body(t, resp)
		if m["title"] != http.StatusText(tt.status) || m["detail"] == "" || strings.Contains(fmt.Sprint(m), "secret") {
			t.Errorf("%v: body %v", tt.err, m)
		}
		if n := s.served.Load(); n != 0 {
			t.Errorf("%v: the handler was called", tt.err)
		}
	}
	// FailOpen is for outages only.
	for err, status := range map[error]int{limit.ErrUnavailable: 200, limit.ErrClosed: 503, limit.ErrInvalid: 500, limit.ErrExceedsBurst: 413} {
		want(t, newSite(t, &fixed{err: err}, httplimit.Options{FailOpen: true}).get(), status)
	}
}

func TestCOST01_AboveTheBurst(t *testing.T) {
	cost := 301
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(300)), httplimit.Options{Cost: func(*http.Request) int { return cost }})
	want(t, s.get(), 413, append([]string{"Retry-After:"}, noRateHeaders...)...)
	cost = 1
	want(t, s.get(), 200, "X-RateLimit-Remaining: 299")
}

func TestCOST03_NegativeCost(t *testing.T) {
	cost := 1
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(1)), httplimit.Options{Cost: func(*http.Request) int { return cost }})
	want(t, s.get(), 200)
	for _, cost = range []int{-1, -1000, math.MinInt} {
		want(t, s.get(), 400, "Retry-After:")
	}
	cost = 1
	want(t, s.get(), 429)
}

func TestCOST04_NothingIsALook(t *testing.T) {
	cost := 3
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(3)), httplimit.Options{Cost: func(*http.Request) int { return cost }})
	cost = 0
	want(t, s.get(), 200, "X-RateLimit-Remaining: 3", "X-RateLimit-Reset: 0")
	cost = 3
	want(t, s.get(), 200, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60")
	cost = 0
	want(t, s.get(), 200, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60")
}

// once fails the test when a handler writes a header twice.
type once struct {
	http.ResponseWriter
	t    *testing.T
	done int
}

func (o *once) WriteHeader(status int) {
	if o.done++; o.done > 1 {
		o.t.Error("WriteHeader was called twice")
	}
	o.ResponseWriter.WriteHeader(status)
}

func TestMW02_HeadersFromOutsideStay(t *testing.T) {
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(1)), httplimit.Options{Expose: true, Dialect: httplimit.Draft12})
	inner := s.h
	s.h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://example.com")
		w.Header().Add("Access-Control-Expose-Headers", "X-Request-Id")
		w.Header().Set("Vary", "Origin")
		w.Header().Set("Cache-Control", "public, max-age=60")
		inner.ServeHTTP(&once{w, t, 0}, r)
	})
	outside := []string{"Access-Control-Allow-Origin: https://example.com", "Vary: Origin",
		"Access-Control-Expose-Headers: X-Request-Id | Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, RateLimit, RateLimit-Policy"}
	want(t, s.get(), 200, append(outside, "Cache-Control: public, max-age=60")...)
	resp := s.get()
	want(t, resp, 429, append(outside, "Retry-After: 60")...)
	if m := body(t, resp); m["detail"] != "Too many requests. Try again in 60 seconds." {
		t.Errorf("body %v", m)
	}
	if got := s.served.Load(); got != 1 {
		t.Errorf("%d requests came through, want 1", got)
	}

	want(t, newSite(t, &fixed{err: probing{time.Second}}, httplimit.Options{Expose: true, XRateLimit: httplimit.XNone}).get(), 503,
		"Retry-After: 1", "Access-Control-Expose-Headers: Retry-After")
	for _, tt := range []struct {
		opts httplimit.Options
		want string
	}{
		{httplimit.Options{}, ""},
		{httplimit.Options{Expose: true, XRateLimit: httplimit.XNone}, "Retry-After"},
		{httplimit.Options{Expose: true}, "Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"},
	} {
		want(t, newSite(t, &fixed{res: allowed(1)}, tt.opts).get(), 200, "Access-Control-Expose-Headers: "+tt.want)
	}
}

// The handler sees the writer of the server, with all it can do, and the headers of the limit.
func TestWriterIsNotWrapped(t *testing.T) {
	mw, err := httplimit.New(bucket(t, newClock(), limit.PerMinute(5)), httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	outer := httptest.NewRecorder()
	mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w != http.ResponseWriter(outer) {
			t.Errorf("the writer is a %T", w)
		}
		if w.Header().Get("X-RateLimit-Remaining") != "4" {
			t.Errorf("headers %v before the handler has run", w.Header())
		}
		w.Header().Del("X-RateLimit-Reset")
	})).ServeHTTP(outer, request("GET", "/"))
	if outer.Result().Header.Get("X-RateLimit-Reset") != "" {
		t.Error("the handler cannot change the headers")
	}
}

func TestProblem(t *testing.T) {
	opts := httplimit.Options{Contact: "https://example.com/limits", Policy: "p"}
	resp := newSite(t, &fixed{res: denied(time.Second)}, opts).get()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(text), `{"title":"Too Many Requests","status":429,"detail":"Too many requests. Try again in 1 second.","contact":"https://example.com/limits"}`+"\n"; got != want {
		t.Errorf("body %s, want %s", got, want)
	}

	opts.Dialect = httplimit.Draft11
	m := body(t, newSite(t, &fixed{res: denied(limit.Never)}, opts).get())
	if m["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" || fmt.Sprint(m["violated-policies"]) != "[p]" ||
		m["detail"] != "This request is not allowed, and waiting does not change that." {
		t.Errorf("body %v", m)
	}

	opts.EditProblem = func(r *http.Request, p *httplimit.Problem) {
		p.Type, p.Title, p.Detail, p.Instance = "https://example.com/slow-down", "Slow down", "", r.URL.Path
		p.Members = map[string]any{"plan": "free", "title": "not this one", "status": 200, "detail": "from the members"}
	}
	m = body(t, newSite(t, &fixed{res: denied(time.Second)}, opts).get())
	if m["type"] != "https://example.com/slow-down" || m["title"] != "Slow down" || m["instance"] != "/" || m["plan"] != "free" || m["detail"] != "from the members" {
		t.Errorf("body %v", m)
	}

	opts.EditProblem = func(_ *http.Request, p *httplimit.Problem) {
		p.Members = map[string]any{"bad": math.NaN()}
		p.Status = 7
	}
	resp = newSite(t, &fixed{res: denied(time.Second)}, opts).get()
	want(t, resp, 500)
	if m = body(t, resp); m["bad"] != nil || m["title"] != "Too Many Requests" {
		t.Errorf("body %v", m)
	}
}

func TestProblemWrite(t *testing.T) {
	w := httptest.NewRecorder()
	w.Header().Set("Cache-Control", "public")
	w.Header().Set("Vary", "Origin")
	httplimit.Problem{Title: "Slow down", Status: 429}.Write(w)
	resp := w.Result()
	want(t, resp, 429, "Vary: Origin")
	if m := body(t, resp); m["title"] != "Slow down" {
		t.Errorf("body %v", m)
	}
}

func TestOnLimited(t *testing.T) {
	var got limit.Result
	l := bucket(t, newClock(), limit.PerMinute(1))
	s := newSite(t, l, httplimit.Options{OnLimited: func(w http.ResponseWriter, _ *http.Request, res limit.Result) {
		got = res
		w.Header().Del("Retry-After")
		fmt.Fprint(w, "from the cache")
	}})
	want(t, s.get(), 200)
	resp := s.get()
	want(t, resp, 200, "X-RateLimit-Remaining: 0", "Cache-Control: no-store", "Retry-After:")
	if text, _ := io.ReadAll(resp.Body); string(text) != "from the cache" || got.RetryAfter != time.Minute {
		t.Errorf("body %q, result %+v", text, got)
	}
	if n := s.served.Load(); n != 1 {
		t.Errorf("%d requests came through", n)
	}
}

func TestSkip(t *testing.T) {
	l := &fixed{res: denied(time.Second)}
	s := newSite(t, l, httplimit.Options{
		Skip:      func(r *http.Request) bool { return r.Method == http.MethodOptions },
		SkipPaths: []string{"/healthz", "/static/"},
	})
	for _, path := range []string{"/healthz", "/static/", "/static/a.css", "/static/deep/a.css", "/static/a/", "/healthz?x=1"} {
		want(t, s.do(request("GET", path)), 200, noRateHeaders...)
	}
	want(t, s.do(request("OPTIONS", "/x")), 200)
	if n := l.calls.Load(); n != 0 {
		t.Errorf("%d requests were counted", n)
	}
	for _, path := range []string{
		"/", "/healthz/", "/healthzz", "/static", "/statics/a", "/static/../api", "/static/./api", "/static//api", "//static/a", "/static/%2e%2e/api",
		"/static/..%2fapi", "/x/static/a", "/static/a/..",
	} {
		want(t, s.do(request("GET", path)), 429)
	}
}

func TestNewRefuses(t *testing.T) {
	good := bucket(t, newClock(), limit.PerMinute(1))
	var typedNil *fixed
	for name, tt := range map[string]struct {
		l    limit.Limiter
		opts httplimit.Options
	}{
		"nil":                {nil, httplimit.Options{}},
		"typed nil":          {typedNil, httplimit.Options{}},
		"style":              {good, httplimit.Options{XRateLimit: 3}},
		"negative style":     {good, httplimit.Options{XRateLimit: -1}},
		"dialect":            {good, httplimit.Options{Dialect: 3}},
		"negative dialect":   {good, httplimit.Options{Dialect: -1}},
		"line in policy":     {good, httplimit.Options{Policy: "a\r\nSet-Cookie: b"}},
		"non-ASCII policy":   {good, httplimit.Options{Policy: "é"}},
		"DEL in policy":      {good, httplimit.Options{Policy: "\x7f"}},
		"jitter":             {good, httplimit.Options{Jitter: 1.1}},
		"negative jitter":    {good, httplimit.Options{Jitter: -0.1}},
		"no number":          {good, httplimit.Options{Jitter: math.NaN()}},
		"contact":            {good, httplimit.Options{Contact: "/limits"}},
		"no URL":             {good, httplimit.Options{Contact: "https://exa mple.com/%zz"}},
		"path":               {good, httplimit.Options{SkipPaths: []string{"healthz"}}},
		"unclean path":       {good, httplimit.Options{SkipPaths: []string{"/a/../b"}}},
		"doubled slash":      {good, httplimit.Options{SkipPaths: []string{"//"}}},
		"empty path":         {good, httplimit.Options{SkipPaths: []string{""}}},
		"slashes at the end": {good, httplimit.Options{SkipPaths: []string{"/a//"}}},
	} {
		if mw, err := httplimit.New(tt.l, tt.opts); !errors.Is(err, limit.ErrInvalid) || mw != nil {
			t.Errorf("%s: %v, %v; want ErrInvalid", name, mw, err)
		}
	}
}

// What clients send appears in no header and no body.
func TestHostileInputIsNotEchoed(t *testing.T) {
	const evil = "evil\r\nSet-Cookie: a=b"
	for _, tt := range []struct {
		key httplimit.KeyFunc
		l   limit.Limiter
	}{
		{httplimit.ByHeader("X-Api-Key"), bucket(t, newClock(), limit.PerMinute(1))},
		{httplimit.ByHeader("X-Api-Key"), &fixed{err: limit.ErrInvalidKey}},
		{func(r *http.Request) (string, error) { return "", errors.New(r.Header.Get("X-Api-Key")) }, &fixed{}},
		{httplimit.ByPattern(), &fixed{}},
	} {
		s := newSite(t, tt.l, httplimit.Options{Key: tt.key, Dialect: httplimit.Draft11, Expose: true})
		for range 2 {
			r := request("GET", "/evil%0d%0aSet-Cookie:%20a=b")
			r.Header["X-Api-Key"] = []string{evil}
			resp := s.do(r)
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if all := fmt.Sprint(resp.Header, string(text)); strings.Contains(all, "evil") || strings.Contains(all, "Set-Cookie") {
				t.Errorf("the answer has %s", all)
			}
		}
	}
}

func TestCONC_ManyRequests(t *testing.T) {
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(100)), httplimit.Options{
		Key: httplimit.First(httplimit.ByHeader("X-Api-Key"), httplimit.ByAddr()), Dialect: httplimit.Draft11, Jitter: 1, Expose: true, SkipPaths: []string{"/static/"},
	})
	srv := httptest.NewServer(s.h)
	defer srv.Close()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 25 {
				r, err := http.NewRequest("GET", srv.URL, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					r.Header.Set("X-Api-Key", fmt.Sprint(j%2))
				}
				resp, err := srv.Client().Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	if got := s.served.Load(); got != 200 { // 50 and 50 by key, 100 by address
		t.Errorf("%d served, want 200", got)
	}
}
