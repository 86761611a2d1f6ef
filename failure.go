package hybrid

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/internal/breaker"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// FailurePolicy is how requests are decided while Redis does not answer and the tokens that are leased are spent.
type FailurePolicy int

const (
	// FailLocal decides by a bucket of the process's own: its share of the limit, by how many processes there are, see
	// Options.Instances. The default.
	FailLocal FailurePolicy = iota
	// FailClosed decides nothing: calls return ErrUnavailable.
	FailClosed
	// FailOpen allows everything.
	FailOpen
)

// String returns "local", "closed" or "open".
func (p FailurePolicy) String() string {
	switch p {
	case FailLocal:
		return "local"
	case FailClosed:
		return "closed"
	case FailOpen:
		return "open"
	}
	return fmt.Sprintf("FailurePolicy(%d)", int(p))
}

// Observer is told what a Limiter does, for metrics. Its methods must be quick, must not call the limiter, and are called
// from many goroutines.
type Observer interface {
	// Called is told of each request to Redis: how long it took, and the error if it got no answer.
	Called(took time.Duration, err error)
	// Unavailable is told when the limiter stops asking a Redis server, but for probes, and what the last failure was.
	Unavailable(err error)
	// Available is told when it asks again, and for how long it had not.
	Available(after time.Duration)
}

// afterRefusal is for how long a key is not asked for that a healthy Redis has refused: there are no rights, no memory, or
// it is somebody else's.
const afterRefusal = time.Second

// outage is what the limiter knows about a Redis that does not answer.
type outage struct {
	limiter *Limiter
	name    string      // of the lane
	open    atomic.Bool // the breaker is
	failing atomic.Bool // nothing has gone well since the last failure
	evicted atomic.Bool // the table has forgotten a key since then

	mu       sync.Mutex // guards the fields below
	breaker  breaker.Breaker
	err      error    // the last failure
	events   []func() // to be told to the Logger and the Observer
	refusals int64    // when one was last logged

	telling sync.Mutex // held by who tells
}

// succeeded notes that n decisions came from Redis.
func (o *outage) succeeded(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.breaker.Succeeded(o.limiter.clock.Now(), n)
	if !o.breaker.Open() && o.failing.Load() {
		o.failing.Store(false)
		o.evicted.Store(false)
	}
}

// failed notes that n decisions got no answer from Redis.
func (o *outage) failed(n int, err error) {
	o.mu.Lock()
	o.err = err
	o.failing.Store(true)
	if o.breaker.Failed(o.limiter.clock.Now(), n, rand.Float64()) {
		o.open.Store(true)
		o.events = append(o.events, func() {
			o.limiter.log(slog.LevelWarn, "redis does not answer; requests are decided by the failure policy",
				slog.Any("policy", o.limiter.opts.OnFailure), slog.String("server", o.name), slog.Any("error", err))
			if obs := o.limiter.opts.Observer; obs != nil {
				obs.Unavailable(err)
			}
		})
	}
	o.mu.Unlock()
	o.tell()
}

// refuses logs that a healthy Redis refuses requests, once a second.
func (o *outage) refuses(now int64, err error) {
	o.mu.Lock()
	if o.refusals == 0 || now-o.refusals >= int64(time.Second) {
		o.refusals = now
		o.events = append(o.events, func() {
			o.limiter.log(slog.LevelError, "redis refuses requests", slog.String("server", o.name), slog.Any("error", err))
		})
	}
	o.mu.Unlock()
	o.tell()
}

// tell passes on what has happened, in the order in which it did: a slow handler must not make an end come before its
// beginning. Nobody waits for it but who does it.
func (o *outage) tell() {
	for o.pending() && o.telling.TryLock() {
		o.mu.Lock()
		events := o.events
		o.events = nil
		o.mu.Unlock()
		o.tellAll(events) // what came meanwhile is for the next turn
	}
}

func (o *outage) tellAll(events []func()) {
	defer o.telling.Unlock() // even if a handler panics
	for _, tell := range events {
		tell()
	}
}

func (o *outage) pending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.events) > 0
}

// probe reports whether the caller shall see whether Redis answers again; it must call probed then.
func (o *outage) probe() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.breaker.Probe(o.limiter.clock.Now())
}

// probed notes whether it did.
func (o *outage) probed(good bool) {
	now := o.limiter.clock.Now()
	o.mu.Lock()
	since := o.breaker.Since()
	if o.breaker.Probed(now, good, rand.Float64()) {
		o.open.Store(false)
		o.failing.Store(false)
		o.evicted.Store(false)
		after := time.Duration(now - since)
		o.events = append(o.events, func() {
			o.limiter.log(slog.LevelInfo, "redis answers again", slog.String("server", o.name), slog.Duration("after", after))
			if obs := o.limiter.opts.Observer; obs != nil {
				obs.Available(after)
			}
		})
	}
	o.mu.Unlock()
	o.tell()
}

// cause is the error of a decision that is not asked of Redis.
func (o *outage) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return limit.ErrUnavailable
	}
	return o.err
}

// log writes a line for the operator. No line holds a key.
func (l *Limiter) log(level slog.Level, text string, attrs ...slog.Attr) {
	if l.opts.Logger != nil {
		l.opts.Logger.LogAttrs(context.Background(), level, "hybrid: "+text, attrs...)
	}
}

// called notes how a request to Redis went, for which so many callers waited. Without an account it was a peek.
func (l *Limiter) called(w *lane, a *account, sent int64, callers int, err error) {
	now := l.clock.Now()
	l.counts.calls.Add(1)
	if obs := l.opts.Observer; obs != nil {
		obs.Called(time.Duration(now-sent), err)
	}
	switch {
	case err == nil:
		w.succeeded(max(1, callers))
		return
	case errors.Is(err, remote.ErrRefused):
		// Redis is well, it only will not. That says nothing about other keys.
		if a != nil {
			a.refused.Store(&refused{err, now + int64(afterRefusal)})
		}
		w.refuses(now, err)
	case time.Duration(now-sent) < l.opts.Timeout/2:
		w.failed(1, err)
	default:
		w.failed(max(1, callers), err) // each of them has waited for long
	}
	l.counts.failed.Add(1)
}

// withoutRedis decides a request by the failure policy. cause is why Redis does not.
func (e *entry) withoutRedis(n int, cause error) (limit.Result, error) {
	l := e.limiter
	if l.closed.Load() {
		return limit.Result{}, limit.ErrClosed
	}
	terms := e.terms.Load()
	if r, ok := terms.Limit.Constant(n, limit.Fallback); ok {
		return r, nil
	}
	switch l.opts.OnFailure {
	case FailClosed:
		return limit.Result{}, cause
	case FailOpen:
		l.counts.fallback.Add(1)
		return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Fallback}, Remaining: terms.Limit.Burst}, nil
	}
	l.counts.fallback.Add(1)
	a := &account{lane: e.lane(e.account.Load())} // for who only looks, one that leaves no trace
	if there := e.account.Load(); n > 0 || there != nil {
		a = e.open()
		defer e.close(a)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := l.clock.Now()
	s := a.share
	switch {
	case s == nil:
		s = newShare(terms.Limit, l.instances(), a.knownLevel(terms.Limit, e.lane(a).evicted.Load(), now), now)
	case s.limit != terms.Limit:
		s = s.under(terms.Limit, l.instances(), now)
	}
	if n > 0 {
		a.share = s
	}
	return s.take(now, int64(n)), nil
}
