package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

// behindPatterns is a mux whose handlers are limited by address and pattern, 2 a minute each.
func behindPatterns(t *testing.T) *site {
	s := &site{t: t}
	mw, err := httplimit.New(bucket(t, newClock(), limit.PerMinute(2)), httplimit.Options{Key: httplimit.Join(httplimit.ByAddr(), httplimit.ByPattern())})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	handler := mw.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { s.served.Add(1) }))
	mux.Handle("GET /users/{id}", handler)
	mux.Handle("GET /users/{id}/{$}", handler)
	mux.Handle("POST /users/{id}", handler)
	s.h = mux
	return s
}

// TestWaysRound tries forms of one request that might count apart. docs/limits.md says what closes each.
func TestWaysRound(t *testing.T) {
	for name, ask := range map[string]func(i int) *http.Request{
		"path parameters":  func(i int) *http.Request { return request("GET", fmt.Sprintf("/users/%d", i)) },
		"query parameters": func(i int) *http.Request { return request("GET", fmt.Sprintf("/users/1?x=%d&id=%d", i, i)) },
		"HEAD and GET":     func(i int) *http.Request { return request([]string{"GET", "HEAD"}[i%2], "/users/1") },
		"escapes":          func(i int) *http.Request { return request("GET", []string{"/users/1", "/%75sers/%31"}[i%2]) },
		"a method in a header": func(i int) *http.Request {
			return request("GET", "/users/1", fmt.Sprintf("X-Http-Method-Override: M%d", i))
		},
		"another host":     func(i int) *http.Request { return request("GET", fmt.Sprintf("http://h%d.example/users/1", i)) },
		"a fragment of it": func(i int) *http.Request { return request("GET", fmt.Sprintf("/users/1;v=%d", i)) },
	} {
		s := behindPatterns(t)
		for i := range 10 {
			s.do(ask(i))
		}
		if got := s.served.Load(); got != 2 {
			t.Errorf("%s: %d of 10 served, want 2", name, got)
		}
	}

	// Paths that the mux does not take for the same are served by nobody, or by another handler with its own limit.
	s := behindPatterns(t)
	for path, status := range map[string]int{
		"/users/1": 200, "/users/1/": 200, "/Users/1": 404, "//users/1": 307, "/./users/1": 307, "/users/../users/1": 307,
	} {
		if got := s.do(request("GET", path)).StatusCode; got != status {
			t.Errorf("%s: status %d, want %d", path, got, status)
		}
	}
	if got := s.served.Load(); got != 2 {
		t.Errorf("%d served, want 2", got)
	}
}

// TestKeysAreOfTheAccount rotates keys, and spells one in several ways: what counts is whom the check has found.
func TestKeysAreOfTheAccount(t *testing.T) {
	accounts := map[string]string{"k1": "alice", "k2": "alice", "K1": "alice"} // a check that does not heed case
	byAccount := httplimit.By("account", func(r *http.Request) (string, error) { return accounts[r.Header.Get("X-Api-Key")], nil })
	for name, tt := range map[string]struct {
		key  httplimit.KeyFunc
		want int64
	}{
		"by what was sent":  {httplimit.ByHeader("X-Api-Key"), 6},
		"by what was found": {byAccount, 2},
	} {
		s := newSite(t, bucket(t, newClock(), limit.PerMinute(2)), httplimit.Options{Key: tt.key})
		for range 3 {
			for key := range accounts {
				for _, header := range []string{"X-Api-Key", "x-api-key", "X-API-KEY"} { // one name
					r := httptest.NewRequest("GET", "/", nil)
					r.Header.Set(header, key)
					s.do(r)
				}
			}
		}
		if got := s.served.Load(); got != tt.want {
			t.Errorf("%s: %d served, want %d", name, got, tt.want)
		}
	}
}
