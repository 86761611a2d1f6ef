package hybrid

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/hybridlimit/hybrid/internal/flight"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// Limiter holds one limit per key across all processes that use the same Redis and prefix. It answers from leased
// tokens in memory, and asks Redis when they are used up. It is safe for concurrent use; make it with New and Close it
// when done.
type Limiter struct {
	limit  limit.Limit
	opts   Options
	source lease.Source
	size   int           // tokens of a lease
	ttl    time.Duration // and its life
	start  time.Time     // the origin of the clock below

	keys    *lru.Cache[string, *entry]
	flights *flight.Group // refills
	peeks   *flight.Group // reads of keys that this process knows nothing of
	counts  counters

	mu       sync.Mutex     // guards closed, and with it the order of Add and Wait of refills
	closed   bool           // set by Close, never unset
	refills  sync.WaitGroup // calls to the source
	released chan struct{}  // closed when the first Close is done
}

// New returns a Limiter that leases its tokens from the token buckets in Redis. It does no I/O: Redis need not be up.
// Errors wrap ErrInvalid.
func New(rdb remote.Client, lim limit.Limit, opts Options) (*Limiter, error) {
	src := remote.NewSource(rdb, remote.Options{Prefix: opts.Prefix, Timeout: opts.Timeout})
	if err := src.Err(); err != nil {
		return nil, err
	}
	return NewFrom(src, lim, opts)
}

// NewFrom is New with any source of leases, for example one made for tests. Options.Prefix is then not used.
func NewFrom(src lease.Source, lim limit.Limit, opts Options) (*Limiter, error) {
	if v := reflect.ValueOf(src); src == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("%w: the source of leases is nil", limit.ErrInvalid)
	}
	if err := lim.Validate(); err != nil {
		return nil, err
	}
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		limit: lim, opts: opts, source: src, start: time.Now(),
		flights: flight.New(opts.Timeout), peeks: flight.New(opts.Timeout), released: make(chan struct{}),
	}
	if lim.Rate > 0 {
		l.size, l.ttl = lease.Size(lim, opts.LeaseSize, opts.MaxLeased), lease.TTL(lim, opts.LeaseTTL)
	}
	l.keys, err = lru.NewWithEvict(opts.MaxKeys, l.evicted)
	return l, err
}

// now is the clock of leases: nanoseconds since the limiter was made, by the monotonic clock.
func (l *Limiter) now() int64 { return int64(time.Since(l.start)) }

// Allow is shorthand for AllowN(ctx, key, 1).
func (l *Limiter) Allow(ctx context.Context, key string) (limit.Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN decides a request that costs n tokens: all of them or none. It never waits for tokens; it waits for Redis, at
// most Options.Timeout, when this process holds too few. A denial is a Result and no error. n = 0 takes nothing and is
// always allowed.
//
// Errors: ErrInvalidKey, ErrInvalidTokens and ErrExceedsBurst for bad input, before anything is charged; ErrClosed;
// ErrUnavailable when Redis did not decide in time; the context's own error when ctx ended before. ctx is looked at
// only when Redis has to be asked.
func (l *Limiter) AllowN(ctx context.Context, key string, n int) (limit.Result, error) {
	return l.allow(ctx, key, n, nil)
}

// allow is the one way through: take, else refill and take again, else say when. e is the entry of the key if the
// caller knows it.
func (l *Limiter) allow(ctx context.Context, key string, n int, e *entry) (limit.Result, error) {
	if err := l.limit.Admit(key, n); err != nil {
		return limit.Result{}, err
	}
	if r, ok := l.limit.Constant(n, limit.Local); ok {
		return r, nil
	}
	if n == 0 {
		return l.peek(ctx, key)
	}
	if e == nil {
		e = l.entry(key)
	}
	if left, ok := e.balance.Take(int64(n), l.now); ok {
		return e.allowed(left), nil
	}
	if r, ok := e.denied(n, l.now()); ok {
		return r, nil
	}
	return l.flights.Do(ctx, key, n, e.refill)
}

// LimitOf returns the limit, which is the same for every key.
func (l *Limiter) LimitOf(string) limit.Limit { return l.limit }

// begin says whether a call to the source may start; end must follow.
func (l *Limiter) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.refills.Add(1)
	return true
}

func (l *Limiter) end() { l.refills.Done() }

// Close gives the tokens that this process holds back to the buckets and waits for it: until ctx ends, or, if it has
// no deadline, for two Timeouts. Calls that are waiting for Redis get their answer; later ones that need Redis get
// ErrClosed. What could not be given back comes back by refill; then Close returns an error that says so. A second
// Close waits for the first and returns nil.
func (l *Limiter) Close(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*l.opts.Timeout)
		defer cancel()
	}
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if !first {
		select {
		case <-l.released:
		case <-ctx.Done():
		}
		return nil
	}
	defer close(l.released)
	idle := make(chan struct{})
	go func() { // ends with the calls that are out, each of which has a deadline
		l.refills.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	return l.giveBack(ctx)
}
