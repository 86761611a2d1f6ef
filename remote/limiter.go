package remote

import (
	"context"
	"time"

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

// appendCosts adds runs to the arguments of a script.
func appendCosts(args []any, costs []lease.Run) []any {
	for _, c := range costs {
		args = append(args, c.Cost, c.Count)
	}
	return args
}

// decideWindow runs one of the three window scripts, which have the same reply: tokens left before the call, and for
// each run the requests admitted, the wait of a refused one and the time until all is available again.
func decideWindow(ctx context.Context, c conn, s script, key string, args []any, lim limit.Limit, costs []lease.Run) ([]lease.Paid, error) {
	reply, err := c.run(ctx, s, key, appendCosts(args, costs))
	if err != nil {
		return nil, err
	}
	n, err := integers(reply, 1+3*len(costs))
	if err != nil {
		return nil, err
	}
	if n[0] < 0 || n[0] > int64(lim.Rate) {
		return nil, badReply("more left than the limit, or less than nothing")
	}
	left := int(n[0])
	paid := make([]lease.Paid, len(costs))
	for i, c := range costs {
		fit := c.Count
		if c.Cost > 0 {
			fit = min(fit, left/c.Cost)
		}
		wait, reset := n[2+3*i], n[3+3*i]
		if n[1+3*i] != int64(fit) || wait < 0 || reset < 0 {
			return nil, badReply("not what is left for the request")
		}
		p := &paid[i]
		p.Cost, p.Admitted = c.Cost, fit
		p.Allowed = limit.Result{
			Verdict:    limit.Verdict{Allowed: true, Origin: limit.Remote},
			Remaining:  left - c.Cost,
			ResetAfter: limit.Micros(reset),
		}
		left -= fit * c.Cost
		p.Denied = limit.Result{
			Verdict:    limit.Verdict{Origin: limit.Remote},
			Remaining:  left,
			RetryAfter: max(limit.Micros(wait), time.Microsecond),
			ResetAfter: limit.Micros(reset),
		}
	}
	return paid, nil
}
