package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

// server is a RoundTripper that answers in the bubble of a test, without a network.
type server struct {
	answer func(n int, r *http.Request) *http.Response // n counts from 0

	mu     sync.Mutex
	at     []time.Duration // when requests came, since start
	bodies []string
	start  time.Time
}

func newServer(answer func(n int, r *http.Request) *http.Response) *server {
	return &server{answer: answer, start: time.Now()}
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	text := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		text = string(b)
		r.Body.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Since(s.start))
	s.bodies = append(s.bodies, text)
	return s.answer(len(s.at)-1, r), nil
}

// came compares when requests came.
func (s *server) came(t *testing.T, want ...time.Duration) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fmt.Sprint(s.at) != fmt.Sprint(want) {
		t.Errorf("requests came at %v, want %v", s.at, want)
	}
}

// answer makes a response with headers given as "Name: value".
func answer(status int, headers ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("body"))}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		resp.Header.Set(name, value)
	}
	return resp
}

func ok(int, *http.Request) *http.Response { return answer(200) }

// first answers the first request so, and the others with 200.
func first(status int, headers ...string) func(int, *http.Request) *http.Response {
	return func(n int, _ *http.Request) *http.Response {
		if n > 0 {
			return answer(200)
		}
		return answer(status, headers...)
	}
}

func newClient(t *testing.T, l limit.Limiter, opts httplimit.TransportOptions) *http.Client {
	t.Helper()
	tr, err := httplimit.NewTransport(l, opts)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: tr}
}

// inBubble is a token bucket on the clock of the bubble.
func inBubble(t *testing.T, lim limit.Limit) limit.Limiter {
	t.Helper()
	l, err := local.NewTokenBucket(lim, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func get(t *testing.T, c *http.Client, url string) int {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestTransportWaitsForTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(ok)
		c := newClient(t, inBubble(t, limit.PerSecond(2).WithBurst(1)), httplimit.TransportOptions{Base: s})
		for range 3 {
			get(t, c, "http://a.example/")
		}
		get(t, c, "http://b.example/") // has tokens of its own
		get(t, c, "http://B.example/x")
		s.came(t, 0, 500*time.Millisecond, time.Second, time.Second, 1500*time.Millisecond)
	})
}

func TestTransportCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(ok)
		c := newClient(t, inBubble(t, limit.PerSecond(10)), httplimit.TransportOptions{Base: s, Cost: func(r *http.Request) int { return int(r.ContentLength) }, Key: byUser})
		post := func(body string) error {
			r, err := http.NewRequest("POST", "http://a.example/", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-User", "alice")
			resp, err := c.Do(r)
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		for range 2 {
			if err := post("12345678"); err != nil {
				t.Error(err)
			}
		}
		s.came(t, 0, 600*time.Millisecond)
		if err := post("12345678901"); !errors.Is(err, limit.ErrExceedsBurst) { // COST-02: it does not hang
			t.Errorf("above the burst: %v", err)
		}
		if _, err := c.Get("http://a.example/"); !errors.Is(err, httplimit.ErrNoKey) {
			t.Errorf("without a user: %v", err)
		}
		s.came(t, 0, 600*time.Millisecond)
	})
}

func TestWAIT02_TooLateIsKnownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(ok)
		l := inBubble(t, limit.PerSecond(1))
		c := newClient(t, l, httplimit.TransportOptions{Base: s})
		get(t, c, "http://a.example/")
		begin := time.Now()
		for _, err := range []error{
			within(t, c, 100*time.Millisecond),
			within(t, newClient(t, l, httplimit.TransportOptions{Base: s, MaxWait: 999 * time.Millisecond}), 0),
			within(t, newClient(t, l, httplimit.TransportOptions{Base: s, MaxWait: 100 * time.Millisecond}), 5*time.Second),
		} {
			if !errors.Is(err, limit.ErrWouldExceedDeadline) || time.Since(begin) != 0 {
				t.Errorf("%v after %v, want ErrWouldExceedDeadline at once", err, time.Since(begin))
			}
			if err != nil && strings.Contains(err.Error(), "host:") {
				t.Errorf("%q has the key", err)
			}
		}
		if err := within(t, c, 1500*time.Millisecond); err != nil {
			t.Error(err)
		}
		s.came(t, 0, time.Second) // so nothing was taken
		if err := within(t, newClient(t, l, httplimit.TransportOptions{Base: s, MaxWait: time.Second}), 0); err != nil {
			t.Error(err)
		}
		// What will never be admitted is not waited for, deadline or not.
		c = newClient(t, inBubble(t, limit.Blocked()), httplimit.TransportOptions{Base: s})
		if err := within(t, c, 0); !errors.Is(err, limit.ErrWouldExceedDeadline) {
			t.Errorf("blocked: %v", err)
		}
	})
}

