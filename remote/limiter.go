package remote

import (
	"context"

	"github.com/hybridlimit/hybrid/internal/flight"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// Limiter is what the five modes share; the constructors make it. It is safe for concurrent use and has nothing to
// close: its calls end by themselves within Timeout.
type Limiter struct {
	limit limit.Limit
	opts  Options
	conn  conn
	group *flight.Group
	mode  mode
}

// mode is how one algorithm talks to its script.
type mode interface {
	// suffix ends the names of its keys: algorithm, version of the state and, of windows, the period, so that modes,
	// releases and windows of different length never meet.
	suffix() string
	// decide runs the script once.
	decide(ctx context.Context, c conn, key string, costs []lease.Run) ([]lease.Paid, error)
}

func newLimiter(rdb Client, lim limit.Limit, opts Options, m mode) (Limiter, error) {
	opts, err := opts.complete(rdb)
	if err != nil {
		return Limiter{}, err
	}
	return Limiter{lim, opts, newConn(rdb), flight.New(opts.Timeout), m}, nil
}

// Allow is shorthand for AllowN(ctx, key, 1).
func (l *Limiter) Allow(ctx context.Context, key string) (limit.Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN decides a request of n tokens in Redis, as limit.Limiter says. It returns the context's own error when ctx
// ends first; the request may be charged all the same.
func (l *Limiter) AllowN(ctx context.Context, key string, n int) (limit.Result, error) {
	if err := l.limit.Admit(key, n); err != nil {
		return limit.Result{}, err
	}
	if r, ok := l.limit.Constant(n, limit.Local); ok {
		return r, nil
	}
	return l.group.Do(ctx, key, n, l.send)
}

func (l *Limiter) send(ctx context.Context, key string, costs []lease.Run) ([]lease.Paid, error) {
	paid, err := l.mode.decide(ctx, l.conn, redisKey(l.opts.Prefix, key, l.mode.suffix()), costs)
	if err != nil {
		return nil, unavailable(l.opts.Prefix, err)
	}
	return paid, nil
}

// LimitOf returns the limit, which is the same for every key.
func (l *Limiter) LimitOf(string) limit.Limit { return l.limit }

// Reset forgets everything about key: it is as if it had never been used. An unknown key is no error.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	return l.reset(ctx, key, l.conn.remove)
}

// reset calls f with the Redis name of a key, bounded by Timeout.
func (l *Limiter) reset(ctx context.Context, key string, f func(ctx context.Context, redisKey string) error) error {
	if err := l.limit.Admit(key, 0); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, l.opts.Timeout)
	defer cancel()
	err := f(bounded, redisKey(l.opts.Prefix, key, l.mode.suffix()))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return unavailable(l.opts.Prefix, err)
}
