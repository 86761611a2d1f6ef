package hybrid

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hybridlimit/hybrid/internal/balance"
	"github.com/hybridlimit/hybrid/internal/flight"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// entry is one key that this process remembers. Its fields are read by every request and seldom written; what every
// request writes is in the account.
type entry struct {
	limiter *Limiter
	key     string

	terms   atomic.Pointer[terms]         // of the limit in force
	refusal atomic.Pointer[lease.Refusal] // nil unless the last reply said that the bucket is dry
	account atomic.Pointer[account]       // nil while the key is not in use; set under mu
	gone    atomic.Bool                   // not in the table, or not any more: look the key up again

	// mu is held for moments, never during a call. A flight takes it before and after its call; there is one flight
	// for the key at a time, but entries are also swept, forgotten and closed.
	mu sync.Mutex
}

// entry finds the entry of a key, or makes one; if it is not to be kept, one that leaves no trace.
func (l *Limiter) entry(key string, keep bool) (*entry, error) {
	if e, ok := l.keys.Get(key); ok {
		return e, nil
	}
	if err := limit.CheckKey(key); err != nil {
		return nil, err
	}
	lim, err := l.limitFor(key)
	if err != nil {
		return nil, err
	}
	e := &entry{limiter: l, key: key}
	e.terms.Store(l.newTerms(lim, nil))
	if !keep {
		return e, nil
	}
	if there := l.keys.Add(e); there != e {
		return there, nil // another caller was first
	}
	e.renewTerms() // a SetLimit in between did not find the entry yet
	return e, nil
}

// Key is the key, for the table.
func (e *entry) Key() string { return e.key }

// Used tells the table whether tokens were taken since it last looked, or Redis is being asked.
func (e *entry) Used() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.account.Load()
	if a == nil {
		return false
	}
	tokens := a.balance.Tokens()
	used := tokens != a.touched || a.flights > 0
	a.touched = tokens
	return used
}

// Evicted is called by the table for an entry that it forgets. The bucket has counted its tokens as lent, so forgetting
// them never hands out more; they are given back all the same.
func (e *entry) Evicted() {
	e.gone.Store(true)
	e.limiter.lanes.forgot()
	if a := e.account.Load(); a != nil && a.balance.Held(e.limiter.clock.Now()) > 0 {
		e.giveBack()
	}
}

// prefetch asks for the next lease before this one is used up.
func (e *entry) prefetch() {
	if e.limiter.clock.Now() >= e.refusal.Load().Until() {
		e.limiter.flights.Start(e.key, e.refill, nil)
	}
}

// giveBack starts a flight that returns the tokens of the entry.
func (e *entry) giveBack() { e.startFor(func(a *account) { a.idle = true }) }

// startReport starts a flight that tells the bucket what was given up.
func (e *entry) startReport() { e.startFor(func(a *account) { a.report = true }) }

// startFor starts a flight without callers that finds in the account what it is for.
func (e *entry) startFor(note func(*account)) {
	e.mu.Lock()
	a := e.account.Load()
	if a != nil {
		note(a)
	}
	e.mu.Unlock()
	if a != nil {
		e.limiter.flights.Start(e.key, e.refill, nil)
	}
}

// allow decides a request of n tokens, for a handle or nil. What comes first is for the most frequent ones: a single token
// that is there, and one for which the bucket was found dry. Everything else is for answer.
func (e *entry) allow(ctx context.Context, n int, k *Key) (limit.Result, error) {
	a := e.account.Load()
	if n != 1 || a == nil {
		return e.answer(ctx, n, k)
	}
	clock := &e.limiter.clock
	about := clock.About()
	if r := e.refusal.Load(); r != nil {
		if res, ok := r.Again(about, nearEnd, 1); ok && a.balance.Empty() && clock.asked.Load() && !e.limiter.opts.Shadow {
			return res, nil
		}
		return e.answer(ctx, 1, k)
	}
	if s := a.balance.Stripes(); s != nil {
		return e.allowStriped(ctx, a, s.Mine(), k)
	}
	left, deadline, sure := a.balance.TakeOne(about)
	if sure && left != a.mark.Load() {
		return e.allowed(a, left), nil
	}
	return e.confirm(ctx, a, left, deadline, k)
}

// allowStriped is allow for one token of a balance from which many CPUs take.
func (e *entry) allowStriped(ctx context.Context, a *account, s *balance.Stripe, k *Key) (limit.Result, error) {
	left, deadline, sure := a.balance.TakeFrom(s, e.limiter.clock.About())
	if sure {
		return e.allowed(a, left), nil
	}
	// The clock comes before a new share, or one share after another of a lease that has ended could be spent.
	if left < 0 && e.limiter.clock.Refresh() < deadline {
		e.mu.Lock()
		a.balance.Spread(s)
		low := a.balance.Common() <= a.mark.Load() // many go at once: the mark is not met one by one
		e.mu.Unlock()
		if low {
			e.prefetch()
		}
	}
	return e.confirm(ctx, a, left, deadline, k)
}

