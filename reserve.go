package hybrid

import (
	"context"
	"fmt"
	"sync"

	"github.com/hybridlimit/hybrid/limit"
)

// Reservation is tokens that were taken for a cost that is known only afterwards, such as that of a call to a language
// model. Settle or Cancel it; one that is abandoned costs what was reserved. It is safe for concurrent use.
type Reservation struct {
	entry *entry
	n     int

	mu   sync.Mutex
	done bool
	free bool // nobody has paid for it: the limit did not count, or the policy let everything pass

	// Of a reservation from memory, what the lease was then: while it has not been reported since, what was taken can
	// be put back as if it had not been.
	account *account
	terms   *terms
	lives   int
	seq     int64
}

// Reserve takes n tokens now, as AllowN does, for a cost that is settled later. (If ctx ends while Redis decides, what it
// takes is spent, as with AllowN.) If they are denied the Reservation is nil,
// and the Result says when to try again. n = 0 reserves nothing and can be settled.
func (l *Limiter) Reserve(ctx context.Context, key string, n int) (*Reservation, limit.Result, error) {
	e, err := l.entry(key, true)
	if err != nil {
		return nil, limit.Result{}, err
	}
	return e.reserve(ctx, n, nil)
}

// Reserve is Limiter.Reserve for this key.
func (k *Key) Reserve(ctx context.Context, n int) (*Reservation, limit.Result, error) {
	return k.entry.Load().reserve(ctx, n, k)
}

// Refund gives n tokens of earlier requests back: with the next request to Redis, which is started now and not waited for.
// If it gets no answer they may be lost: it is not known whether they have arrived. The bucket never rises above its burst.
// Errors: those of AllowN for bad input, and ErrClosed.
func (l *Limiter) Refund(_ context.Context, key string, n int) error {
	e, err := l.entry(key, n > 0)
	if err != nil {
		return err
	}
	return e.refund(n, nil)
}

// Refund is Limiter.Refund for this key.
func (k *Key) Refund(_ context.Context, n int) error { return k.entry.Load().refund(n, k) }

// reserve is Reserve for an entry, by a handle or nil.
func (e *entry) reserve(ctx context.Context, n int, k *Key) (*Reservation, limit.Result, error) {
	e, err := e.present(k, true)
	if err != nil {
		return nil, limit.Result{}, err
	}
	r := &Reservation{entry: e, n: n}
	if res, ok := e.takeReversibly(r); ok {
		return r, res, nil
	}
	res, err := e.decide(ctx, n, k)
	switch {
	case err != nil:
		return nil, res, err
	case res.Allowed:
		r.free = e.terms.Load().Limit.Rate == 0 || res.Origin == limit.Fallback && e.limiter.opts.OnFailure == FailOpen
		return r, res, nil
	case e.limiter.opts.Shadow:
		// Nothing was taken. What it will have cost is charged all the same.
		e.limiter.counts.shadowed.Add(1)
		res.Allowed, res.RetryAfter, r.n = true, 0, 0
		return r, res, nil
	}
	return nil, res, nil
}

// takeReversibly takes the tokens of a reservation from memory, if they are there.
func (e *entry) takeReversibly(r *Reservation) (limit.Result, bool) {
	a := e.account.Load()
	if a == nil || r.n < 1 || a.waiting.Load() > 0 {
		return limit.Result{}, false
	}
	e.mu.Lock()
	a.balance.Gather()
	// Under mu no request can be made in between, so none reports the tokens as used without seq having changed.
	left, ok := a.balance.Take(int64(r.n), e.limiter.clock.Refresh)
	r.account, r.terms, r.lives, r.seq = a, e.terms.Load(), a.lives, a.lease.Seq()
	e.mu.Unlock()
	if !ok {
		r.account = nil
		e.limiter.lost(left)
		return limit.Result{}, false
	}
	return e.spent(a, left, r.n), true
}

// Settle ends the reservation with what the cost really was: the rest goes back, or, if it was more, the difference is
// charged, even into debt: then nothing is admitted until the debt is paid off. The bucket goes into debt by at most
// Burst. What can be settled in memory is; else it goes with the next request to Redis, as Refund does. Only the first
// Settle or Cancel counts. Errors: ErrInvalidTokens if actual is negative, ErrExceedsBurst if it is more than the
// reservation by more than Burst, and then the reservation stays open; ErrClosed.
func (r *Reservation) Settle(_ context.Context, actual int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry
	switch {
	case r.done:
		return nil
	case actual < 0:
		return fmt.Errorf("%w: it is negative", limit.ErrInvalidTokens)
	case e.limiter.ended.Load():
		return limit.ErrClosed
	}
	lim := e.terms.Load().Limit
	if lim.Rate == 0 || r.free {
		r.done = true
		return nil
	}
	if actual-r.n > lim.Burst {
		return fmt.Errorf("%w: settled with more than was reserved and the burst together", limit.ErrExceedsBurst)
	}
	r.done = true
	if actual != r.n && !r.settleLocally(int64(r.n-actual)) {
		e.credit(int64(r.n - actual))
	}
	return nil
}

// Cancel is Settle with 0: everything goes back.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }

// settleLocally puts back (rest > 0) or takes what the reservation was short of, if it can be done in memory.
func (r *Reservation) settleLocally(rest int64) bool {
	e := r.entry
	e.limiter.janitor.wake() // before there are tokens
	e.mu.Lock()
	defer e.mu.Unlock()
	a, now := e.account.Load(), e.limiter.clock.Now()
	switch {
	case a == nil:
		return false
	case rest < 0:
		a.balance.Gather()
		left, ok := a.balance.Take(-rest, e.limiter.clock.Now)
		e.limiter.lost(left)
		return ok
	case a != r.account || e.terms.Load() != r.terms || a.lives != r.lives || a.lease.Seq() != r.seq || now >= a.deadline || a.waiting.Load() > 0:
		return false
	}
	// No request was made since, so the bucket has not heard that they were used: they are held again.
	a.balance.Install(rest, a.deadline)
	return true
}

// refund is Refund for an entry, by a handle or nil.
func (e *entry) refund(n int, k *Key) error {
	if n < 0 {
		return fmt.Errorf("%w: it is negative", limit.ErrInvalidTokens)
	}
	if n == 0 {
		return nil
	}
	e, err := e.present(k, true)
	switch {
	case err != nil:
		return err
	case e.limiter.closed.Load():
		return limit.ErrClosed
	case e.terms.Load().Limit.Rate == 0:
		return nil
	}
	e.credit(int64(n))
	return nil
}

// credit gives tokens back to the bucket, or charges them, with a request that is started now.
func (e *entry) credit(n int64) {
	a := e.open()
	e.mu.Lock()
	if a.share != nil { // else Redis hears of it twice: what the share has spent is charged to it
		n = a.share.giveBack(e.limiter.clock.Now(), n)
	}
	a.creditLocked(n, int64(e.terms.Load().Limit.Burst))
	if n > 0 {
		e.refusal.Store(nil)
	}
	e.closeLocked(a)
	e.mu.Unlock()
	e.startReport()
}