// within asks with a deadline, or none if it is 0.
func within(t *testing.T, c *http.Client, d time.Duration) error {
	t.Helper()
	ctx := t.Context()
	if d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return send(t, c, ctx)
}

func send(t *testing.T, c *http.Client, ctx context.Context) error {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://a.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

func TestWAIT03_CancelledTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(ok)
		l := inBubble(t, limit.PerMinute(1))
		c := newClient(t, l, httplimit.TransportOptions{Base: s})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := send(t, c, ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled before: %v", err)
		}
		if err := within(t, c, 0); err != nil {
			t.Error(err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		begin := time.Now()
		if err := send(t, c, ctx); !errors.Is(err, context.Canceled) || time.Since(begin) != 10*time.Second {
			t.Errorf("cancelled while waiting: %v after %v", err, time.Since(begin))
		}
		if err := within(t, c, 0); err != nil {
			t.Error(err)
		}
		s.came(t, 0, time.Minute)
	})
}

// Waiters only poll, so their order is not kept; but all are served in time and none asks too often.
func TestWAIT04_ManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(ok)
		counted := &counting{Limiter: inBubble(t, limit.PerSecond(5).WithBurst(1))}
		c := newClient(t, counted, httplimit.TransportOptions{Base: s})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { get(t, c, "http://a.example/") })
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		if len(s.at) != 20 || s.at[19] > 4200*time.Millisecond {
			t.Errorf("requests came at %v", s.at)
		}
		if counted.calls > 20*21 { // each asks once for each token that comes
			t.Errorf("%d calls of the limiter", counted.calls)
		}
	})
}

type counting struct {
	limit.Limiter
	mu    sync.Mutex
	calls int
}

func (c *counting) AllowN(ctx context.Context, key string, n int) (limit.Result, error) {
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	return c.Limiter.AllowN(ctx, key, n)
}

