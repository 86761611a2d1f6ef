package httplimit_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

// limiter returns one in memory, so that the examples need no Redis. A service has one of package hybrid.
func limiter(lim limit.Limit) limit.Limiter {
	l, err := local.NewTokenBucket(lim, local.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// ask sends a request to a handler and prints the status and some headers.
func ask(h http.Handler, r *http.Request, headers ...string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Print(w.Code)
	for _, name := range headers {
		fmt.Printf(" %s: %q", name, w.Header().Get(name))
	}
	fmt.Println()
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

func ExampleNew() {
	lim := limiter(limit.PerMinute(2)) // in a service: hybrid.New(rdb, hybrid.PerMinute(2), hybrid.Options{})

	mw, err := httplimit.New(lim, httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /hello", hello)
	handler := mw.Handler(mux) // for http.ListenAndServe

	for range 3 {
		ask(handler, httptest.NewRequest("GET", "/hello", nil), "X-RateLimit-Remaining", "Retry-After")
	}
	// Output:
	// 200 X-RateLimit-Remaining: "1" Retry-After: ""
	// 200 X-RateLimit-Remaining: "0" Retry-After: ""
	// 429 X-RateLimit-Remaining: "0" Retry-After: "30"
}

func ExampleByAddr() {
	key := httplimit.ByAddr(netip.MustParsePrefix("10.0.0.0/8")) // where the proxies are

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.1.2.3:55555"
	r.Header.Set("X-Forwarded-For", "6.6.6.6, 203.0.113.9") // the first is what the client wrote
	fmt.Println(key(r))

	r.RemoteAddr = "198.51.100.7:55555" // somebody who has got past the proxies
	fmt.Println(key(r))
	// Output:
	// addr:203.0.113.9 <nil>
	// addr:198.51.100.7 <nil>
}

func ExampleAddr() {
	proxies := httplimit.Addr{
		Trusted:  []netip.Prefix{netip.MustParsePrefix("2001:db8:ffff::/48")},
		Header:   "X-Real-IP",
		IPv6Bits: 56,
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "[2001:db8:ffff::1]:55555"
	r.Header.Set("X-Real-IP", "2001:db8:1:203::7")
	fmt.Println(proxies.Key(r))
	fmt.Println(proxies.Client(r)) // for the log
	// Output:
	// addr:2001:db8:1:200::/56 <nil>
	// 2001:db8:1:203::7 <nil>
}

func ExampleBy() {
	user := httplimit.By("user", func(r *http.Request) (string, error) {
		name, _, ok := r.BasicAuth() // checked before
		if !ok {
			return "", httplimit.ErrNoKey
		}
		return name, nil
	})
	r := httptest.NewRequest("GET", "/", nil)
	_, err := user(r)
	fmt.Println(errors.Is(err, httplimit.ErrNoKey))
	r.SetBasicAuth("alice", "secret")
	fmt.Println(user(r))
	// Output:
	// true
	// user:alice <nil>
}

func ExampleFirst() {
	key := httplimit.First(httplimit.ByHeader("X-Api-Key"), httplimit.ByAddr())

	r := httptest.NewRequest("GET", "/", nil)
	fmt.Println(key(r))
	r.Header.Set("X-Api-Key", "k-17")
	fmt.Println(key(r))
	// Output:
	// addr:192.0.2.1 <nil>
	// header:X-Api-Key:k-17 <nil>
}

func ExampleJoin() {
	mw, err := httplimit.New(limiter(limit.PerMinute(1)), httplimit.Options{
		Key: httplimit.Join(httplimit.ByAddr(), httplimit.ByPattern()), // each client on each endpoint
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", mw.Handler(hello)) // around the handlers: the mux has matched the pattern by then
	mux.Handle("GET /orders/{id}", mw.Handler(hello))

	for _, path := range []string{"/users/1", "/users/2", "/orders/1"} {
		ask(mux, httptest.NewRequest("GET", path, nil))
	}
	// Output:
	// 200
	// 429
	// 200
}

func ExampleHash() {
	key := httplimit.Hash(httplimit.ByHeader("Authorization"))

	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer secret")
	fmt.Println(key(r))
	// Output:
	// sha256:VWhJUiX7PHSLDEue4eYiE2EoDQEHH6-cKVr-8jpIgJU <nil>
}

func ExampleOptions_onLimited() {
	mw, err := httplimit.New(limiter(limit.PerMinute(1)), httplimit.Options{
		OnLimited: func(w http.ResponseWriter, _ *http.Request, _ limit.Result) {
			w.Header().Del("Retry-After") // this is an answer
			fmt.Fprintln(w, "yesterday's list")
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := mw.Handler(hello)
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 hello
	// 200 yesterday's list
}

func ExampleOptions_onError() {
	down := &fixed{err: limit.ErrUnavailable}
	mw, err := httplimit.New(down, httplimit.Options{
		OnError: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, limit.ErrUnavailable) {
				fmt.Println("the limiter is away:", err)
			}
			http.Error(w, "sorry", httplimit.Status(err))
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ask(mw.Handler(hello), httptest.NewRequest("GET", "/", nil))
	// Output:
	// the limiter is away: limit: redis unavailable
	// 503
}

func ExampleProblem() {
	mw, err := httplimit.New(limiter(limit.Blocked()), httplimit.Options{
		EditProblem: func(r *http.Request, p *httplimit.Problem) {
			p.Instance = r.URL.Path
			p.Members = map[string]any{"plan": "free"}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	w := httptest.NewRecorder()
	mw.Handler(hello).ServeHTTP(w, httptest.NewRequest("GET", "/reports", nil))
	fmt.Print(w.Body)
	// Output:
	// {"detail":"This request is not allowed, and waiting does not change that.","instance":"/reports","plan":"free","status":429,"title":"Too Many Requests"}
}

// The limits that are enforced are the ones that are published.
func ExamplePublish() {
	search, login := limit.PerSecond(10).WithBurst(50), limit.PerMinute(5)

	searches, err := httplimit.New(limiter(search), httplimit.Options{Policy: "search", Key: httplimit.ByHeader("X-Api-Key")})
	if err != nil {
		log.Fatal(err)
	}
	logins, err := httplimit.New(limiter(login), httplimit.Options{Policy: "login"})
	if err != nil {
		log.Fatal(err)
	}
	limits, err := httplimit.Publish(
		httplimit.Published{Name: "search", Limit: search, About: "requests of each API key"},
		httplimit.Published{Name: "login", Limit: login, About: "attempts from each address"},
	)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /search", searches.Handler(hello))
	mux.Handle("POST /login", logins.Handler(hello))
	mux.Handle("GET /limits", limits)

	for _, accept := range []string{"*/*", "application/json"} {
		r := httptest.NewRequest("GET", "/limits", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Print(w.Body)
	}
	// Output:
	// search: 10/s burst 50, requests of each API key
	// login: 5/m, attempts from each address
	// {"limits":[{"name":"search","limit":"10/s burst 50","rate":10,"period_seconds":1,"burst":50,"about":"requests of each API key"},{"name":"login","limit":"5/m","rate":5,"period_seconds":60,"burst":5,"about":"attempts from each address"}]}
}

// Two limits: many requests from an address, with whatever keys, and some for each key.
func ExampleMiddleware_Handler() {
	byAddr, err := httplimit.New(limiter(limit.PerMinute(3)), httplimit.Options{Policy: "address"})
	if err != nil {
		log.Fatal(err)
	}
	byKey, err := httplimit.New(limiter(limit.PerMinute(2)), httplimit.Options{Policy: "key", Key: httplimit.ByHeader("X-Api-Key")})
	if err != nil {
		log.Fatal(err)
	}
	handler := byAddr.Handler(byKey.Handler(hello))

	for _, key := range []string{"a", "a", "b", "c"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Api-Key", key)
		ask(handler, r, "X-RateLimit-Limit", "X-RateLimit-Remaining")
	}
	// Output:
	// 200 X-RateLimit-Limit: "2" X-RateLimit-Remaining: "1"
	// 200 X-RateLimit-Limit: "2" X-RateLimit-Remaining: "0"
	// 200 X-RateLimit-Limit: "3" X-RateLimit-Remaining: "0"
	// 429 X-RateLimit-Limit: "3" X-RateLimit-Remaining: "0"
}

// Frameworks whose handlers have another form call Admit.
func ExampleMiddleware_Admit() {
	mw, err := httplimit.New(limiter(limit.PerMinute(1)), httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limited := func(c *ginContext) {
		if !mw.Admit(c.Writer, c.Request) {
			c.Abort()
		}
	}
	for range 2 {
		c := &ginContext{Writer: httptest.NewRecorder(), Request: httptest.NewRequest("GET", "/", nil)}
		limited(c)
		fmt.Println(c.aborted)
	}
	// Output:
	// false
	// true
}

// ginContext has what the example needs of that of github.com/gin-gonic/gin.
type ginContext struct {
	Writer  http.ResponseWriter
	Request *http.Request
	aborted bool
}

func (c *ginContext) Abort() { c.aborted = true }