// confirm is the rest of allow for one token that was taken, perhaps.
func (e *entry) confirm(ctx context.Context, a *account, left, deadline int64, k *Key) (limit.Result, error) {
	left, ok := a.balance.Confirm(1, left, deadline, e.limiter.clock.Refresh)
	if !ok {
		e.limiter.lost(left)
		return e.answer(ctx, 1, k)
	}
	if a.balance.Contended() {
		e.mu.Lock()
		a.balance.Split()
		e.mu.Unlock()
	}
	return e.spent(a, left, 1), nil
}

// answer is what decide says, or, of a limiter that only counts, that it is allowed.
func (e *entry) answer(ctx context.Context, n int, k *Key) (limit.Result, error) {
	res, err := e.decide(ctx, n, k)
	if err == nil && !res.Allowed && e.limiter.opts.Shadow {
		e.limiter.counts.shadowed.Add(1)
		res.Allowed, res.RetryAfter = true, 0
	}
	return res, err
}

// present is the entry itself or, when it is gone, the one that the table has now, and the handle from then on.
func (e *entry) present(k *Key, keep bool) (*entry, error) {
	if !e.gone.Load() {
		return e, nil
	}
	there, err := e.limiter.entry(e.key, keep)
	if err == nil && k != nil && keep {
		k.entry.Store(there)
	}
	return there, err
}

// decide is the one way through: take, else refill and take again, else say when.
func (e *entry) decide(ctx context.Context, n int, k *Key) (limit.Result, error) {
	l := e.limiter
	e, err := e.present(k, n > 0)
	if err != nil {
		return limit.Result{}, err
	}
	terms := e.terms.Load()
	if err := terms.Limit.CheckTokens(n); err != nil {
		return limit.Result{}, err
	}
	if terms.Limit.Rate == 0 {
		return e.constant(ctx, n)
	}
	if n == 0 {
		return e.peek(ctx)
	}
	a, held := e.account.Load(), int64(0)
	if a != nil {
		left, ok := a.balance.Take(int64(n), l.clock.Refresh)
		if !ok && a.balance.Stripes() != nil {
			e.mu.Lock()
			a.balance.Gather()
			e.mu.Unlock()
			left, ok = a.balance.Take(int64(n), l.clock.Refresh)
		}
		if ok {
			return e.spent(a, left, n), nil
		}
		l.lost(left)
		if n > 1 {
			held = a.balance.Held(l.clock.Now())
		}
	}
	if a != nil && a.waiting.Load() > 0 {
		return e.behind(a, n), nil
	}
	if r := e.refusal.Load(); r != nil {
		// What is held goes back when Redis is asked, so only the rest has to be there.
		if res, ok := r.Denies(l.denialTime(r), int64(n)-held); ok {
			return res, nil
		}
	}
	l.keys.Touch(e)
	w := e.lane(a)
	if cause := w.paused(a); cause != nil {
		e.probeIfDue(w)
		return e.withoutRedis(n, cause)
	}
	res, err := l.flights.Do(ctx, e.key, n, e.refill)
	if errors.Is(err, limit.ErrUnavailable) {
		e.waitedBehind(w, 1, err)
		return e.withoutRedis(n, err)
	}
	return res, err
}

// lane is that of the key, which may have an account.
func (e *entry) lane(a *account) *lane {
	if a != nil {
		return a.lane
	}
	return e.limiter.lane(e.key)
}

// waitedBehind counts callers whose call was not made, because the one before it got no answer.
func (e *entry) waitedBehind(w *lane, callers int, err error) {
	if errors.Is(err, flight.ErrBehind) {
		w.failed(callers, err)
	}
}

// probeIfDue starts a probe, if it is time for one.
func (e *entry) probeIfDue(w *lane) {
	if !w.open.Load() || !w.probe() {
		return
	}
	if !e.limiter.flights.Start(e.key, e.probe, func() { w.probed(false) }) {
		w.probed(false) // a flight that started before the breaker opened is still to go
	}
}

// spent is the result of a request of n tokens that was paid from memory and left so many there.
func (e *entry) spent(a *account, left int64, n int) limit.Result {
	res := e.allowed(a, left) // first: the next lease changes the level
	if mark := a.mark.Load(); left <= mark && left+int64(n) > mark {
		e.prefetch()
	}
	return res
}

// allowed is the result of a request that was paid from memory and left so many tokens there.
func (e *entry) allowed(a *account, left int64) limit.Result {
	return limit.Result{
		Verdict:   limit.Verdict{Allowed: true, Origin: limit.Local},
		Remaining: a.remaining(left, &e.terms.Load().Limit),
	}
}