// TestRetryAfter says for how long an answer keeps the next request to the host back.
func TestRetryAfter(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of every bubble
	date := func(d time.Duration) string { return start.Add(d).Format(http.TimeFormat) }
	for _, tt := range []struct {
		name    string
		opts    httplimit.TransportOptions
		status  int
		headers []string
		want    time.Duration
	}{
		{"seconds", httplimit.TransportOptions{}, 429, []string{"Retry-After: 7"}, 7 * time.Second},
		{"503", httplimit.TransportOptions{}, 503, []string{"Retry-After: 7"}, 7 * time.Second},
		{"date", httplimit.TransportOptions{}, 429, []string{"Retry-After: " + date(9*time.Second)}, 9 * time.Second},
		{"date by the server's clock", httplimit.TransportOptions{}, 429,
			[]string{"Retry-After: " + date(time.Hour+9*time.Second), "Date: " + date(time.Hour)}, 9 * time.Second},
		{"date in the past", httplimit.TransportOptions{}, 429, []string{"Retry-After: " + date(-time.Hour)}, 0},
		{"zero", httplimit.TransportOptions{}, 429, []string{"Retry-After: 0"}, 0},
		{"none", httplimit.TransportOptions{}, 429, nil, 0},
		{"another status", httplimit.TransportOptions{}, 200, []string{"Retry-After: 7"}, 0},
		{"fraction", httplimit.TransportOptions{}, 429, []string{"Retry-After: 0.5"}, 0},
		{"negative", httplimit.TransportOptions{}, 429, []string{"Retry-After: -7"}, 0},
		{"nonsense", httplimit.TransportOptions{}, 429, []string{"Retry-After: soon"}, 0},
		{"too long", httplimit.TransportOptions{}, 429, []string{"Retry-After: 999999"}, time.Hour},
		{"far too long", httplimit.TransportOptions{MaxPause: time.Minute}, 429, []string{"Retry-After: 99999999999999999999999"}, time.Minute},
		{"remaining, not asked for", httplimit.TransportOptions{}, 200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"}, 0},
		{"remaining", httplimit.TransportOptions{SlowDown: true}, 200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"}, 30 * time.Second},
		{"some remaining", httplimit.TransportOptions{SlowDown: true}, 200, []string{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 30"}, 0},
		{"no reset", httplimit.TransportOptions{SlowDown: true}, 200, []string{"X-RateLimit-Remaining: 0"}, 0},
		{"epoch", httplimit.TransportOptions{SlowDown: true, XRateLimit: httplimit.XEpoch}, 200,
			[]string{"X-RateLimit-Remaining: 0", fmt.Sprintf("X-RateLimit-Reset: %d", start.Unix()+30)}, 30 * time.Second},
		{"epoch by the server's clock", httplimit.TransportOptions{SlowDown: true, XRateLimit: httplimit.XEpoch}, 200,
			[]string{"X-RateLimit-Remaining: 0", fmt.Sprintf("X-RateLimit-Reset: %d", start.Unix()+3630), "Date: " + date(time.Hour)}, 30 * time.Second},
		{"epoch in the past", httplimit.TransportOptions{SlowDown: true, XRateLimit: httplimit.XEpoch}, 200,
			[]string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"}, 0},
		{"epoch taken for seconds", httplimit.TransportOptions{SlowDown: true}, 200,
			[]string{"X-RateLimit-Remaining: 0", fmt.Sprintf("X-RateLimit-Reset: %d", start.Unix()+30)}, time.Hour},
		{"Retry-After goes first", httplimit.TransportOptions{SlowDown: true}, 429,
			[]string{"Retry-After: 7", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"}, 7 * time.Second},
		{"429 with a reset only", httplimit.TransportOptions{SlowDown: true}, 429, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"}, 30 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(first(tt.status, tt.headers...))
			tt.opts.Base = s
			c := newClient(t, nil, tt.opts)
			if got := get(t, c, "http://a.example/"); got != tt.status {
				t.Errorf("%s: status %d", tt.name, got)
			}
			get(t, c, "http://b.example/") // another host
			get(t, c, "http://A.example/")
			if s.at[1] != 0 || s.at[2] != tt.want {
				t.Errorf("%s: requests came at %v, want the third after %v", tt.name, s.at, tt.want)
			}
		})
	}
}

// A pause that begins while a request waits for its token holds it back as well, and a shorter one does not end a longer.
func TestPauseWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(func(n int, r *http.Request) *http.Response {
			return answer(429, "Retry-After: "+[]string{"10", "2", "1"}[min(n, 2)])
		})
		slow := &slowBase{Base: s, d: 50 * time.Millisecond} // the answers come before the third token
		c := newClient(t, inBubble(t, limit.PerSecond(10).WithBurst(2)), httplimit.TransportOptions{Base: slow})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { get(t, c, "http://a.example/") })
		}
		wg.Wait()
		s.came(t, 50*time.Millisecond, 50*time.Millisecond, 10*time.Second+100*time.Millisecond)
		if err := within(t, c, 500*time.Millisecond); !errors.Is(err, limit.ErrWouldExceedDeadline) {
			t.Errorf("a pause longer than the deadline: %v", err)
		}
	})
}

type slowBase struct {
	Base http.RoundTripper
	d    time.Duration
}

func (s *slowBase) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(s.d)
	return s.Base.RoundTrip(r)
}

