package httplimit_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

// byUser takes the user from a header that authentication has set.
var byUser = httplimit.By("user", func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil })

func TestIP06_MissingKey(t *testing.T) {
	byKey := httplimit.ByHeader("x-api-key")
	for _, tt := range []struct {
		name                           string
		opts                           httplimit.Options
		missing, empty, two            int   // status
		servedOfThree, servedOfThreeBy int64 // with three requests from each of three addresses
	}{
		{"refused, the default", httplimit.Options{Key: byKey}, 400, 400, 400, 0, 0},
		{"not limited", httplimit.Options{Key: byKey, AllowNoKey: true}, 200, 200, 400, 9, 0},
		{"by address", httplimit.Options{Key: httplimit.First(byKey, httplimit.ByAddr())}, 200, 200, 400, 6, 0},
	} {
		fresh := func() *site { return newSite(t, bucket(t, newClock(), limit.PerMinute(2)), tt.opts) }
		s := fresh()
		for i := range 9 {
			s.from(fmt.Sprintf("192.0.2.%d:80", 1+i%3))
		}
		if got := s.served.Load(); got != tt.servedOfThree {
			t.Errorf("%s: %d of 9 served, want %d", tt.name, got, tt.servedOfThree)
		}
		want(t, fresh().get(), tt.missing, noRateHeaders[3:]...)
		want(t, fresh().get("X-Api-Key: "), tt.empty)
		want(t, fresh().get("X-Api-Key: a", "X-Api-Key: b"), tt.two, "Retry-After:")
		want(t, fresh().get("X-Api-Key: a"), 200, "X-RateLimit-Remaining: 1")
	}
}

func TestKEY01_JoinKeepsPartsApart(t *testing.T) {
	part := func(header string) httplimit.KeyFunc {
		return func(r *http.Request) (string, error) { return r.Header.Get(header), nil }
	}
	seen := map[string]string{}
	for _, parts := range [][2]string{{"user@a.co", "mtest"}, {"user@a.com", "test"}, {"a:b", "c"}, {"a", "b:c"}, {"1:a", "b"}, {"1", "a:b"}} {
		r := request("GET", "/", "A: "+parts[0], "B: "+parts[1])
		key, err := httplimit.Join(part("A"), part("B"))(r)
		if err != nil || seen[key] != "" {
			t.Errorf("%q: key %q is that of %q too, error %v", parts, key, seen[key], err)
		}
		seen[key] = fmt.Sprint(parts)
	}
	for _, headers := range [][]string{{"A: a"}, {"B: b"}, {}} {
		if key, err := httplimit.Join(part("A"), part("B"))(request("GET", "/", headers...)); !errors.Is(err, httplimit.ErrNoKey) {
			t.Errorf("%q: key %q, error %v; want ErrNoKey", headers, key, err)
		}
	}
}

func TestKEY02_KindsDoNotMeet(t *testing.T) {
	l := bucket(t, newClock(), limit.PerMinute(1))
	for name, key := range map[string]httplimit.KeyFunc{
		"user": byUser, "address": httplimit.ByAddr(), "header": httplimit.ByHeader("X-User"), "pattern": httplimit.ByPattern(),
		"hash": httplimit.Hash(httplimit.ByAddr()),
	} {
		s := newSite(t, l, httplimit.Options{Key: key})
		for _, status := range []int{200, 429} {
			r := request("GET", "/", "X-User: 127.0.0.1")
			r.RemoteAddr = "127.0.0.1:80"
			r.Pattern = "127.0.0.1"
			if got := s.do(r).StatusCode; got != status {
				t.Errorf("by %s: status %d, want %d", name, got, status)
			}
		}
	}
}

func TestKEY05_NothingOfARequestIsKept(t *testing.T) {
	opts := httplimit.Options{Key: httplimit.ByHeader("X-Owner")}
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(1)), opts)
	for _, tt := range []struct {
		owner  string
		status int
	}{{"A", 200}, {"B", 200}, {"A", 429}, {"C", 200}} {
		want(t, s.get("X-Owner: "+tt.owner), tt.status)
	}
	s = newSite(t, bucket(t, newClock(), limit.PerMinute(1)), opts)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() { s.get(fmt.Sprintf("X-Owner: %d", i%8)) })
	}
	wg.Wait()
	if got := s.served.Load(); got != 8 {
		t.Errorf("%d served, want one for each of 8 owners", got)
	}
}

