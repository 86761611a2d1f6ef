package hybrid_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// bank is a leasetest.Source that remembers what it was asked.
type bank struct {
	*leasetest.Source

	mu       sync.Mutex // guards the fields below
	requests []lease.Request
	before   func(lease.Request)
}

func newBank() *bank { return &bank{Source: leasetest.NewSource()} }

// Acquire implements lease.Source.
func (b *bank) Acquire(ctx context.Context, reqs []lease.Request, grants []lease.Grant) {
	b.mu.Lock()
	b.requests = append(b.requests, reqs...)
	before := b.before
	b.mu.Unlock()
	if before != nil {
		for _, req := range reqs {
			before(req)
		}
	}
	b.Source.Acquire(ctx, reqs, grants)
}

// hook sets what is called before each request is sent: it may wait, panic, or do something in between. nil is nothing.
func (b *bank) hook(f func(lease.Request)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before = f
}

// always makes the same go wrong with every request; the zero Fault mends it.
func (b *bank) always(f leasetest.Fault) { b.Always(func(lease.Request) leasetest.Fault { return f }) }

// last is the newest request.
func (b *bank) last() lease.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) == 0 {
		return lease.Request{}
	}
	return b.requests[len(b.requests)-1]
}

// look is what the bucket would say now to somebody who takes nothing.
func (b *bank) look(key string, lim limit.Limit) lease.Grant {
	var twin leasetest.Bucket
	twin.Restore(b.State(key))
	return twin.Do(b.Now(), lease.Request{Key: key, Limit: lim})
}

// level is how many tokens are in the bucket now.
func (b *bank) level(key string, lim limit.Limit) int64 { return b.look(key, lim).Level }

// newSlowSource is for tests in real time, which on a busy machine may take any time.
func newSlowSource() *leasetest.Source {
	src := leasetest.NewSource()
	src.Timeout = time.Minute
	return src
}

func newLimiter(t *testing.T, src lease.Source, lim limit.Limit, opts hybrid.Options) *hybrid.Limiter {
	t.Helper()
	opts.OnFailure = hybrid.FailClosed // what Redis does not decide is an error, and no policy admits anything
	l, err := hybrid.NewFrom(src, lim, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// recovered waits, in a bubble, until a limiter has noticed that its source answers again.
func recovered(t *testing.T, l *hybrid.Limiter) {
	t.Helper()
	time.Sleep(time.Second) // the longest pause between two probes
	l.Allow(t.Context(), "probe")
	synctest.Wait()
	if s := l.Stats(); s.Unavailable {
		t.Fatalf("not recovered: %v", s.Err)
	}
}

func closeLimiter(t *testing.T, l *hybrid.Limiter) {
	t.Helper()
	if err := l.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// asker is a Limiter, or anything else that decides by key.
type asker interface {
	AllowN(ctx context.Context, key string, n int) (limit.Result, error)
}

// ask makes a request that must not fail.
func ask(t *testing.T, l asker, key string, n int) limit.Result {
	t.Helper()
	r, err := l.AllowN(t.Context(), key, n)
	if err != nil {
		t.Fatalf("AllowN(%d): %v", n, err)
	}
	if r.Allowed != (r.RetryAfter == 0) || r.RetryAfter < 0 || r.ResetAfter < 0 || r.Remaining < 0 {
		t.Fatalf("AllowN(%d) = %+v, which contradicts itself", n, r)
	}
	return r
}

// allowed makes a request that must be allowed, denied one that must not.
func allowed(t *testing.T, l asker, key string, n int) limit.Result {
	t.Helper()
	r := ask(t, l, key, n)
	if !r.Allowed {
		t.Fatalf("AllowN(%d) = %+v, want it allowed", n, r)
	}
	return r
}

func denied(t *testing.T, l asker, key string, n int) limit.Result {
	t.Helper()
	r := ask(t, l, key, n)
	if r.Allowed {
		t.Fatalf("AllowN(%d) = %+v, want it denied", n, r)
	}
	return r
}

// admitted is how many of so many requests for one token are allowed.
func admitted(t *testing.T, l asker, key string, requests int) (n int) {
	t.Helper()
	for range requests {
		if ask(t, l, key, 1).Allowed {
			n++
		}
	}
	return n
}

// conserved checks that every token that was leased is accounted for; spent is what was allowed from memory.
func conserved(t *testing.T, l *hybrid.Limiter, spent int64) {
	t.Helper()
	s := l.Stats()
	if s.Leased != spent+s.Held+s.Returned+s.Expired {
		t.Errorf("leased %d tokens, but spent %d, holds %d, returned %d and let %d expire: %d are missing",
			s.Leased, spent, s.Held, s.Returned, s.Expired, s.Leased-spent-s.Held-s.Returned-s.Expired)
	}
}

// modes are the ways to use the source that must make no difference to what is admitted by one process.
func modes() map[string]hybrid.Options {
	return map[string]hybrid.Options{
		"adaptive": {},
		"exact":    {Exact: true},
		"lease 1":  {LeaseSize: 1},
		"lease 3":  {LeaseSize: 3},
		"lease 10": {LeaseSize: 10, MaxLeased: 1},
		"lease 11": {LeaseSize: 11, MaxLeased: 1},
	}
}

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0 is a new one for each run")

// newRand is a source of chance whose seed is told when the test fails.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with -seed=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}