func TestRetries(t *testing.T) {
	second := time.Second
	for _, tt := range []struct {
		name    string
		retries int
		method  string
		body    io.Reader
		status  int
		headers []string
		want    int // status
		came    []time.Duration
	}{
		{"never by default", 0, "GET", nil, 429, []string{"Retry-After: 2"}, 429, []time.Duration{0}},
		{"once", 1, "GET", nil, 429, []string{"Retry-After: 2"}, 200, []time.Duration{0, 2 * second}},
		{"after 0 seconds", 1, "GET", nil, 429, []string{"Retry-After: 0"}, 200, []time.Duration{0, 0}},
		{"with a body", 1, "POST", strings.NewReader("text"), 429, []string{"Retry-After: 2"}, 200, []time.Duration{0, 2 * second}},
		{"a body that is gone", 1, "POST", io.LimitReader(strings.NewReader("text"), 9), 429, []string{"Retry-After: 2"}, 429, []time.Duration{0}},
		{"503", 1, "PUT", strings.NewReader("text"), 503, []string{"Retry-After: 2"}, 200, []time.Duration{0, 2 * second}},
		{"503 of what may have been done", 1, "POST", strings.NewReader("text"), 503, []string{"Retry-After: 2"}, 503, []time.Duration{0}},
		{"no time to wait for", 1, "GET", nil, 429, nil, 429, []time.Duration{0}},
		{"another status", 1, "GET", nil, 500, []string{"Retry-After: 2"}, 500, []time.Duration{0}},
		{"longer than the deadline", 1, "GET", nil, 429, []string{"Retry-After: 100"}, 429, []time.Duration{0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(first(tt.status, tt.headers...))
			c := newClient(t, inBubble(t, limit.PerSecond(10)), httplimit.TransportOptions{Base: s, Retries: tt.retries})
			c.Timeout = time.Minute
			r, err := http.NewRequest(tt.method, "http://a.example/", tt.body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			text, err := io.ReadAll(resp.Body)
			if err != nil || string(text) != "body" || resp.StatusCode != tt.want {
				t.Errorf("%s: status %d, body %q, %v; want %d", tt.name, resp.StatusCode, text, err, tt.want)
			}
			resp.Body.Close()
			if fmt.Sprint(s.at) != fmt.Sprint(tt.came) {
				t.Errorf("%s: requests came at %v, want %v", tt.name, s.at, tt.came)
			}
			for _, b := range s.bodies {
				if tt.body != nil && b != "text" {
					t.Errorf("%s: bodies %q", tt.name, s.bodies)
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newServer(func(int, *http.Request) *http.Response { return answer(429, "Retry-After: 1") })
		l := &counting{Limiter: inBubble(t, limit.PerSecond(10))}
		if got := get(t, newClient(t, l, httplimit.TransportOptions{Base: s, Retries: 3}), "http://a.example/"); got != 429 {
			t.Errorf("status %d", got)
		}
		s.came(t, 0, second, 2*second, 3*second)
		if l.calls != 4 {
			t.Errorf("%d tokens for 4 requests", l.calls)
		}
	})
	// A body that cannot be made anew, though it was promised.
	synctest.Test(t, func(t *testing.T) {
		s := newServer(first(429, "Retry-After: 1"))
		r, err := http.NewRequest("POST", "http://a.example/", strings.NewReader("text"))
		if err != nil {
			t.Fatal(err)
		}
		r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		resp, err := newClient(t, nil, httplimit.TransportOptions{Base: s, Retries: 1}).Do(r)
		if err != nil || resp.StatusCode != 429 {
			t.Errorf("%v, %v; want the 429", resp, err)
		}
	})
}

// closing notes that a body was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

func TestBodyIsClosedWhenNothingIsSent(t *testing.T) {
	s := newServer(ok)
	tr, err := httplimit.NewTransport(&fixed{err: limit.ErrUnavailable}, httplimit.TransportOptions{Base: s})
	if err != nil {
		t.Fatal(err)
	}
	body := &closing{Reader: strings.NewReader("text")}
	r, err := http.NewRequest("POST", "http://a.example/", body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.RoundTrip(r); !errors.Is(err, limit.ErrUnavailable) || !body.closed {
		t.Errorf("%v, body closed: %v", err, body.closed)
	}
	s.came(t)
	open := newClient(t, &fixed{err: limit.ErrUnavailable}, httplimit.TransportOptions{Base: newServer(ok), FailOpen: true})
	if got := get(t, open, "http://a.example/"); got != 200 {
		t.Errorf("status %d", got)
	}
}

// As at a Middleware, an empty key is none.
func TestTransportEmptyKey(t *testing.T) {
	l, s := &fixed{res: allowed(1)}, newServer(ok)
	c := newClient(t, l, httplimit.TransportOptions{Base: s, Key: func(*http.Request) (string, error) { return "", nil }})
	if _, err := c.Get("http://a.example/"); !errors.Is(err, httplimit.ErrNoKey) || l.calls.Load() != 0 {
		t.Errorf("%v after %d calls of the limiter, want ErrNoKey", err, l.calls.Load())
	}
	s.came(t)
}

// A request that no transport can send is an error, as it is without a limit.
func TestTransportWithoutURL(t *testing.T) {
	for _, l := range []limit.Limiter{nil, &fixed{res: allowed(1)}} {
		tr, err := httplimit.NewTransport(l, httplimit.TransportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.RoundTrip(&http.Request{Header: http.Header{}}); err == nil {
			t.Error("sent")
		}
	}
}

// A limiter that denies without saying for how long is not asked in a tight loop.
func TestNoWaitIsNoSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fixed{res: denied(0)}
		c := newClient(t, l, httplimit.TransportOptions{Base: newServer(ok)})
		if err := within(t, c, 100*time.Millisecond); err == nil {
			t.Error("sent")
		}
		if n := l.calls.Load(); n > 101 {
			t.Errorf("asked %d times in 100 ms", n)
		}
	})
}

func TestManyHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]int{}
		s := newServer(func(_ int, r *http.Request) *http.Response {
			seen[r.URL.Host]++
			if seen[r.URL.Host] > 1 {
				return answer(200)
			}
			return answer(429, "Retry-After: "+strings.TrimPrefix(r.URL.Host, "h"))
		})
		c := newClient(t, nil, httplimit.TransportOptions{Base: s, MaxHosts: 3})
		for _, host := range []string{"h50", "h10", "h30", "h40", "h60"} {
			get(t, c, "http://"+host+"/")
		}
		for _, tt := range []struct {
			host string
			want time.Duration // when it was let through
		}{{"h10", 0}, {"h30", 0}, {"h40", 40}, {"h50", 50}, {"h60", 60}} {
			get(t, c, "http://"+tt.host+"/")
			if got := time.Since(s.start); got != tt.want*time.Second {
				t.Errorf("%s was let through after %v, want %v s", tt.host, got, int(tt.want))
			}
		}
		for _, host := range []string{"h1", "h2", "h3"} {
			get(t, c, "http://"+host+"/")
		}
		time.Sleep(4 * time.Second)
		get(t, c, "http://h70/") // the others are over, which is found only now
		get(t, c, "http://h71/")
		get(t, c, "http://h72/")
		begin := time.Now()
		get(t, c, "http://h70/")
		if got := time.Since(begin); got != 70*time.Second {
			t.Errorf("held back for %v", got)
		}
	})
}

