package hybrid

import (
	"context"
	"sync/atomic"
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

// terms are the conditions of leases under one limit. Keys with the same limit share them; a limit without a rate needs
// some of its own for each key.
type terms struct {
	lease.Terms
	// rated are these terms, or, of a limit without a rate, those of the last limit that had one: leases under it may
	// still be out.
	rated *terms
	// checked is when LimitFor was last asked about a limit without a rate.
	checked atomic.Int64
}

// newTerms are the conditions of leases under a limit, when those before, if any, were the last ones. Unlimited and
// Blocked have none.
func (l *Limiter) newTerms(lim limit.Limit, before *terms) *terms {
	if lim.Rate == 0 {
		t := &terms{Terms: lease.Terms{Limit: lim}}
		if before != nil {
			t.rated = before.rated
		}
		return t
	}
	if t, ok := l.terms.Get(lim); ok {
		return t
	}
	t := &terms{Terms: lease.NewTerms(lim, l.opts.tuning())}
	t.rated = t
	l.terms.Add(lim, t)
	return t
}

// maxTerms is how many limits are remembered with their terms: more tiers than anybody has.
const maxTerms = 256

// fill puts the terms into a request.
func (t *terms) fill(h *lease.Holding) { h.MaxLeased, h.Dry, h.TTL = t.MaxLeased, t.Dry, t.TTL }

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
	for e := range l.keys.All() {
		if e.renewTerms() && returns < returnsAtOnce {
			returns++
			e.startReport() // those of the others are left to the janitor
		}
	}
	return nil
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
		e.terms.Store(l.newTerms(lim, e.terms.Load()))
		e.refusal.Store(nil)
		changed = true
	}
	if !changed {
		return false
	}
	// What is held was lent under the old limit. It is not spent any more; the janitor sends it back.
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.account.Load(); a != nil {
		n := a.giveUpLocked()
		l.returned(n)
		return n > 0
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
		now, checked := l.clock.Now(), &e.terms.Load().checked
		if last := checked.Load(); now-last >= int64(checkEvery) && checked.CompareAndSwap(last, now) {
			if e.renewTerms(); e.terms.Load().Limit.Rate > 0 {
				return e.decide(ctx, n, nil)
			}
		}
	}
	r, _ := e.terms.Load().Limit.Constant(n, limit.Local)
	return r, nil
}
