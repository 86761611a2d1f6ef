package hybrid

import (
	"context"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// limitFor is the limit of a key, or an error that wraps ErrInvalid.
func (l *Limiter) limitFor(key string) (limit.Limit, error) {
	if l.opts.LimitFor != nil {
		if lim := l.opts.LimitFor(key); lim != (limit.Limit{}) {
			return lim, lim.Validate()
		}
	}
	lim := *l.limit.Load()
	return lim, lim.Validate()
}

// newTerms are the conditions of leases under a limit. Unlimited and Blocked have none.
func (l *Limiter) newTerms(lim limit.Limit) *lease.Terms {
	if lim.Rate == 0 {
		return &lease.Terms{Limit: lim}
	}
	t := lease.NewTerms(lim, l.opts.tuning())
	return &t
}

// LimitOf returns the limit of a key: what LimitFor says now, or the limiter's own. If neither is valid it is the zero
// Limit.
func (l *Limiter) LimitOf(key string) limit.Limit {
	lim, err := l.limitFor(key)
	if err != nil {
		return limit.Limit{}
	}
	return lim
}

// SetLimit replaces the limit of the keys to which LimitFor gives none. This process follows at once; what others hold
// under the old limit is good until their leases end. Tokens used stay used: a bucket keeps its level, at most the new
// Burst. An error wraps ErrInvalid and leaves the limit as it was.
func (l *Limiter) SetLimit(lim limit.Limit) error {
	if err := lim.Validate(); err != nil {
		return err
	}
	l.limit.Store(&lim)
	returns := 0
	for _, e := range l.keys.Values() {
		if e.renewTerms() && returns < returnsPerPass {
			returns++
			e.startReport() // those of the others are left to the janitor
		}
	}
	return nil
}

// setTerms puts a limit in force.
func (e *entry) setTerms(lim limit.Limit) {
	terms := e.limiter.newTerms(lim)
	if lim.Rate > 0 {
		e.rated.Store(terms)
	}
	e.terms.Store(terms)
}

// renewTerms takes over the limit that is in force now, and says whether tokens were given up for it. A bad answer of
// LimitFor leaves the last good one.
func (e *entry) renewTerms() (gaveUp bool) {
	l := e.limiter
	changed := false
	// Again until it is still in force after it was stored: two may be at it, and the one with the older limit must not
	// be the last. Not for ever, should LimitFor never say the same twice.
	for range 4 {
		lim, err := l.limitFor(e.key)
		if err != nil || lim == e.terms.Load().Limit {
			break
		}
		e.setTerms(lim)
		e.refusal.Store(nil)
		changed = true
	}
	if changed && e.balance.Held(l.now()) > 0 {
		// What is held was lent under the old limit. It is not spent any more; the janitor sends it back.
		e.mu.Lock()
		e.giveUpLocked()
		e.mu.Unlock()
		l.janitor.watch(e)
		return true
	}
	return false
}

// checkEvery is how often LimitFor is asked about keys that are Unlimited or Blocked. Others ask it when they ask Redis.
const checkEvery = 100 * time.Millisecond

// constant decides a request under a limit that needs no counting.
func (e *entry) constant(ctx context.Context, n int) (limit.Result, error) {
	l := e.limiter
	if l.closed.Load() {
		return limit.Result{}, limit.ErrClosed
	}
	if l.opts.LimitFor != nil {
		now := l.now()
		if last := e.checked.Load(); now-last >= int64(checkEvery) && e.checked.CompareAndSwap(last, now) {
			if e.renewTerms(); e.terms.Load().Limit.Rate > 0 {
				return e.allow(ctx, n)
			}
		}
	}
	r, _ := e.terms.Load().Limit.Constant(n, limit.Local)
	return r, nil
}