func TestNewTransportRefuses(t *testing.T) {
	var typedNil *fixed
	if _, err := httplimit.NewTransport(typedNil, httplimit.TransportOptions{}); !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("typed nil: %v", err)
	}
	for _, opts := range []httplimit.TransportOptions{
		{MaxWait: -1}, {MaxPause: -1}, {MaxHosts: -1}, {Retries: -1}, {XRateLimit: httplimit.XNone}, {XRateLimit: -1},
	} {
		if tr, err := httplimit.NewTransport(nil, opts); !errors.Is(err, limit.ErrInvalid) || tr != nil {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

// Both ends of this package over a real connection.
func TestClientAndServer(t *testing.T) {
	s := newSite(t, inBubble(t, limit.PerMinute(2)), httplimit.Options{})
	srv := httptest.NewServer(s.h)
	defer srv.Close()
	c := newClient(t, nil, httplimit.TransportOptions{Base: srv.Client().Transport, MaxWait: time.Second})
	defer c.CloseIdleConnections()
	for _, want := range []int{200, 200, 429} {
		if got := get(t, c, srv.URL); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	if _, err := c.Get(srv.URL); !errors.Is(err, limit.ErrWouldExceedDeadline) {
		t.Errorf("%v, want to be held back by Retry-After", err)
	}
	if got := s.served.Load(); got != 2 {
		t.Errorf("%d served", got)
	}
}

func FuzzServerHints(f *testing.F) {
	for _, v := range []string{"", "7", "-1", "0.5", "99999999999999999999", "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "١"} {
		f.Add(v, v, v, "0", true)
	}
	f.Fuzz(func(t *testing.T, retry, date, reset, remaining string, epoch bool) {
		style := httplimit.XDelta
		if epoch {
			style = httplimit.XEpoch
		}
		resp := answer(429)
		for name, v := range map[string]string{"Retry-After": retry, "Date": date, "X-Ratelimit-Reset": reset, "X-Ratelimit-Remaining": remaining} {
			resp.Header[name] = []string{v}
		}
		const most = 90 * time.Second
		s := newServer(func(int, *http.Request) *http.Response { return resp })
		tr, err := httplimit.NewTransport(nil, httplimit.TransportOptions{Base: s, SlowDown: true, XRateLimit: style, MaxPause: most, MaxWait: 1})
		if err != nil {
			t.Fatal(err)
		}
		r := request("GET", "http://a.example/")
		r.RequestURI = ""
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		left := httplimit.PauseOf(tr, "a.example")
		if left < 0 || left > most {
			t.Errorf("a pause of %v", left)
		}
	})
}
