package httplimit_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// quiet is a writer that keeps the headers of one answer at a time, as a server does, and nothing else.
type quiet struct {
	header  http.Header
	refused int // answers of the Middleware itself: the handler never sends a status
}

func (q *quiet) Header() http.Header         { return q.header }
func (q *quiet) Write(b []byte) (int, error) { return len(b), nil }
func (q *quiet) WriteHeader(int)             { q.refused++ }

// leased is a limiter in whose memory there is always a token: its bucket is in memory too, and asked once in a million.
func leased(tb testing.TB) *hybrid.Limiter {
	const tokens = 1_000_000
	l, err := hybrid.NewFrom(leasetest.NewSource(), limit.PerSecond(4*tokens).WithBurst(1000*tokens), hybrid.Options{LeaseSize: tokens})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close(context.Background()) })
	return l
}

var idle = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// loads are what is measured, and how often a request may allocate: for its key, a list for each header, and each number
// that has more than two digits.
var loads = []struct {
	name   string
	opts   httplimit.Options
	allocs float64
}{
	{"headers=none", httplimit.Options{XRateLimit: httplimit.XNone}, 1},
	{"headers=X", httplimit.Options{}, 6},
	{"headers=X+Draft11", httplimit.Options{Dialect: httplimit.Draft11}, 10},
	{"headers=X+Draft11/key=ApiKey", httplimit.Options{Dialect: httplimit.Draft11, Key: httplimit.ByHeader("X-Api-Key")}, 11},
}

// BenchmarkMiddleware is what the Middleware adds to a handler that does nothing, while the key is leased.
func BenchmarkMiddleware(b *testing.B) {
	b.Run("bare", func(b *testing.B) { measure(b, idle) })
	for _, load := range loads {
		b.Run(load.name, func(b *testing.B) {
			l := leased(b)
			mw, err := httplimit.New(l, load.opts)
			if err != nil {
				b.Fatal(err)
			}
			measure(b, mw.Handler(idle))
			if s := l.Stats(); s.Calls > int64(b.N)/100_000+10 {
				b.Errorf("%d calls for leases in %d requests", s.Calls, b.N)
			}
		})
	}
}

// TestAllocations keeps what BenchmarkMiddleware has found.
func TestAllocations(t *testing.T) {
	for _, load := range loads {
		mw, err := httplimit.New(leased(t), load.opts)
		if err != nil {
			t.Fatal(err)
		}
		h, r, w := mw.Handler(idle), benchRequest(), &quiet{header: http.Header{}}
		if got := testing.AllocsPerRun(1000, func() {
			clear(w.header)
			h.ServeHTTP(w, r)
		}); got > load.allocs {
			t.Errorf("%s: %v allocations for a request, want at most %v", load.name, got, load.allocs)
		}
		if w.refused > 0 {
			t.Errorf("%s: %d were refused", load.name, w.refused)
		}
	}
}

func benchRequest() *http.Request { return request("GET", "/hello", "X-Api-Key: k-17") }

func measure(b *testing.B, h http.Handler) {
	r, w := benchRequest(), &quiet{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
	if w.refused > 0 {
		b.Errorf("%d of %d requests were refused", w.refused, b.N)
	}
}