func TestKeys(t *testing.T) {
	broken := errors.New("broken")
	fails := func(*http.Request) (string, error) { return "", broken }
	empty := func(*http.Request) (string, error) { return "", nil }
	for _, tt := range []struct {
		name string
		key  httplimit.KeyFunc
		want string
		err  error
	}{
		{"header", httplimit.ByHeader("x-api-key"), "header:X-Api-Key:s3cret", nil},
		{"user", byUser, "user:alice", nil},
		{"no user", httplimit.By("user", empty), "", httplimit.ErrNoKey},
		{"broken user", httplimit.By("user", fails), "", broken},
		{"no kind", httplimit.By("", fails), "", limit.ErrInvalid},
		{"kind with a colon", httplimit.By("a:b", fails), "", limit.ErrInvalid},
		{"pattern", httplimit.ByPattern(), "pattern:GET /users/{id}", nil},
		{"join", httplimit.Join(byUser, httplimit.ByAddr()), limit.Join("user:alice", "addr:192.0.2.1"), nil},
		{"join of a broken one", httplimit.Join(byUser, fails), "", broken},
		{"join of none", httplimit.Join(), "", nil},
		{"first", httplimit.First(httplimit.ByHeader("X-None"), empty, byUser, fails), "user:alice", nil},
		{"first but broken", httplimit.First(fails, byUser), "", broken},
		{"first of none", httplimit.First(), "", httplimit.ErrNoKey},
		{"hash", httplimit.Hash(byUser), "sha256:", nil},
		{"hash of none", httplimit.Hash(empty), "", nil},
		{"hash of a broken one", httplimit.Hash(fails), "", broken},
	} {
		r := request("GET", "/users/7", "X-User: alice", "X-Api-Key: s3cret")
		r.Pattern = "GET /users/{id}"
		got, err := tt.key(r)
		if tt.name == "hash" && len(got) == len("sha256:")+43 && !strings.Contains(got, "alice") {
			got = got[:len("sha256:")]
		}
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: %q, %v; want %q, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
	// No key is no bucket that all share.
	want(t, newSite(t, bucket(t, newClock(), limit.PerMinute(1)), httplimit.Options{Key: empty}).get(), 400)
	want(t, newSite(t, bucket(t, newClock(), limit.PerMinute(1)), httplimit.Options{Key: empty, AllowNoKey: true}).get(), 200)
	want(t, newSite(t, bucket(t, newClock(), limit.PerMinute(1)), httplimit.Options{Key: fails, AllowNoKey: true}).get(), 500)
}

func TestLongKeys(t *testing.T) {
	long := "X-Api-Key: " + strings.Repeat("k", limit.MaxKeyLen)
	l := bucket(t, newClock(), limit.PerMinute(1))
	key := httplimit.ByHeader("X-Api-Key")
	want(t, newSite(t, l, httplimit.Options{Key: key}).get(long), 400)
	want(t, newSite(t, l, httplimit.Options{Key: key, AllowNoKey: true}).get(long), 400) // a bad key is no missing one
	s := newSite(t, l, httplimit.Options{Key: httplimit.Hash(key)})
	want(t, s.get(long), 200)
	want(t, s.get(long), 429)
	want(t, s.get(long+"2"), 200)
}

// Path parameters make no keys, and the pattern is known inside the mux only.
func TestByPattern(t *testing.T) {
	mw, err := httplimit.New(bucket(t, newClock(), limit.PerMinute(2)), httplimit.Options{Key: httplimit.ByPattern()})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", mw.Handler(nothing))
	mux.Handle("GET /orders/{id}", mw.Handler(nothing))
	s := &site{t: t, h: mux}
	for i, status := range []int{200, 200, 429, 429} {
		want(t, s.do(request("GET", fmt.Sprintf("/users/%d", i))), status)
	}
	want(t, s.do(request("GET", "/orders/1")), 200)
	want(t, (&site{t: t, h: mw.Handler(mux)}).do(request("GET", "/orders/1")), 400)
}

// nothing is a handler that answers 200.
var nothing = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
