package hybrid

import (
	"context"
	"errors"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// peek tells what is left without taking anything: from memory if this process holds tokens or knows that there are
// none, else from Redis.
func (e *entry) peek(ctx context.Context) (limit.Result, error) {
	l := e.limiter
	now := l.clock.Now()
	if a := e.account.Load(); a != nil {
		if held := a.balance.Held(now); held > 0 {
			return e.allowed(a, held), nil
		}
	}
	if r, ok := e.refusal.Load().Denies(now, int64(e.terms.Load().Limit.Burst)); ok {
		return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Local}, Remaining: r.Remaining}, nil
	}
	a := e.account.Load()
	w := e.lane(a)
	if cause := w.paused(a); cause != nil {
		e.probeIfDue(w)
		return e.withoutRedis(0, cause)
	}
	res, err := l.peeks.Do(ctx, e.key, 0, e.look)
	if errors.Is(err, limit.ErrUnavailable) {
		e.waitedBehind(w, 1, err)
		return e.withoutRedis(0, err)
	}
	return res, err
}

// look reads the bucket for the peeks of one batch.
func (e *entry) look(ctx context.Context, _ string, costs []lease.Run) ([]lease.Paid, error) {
	l := e.limiter
	if !l.begin() {
		return nil, limit.ErrClosed
	}
	defer l.end()
	e.renewTerms()
	if e.terms.Load().Limit.Rate == 0 {
		return e.payConstant(costs), nil
	}
	terms, sent := e.terms.Load().rated, l.clock.Now()
	a := e.account.Load()
	w := e.lane(a)
	g := w.do(ctx, lease.Request{Key: e.key, Limit: terms.Limit, Slack: terms.Slack, Costs: costs})
	l.called(w, a, sent, lease.Callers(costs), g.Err)
	if g.Err != nil {
		return nil, g.Err
	}
	return g.Pay(terms.Limit, costs, 0), nil
}
