package hybrid

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/hybridlimit/hybrid/internal/flight"
	"github.com/hybridlimit/hybrid/internal/keytable"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// Limiter holds one limit per key across all processes that use the same Redis and prefix. It answers from leased
// tokens in memory, and asks Redis when they run out. It is safe for concurrent use; make it with New and Close it when
// done.
type Limiter struct {
	clock  clock // read by every request, so apart from what is written often
	opts   Options
	limit  atomic.Pointer[limit.Limit] // for keys to which LimitFor gives none
	source lease.Source
	lanes  lanes

	keys    *keytable.Table[*entry]
	terms   *lru.Cache[limit.Limit, *terms]
	flights *flight.Group // calls that change a key
	peeks   *flight.Group // reads of keys that this process knows nothing of
	janitor janitor
	holders holders
	counts  counters

	ids    atomic.Uint64 // made so far, each used for one lease of one entry in this process
	prefix string        // of the ids, random

	mu       sync.Mutex     // orders closed, and Add and Wait of refills
	closed   atomic.Bool    // set by Close under mu, never unset
	refills  sync.WaitGroup // calls to the source
	ended    atomic.Bool    // set by Close when it gives the tokens back: answers that come later are void
	released chan struct{}  // closed when the first Close is done
}

// New returns a Limiter that leases its tokens from the token buckets in Redis. It does no I/O: Redis need not be up.
// Errors wrap ErrInvalid.
func New(rdb remote.Client, lim limit.Limit, opts Options) (*Limiter, error) {
	src := remote.NewSource(rdb, remote.Options{Prefix: opts.Prefix, Timeout: opts.Timeout})
	if err := src.Err(); err != nil {
		return nil, err
	}
	l, err := NewFrom(src, lim, opts)
	if err == nil {
		for _, advice := range remote.Advice(rdb) {
			l.log(slog.LevelWarn, "the settings of the Redis client: "+advice)
		}
	}
	return l, err
}

// NewFrom is New with any source of leases, for example that of lease/leasetest. Options.Prefix is then not used.
func NewFrom(src lease.Source, lim limit.Limit, opts Options) (*Limiter, error) {
	if v := reflect.ValueOf(src); src == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("%w: the source of leases is nil", limit.ErrInvalid)
	}
	if err := lim.Validate(); err != nil && !(opts.LimitFor != nil && lim == limit.Limit{}) {
		return nil, err
	}
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		opts: opts, source: src, prefix: randomID(),
		keys: keytable.New[*entry](opts.MaxKeys), flights: flight.New(opts.Timeout), peeks: flight.New(opts.Timeout), released: make(chan struct{}),
	}
	l.limit.Store(&lim)
	l.clock.init()
	l.janitor.limiter, l.janitor.wall = l, func() int64 { return time.Now().UnixNano() }
	l.terms, err = lru.New[limit.Limit, *terms](maxTerms)
	return l, err
}

// randomID is different in every process, also in a clone of one.
func randomID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return base32.StdEncoding.EncodeToString(b[:])
}

// newID is the name of a lease. An entry that comes back after it was forgotten must not come back under its old name:
// requests of the old one may still be under way, and their totals would be taken for those of the new.
func (l *Limiter) newID() string {
	return l.prefix + "-" + strconv.FormatUint(l.ids.Add(1), 36)
}

// Allow is shorthand for AllowN(ctx, key, 1).
func (l *Limiter) Allow(ctx context.Context, key string) (limit.Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN decides a request that costs n tokens: all of them or none. It never waits for tokens; it waits for Redis, at
// most Options.Timeout, when this process holds too few. A denial is a Result and no error. n = 0 takes nothing and is
// never denied.
//
// Errors: ErrInvalidKey, ErrInvalidTokens and ErrExceedsBurst for bad input, before anything is charged; ErrInvalid if
// LimitFor gave no good limit; ErrClosed; ErrUnavailable when Redis did not decide in time; the context's own error when
// ctx ended before. ctx is looked at only when Redis has to be asked.
func (l *Limiter) AllowN(ctx context.Context, key string, n int) (limit.Result, error) {
	if e, ok := l.keys.Get(key); ok {
		return e.allow(ctx, n, nil)
	}
	e, err := l.entry(key, n > 0)
	if err != nil {
		return limit.Result{}, err
	}
	return e.answer(ctx, n, nil)
}

// begin says whether a call to the source may start; end must follow.
func (l *Limiter) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.refills.Add(1)
	return true
}

func (l *Limiter) end() { l.refills.Done() }

// Close gives the tokens that this process holds back to the buckets and waits for it: until ctx ends, or, if it has
// no deadline, for two Timeouts. Calls that are waiting for Redis get their answer; later ones get ErrClosed. What could
// not be given back comes back when the leases end; then Close returns an error that says so. A second Close waits for
// the first and returns nil.
func (l *Limiter) Close(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*l.opts.Timeout)
		defer cancel()
	}
	l.mu.Lock()
	first := !l.closed.Swap(true)
	l.mu.Unlock()
	if !first {
		select {
		case <-l.released:
		case <-ctx.Done():
		}
		return nil
	}
	defer close(l.released)
	l.janitor.wakeAll()
	idle := make(chan struct{})
	go func() { // ends with the calls that are out, each of which has a deadline
		l.refills.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	l.ended.Store(true)
	return l.giveBackAll(ctx, l.janitor.stop())
}
