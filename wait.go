package hybrid

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// Wait is shorthand for WaitN(ctx, key, 1).
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN waits until a request that costs n tokens is admitted. In one process those who wait for a key are served in the
// order in which they came, and before any Allow that comes while they wait: a large cost is not starved by small ones.
// Processes are not ordered among each other. n = 0 does nothing.
//
// It returns nil when the tokens are taken. Errors: those of AllowN; ErrWouldExceedDeadline at once if, by what is known, the
// tokens come after the deadline of ctx, or never; the context's own error when it ends before. Then nothing is taken,
// unless Redis was just deciding: what it took is given back with the next request. Close wakes all with ErrClosed.
func (l *Limiter) WaitN(ctx context.Context, key string, n int) error {
	e, err := l.entry(key, n > 0)
	if err != nil {
		return err
	}
	return e.wait(ctx, n, nil)
}

// Wait is shorthand for WaitN(ctx, 1).
func (k *Key) Wait(ctx context.Context) error { return k.WaitN(ctx, 1) }

// WaitN is Limiter.WaitN for this key.
func (k *Key) WaitN(ctx context.Context, n int) error { return k.entry.Load().wait(ctx, n, k) }

// queue is who waits for tokens of a key, in order. It is guarded by the entry's mu.
type queue struct {
	waiters []*waiter
	tokens  int64       // that they wait for together
	timer   *time.Timer // of the next attempt; nil while one is under way, or nobody waits
	serving bool        // one is under way
	next    int64       // when the first is served, as far as is known
}

// waiter is one of them.
type waiter struct {
	n        int
	deadline time.Time  // zero: none
	done     chan error // of one: nil when paid
	gone     bool       // its caller has left, or been told
}

// wait is WaitN for an entry, by a handle or nil.
func (e *entry) wait(ctx context.Context, n int, k *Key) error {
	if err := ctx.Err(); err != nil || n == 0 {
		return err
	}
	e, err := e.present(k, true)
	if err != nil {
		return err
	}
	lim := e.terms.Load().Limit
	if lim.Rate == 0 || e.limiter.opts.Shadow {
		res, err := e.allow(ctx, n, k)
		if err == nil && !res.Allowed {
			err = errNever
		}
		return err
	}
	if err := lim.CheckTokens(n); err != nil {
		return err
	}
	if _, ok := e.takeReversibly(&Reservation{n: n}); ok {
		return nil
	}
	// Into the queue before Redis is asked: who asked first and queued when it was refused would stand behind those who
	// came meanwhile.
	w, err := e.enqueue(ctx, n)
	if err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return e.leave(w, ctx.Err())
	}
}

// errNever is what a request is told that no waiting will admit.
var errNever = fmt.Errorf("%w: the tokens never come", limit.ErrWouldExceedDeadline)

// enqueue puts a caller at the end of the queue, unless its tokens would come too late.
func (e *entry) enqueue(ctx context.Context, n int) (*waiter, error) {
	l := e.limiter
	a := e.open() // as a flight does, so that the account stays
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &a.queue
	w := &waiter{n: n, done: make(chan error, 1)}
	w.deadline, _ = ctx.Deadline()
	now := l.clock.Now()
	if len(q.waiters) == 0 {
		q.next = now
	} else if late(w, now, q.next, q.behindFirst()+int64(n), e.terms.Load().Limit) {
		e.closeLocked(a)
		return nil, limit.ErrWouldExceedDeadline
	}
	if l.closed.Load() {
		e.closeLocked(a)
		return nil, limit.ErrClosed
	}
	q.waiters = append(q.waiters, w)
	q.tokens += int64(n)
	a.waiting.Add(1)
	if q.timer == nil && !q.serving {
		e.scheduleLocked(a)
	}
	return w, nil
}

// behindFirst is how many tokens those wait for who stand behind the first.
func (q *queue) behindFirst() int64 {
	if len(q.waiters) == 0 {
		return 0
	}
	return q.tokens - int64(q.waiters[0].n)
}

// late reports whether a waiter is served after its deadline, when the first of the queue is served at next and so many
// tokens have to come after that.
func late(w *waiter, now, next, tokens int64, lim limit.Limit) bool {
	if w.deadline.IsZero() {
		return false
	}
	return queued(time.Duration(next-now), tokens, lim) > time.Until(w.deadline)
}

// scheduleLocked sets the timer of the next attempt: not later than in a second, because tokens may come earlier than is
// known, by a reset, a refund, another limit, or when somebody leaves.
func (e *entry) scheduleLocked(a *account) {
	wait := min(time.Duration(a.queue.next-e.limiter.clock.Now()), longestPause)
	a.queue.timer = time.AfterFunc(wait, func() { e.serve(a) })
}

// longestPause is the longest time between two attempts.
const longestPause = time.Second

// leave takes a caller whose context has ended out of the queue. If it was paid just now it is rather told that.
func (e *entry) leave(w *waiter, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case err = <-w.done:
		return err
	default:
	}
	w.gone = true
	e.dropLocked(e.account.Load(), w)
	return err
}

// tellLocked ends the wait of one caller, once.
func (e *entry) tellLocked(a *account, w *waiter, err error) {
	if w.gone {
		return
	}
	w.gone = true
	w.done <- err
	e.dropLocked(a, w)
}

// dropLocked takes a waiter out of the queue.
func (e *entry) dropLocked(a *account, w *waiter) {
	q := &a.queue
	i := slices.Index(q.waiters, w)
	if i < 0 {
		return
	}
	q.waiters = slices.Delete(q.waiters, i, i+1)
	q.tokens -= int64(w.n)
	a.waiting.Add(-1)
	e.closeLocked(a)
	if len(q.waiters) == 0 && q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

// serve asks for the tokens of those who come first in the queue, all in one call, and sets the timer for the others.
func (e *entry) serve(a *account) {
	e.mu.Lock()
	if a.queue.serving {
		// A timer that had fired when it was stopped: the last waiter left, another one came and set the next. Two
		// attempts would charge the same waiters twice.
		e.mu.Unlock()
		return
	}
	first, costs := a.queue.first()
	a.queue.timer = nil
	a.queue.serving = len(first) > 0
	e.mu.Unlock()
	if len(first) == 0 {
		return
	}
	retry, err := time.Duration(0), errEnded
	defer func() { e.served(a, retry, err) }() // whatever the source does to this goroutine
	retry, err = e.pay(a, first, costs)
}

// served looks at those who still wait after an attempt, by which the first has to wait for so long, and sets the timer
// for the next.
func (e *entry) served(a *account, retry time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q, lim := &a.queue, e.terms.Load().Limit
	now := e.limiter.clock.Now()
	never := retry == limit.Never
	if never {
		retry = 0
	}
	q.next, q.serving = now+int64(retry), false
	tokens, ahead := int64(0), 0
	for _, w := range slices.Clone(q.waiters) {
		if ahead > 0 {
			tokens += int64(w.n)
		}
		switch {
		case err != nil:
			e.tellLocked(a, w, err)
		case e.limiter.closed.Load():
			e.tellLocked(a, w, limit.ErrClosed)
		case never && lim.Rate == 0:
			e.tellLocked(a, w, errNever)
		case lim.CheckTokens(w.n) != nil:
			e.tellLocked(a, w, lim.CheckTokens(w.n)) // the limit was lowered
		case late(w, now, q.next, tokens, lim):
			e.tellLocked(a, w, limit.ErrWouldExceedDeadline)
		default:
			ahead++
		}
		if ahead == 0 {
			tokens = 0
		}
	}
	if len(q.waiters) > 0 && q.timer == nil {
		e.scheduleLocked(a)
	}
}

// first is who can be asked for together: costs that do not fall, so that nobody is paid who stands behind one that is
// refused.
func (q *queue) first() (first []*waiter, costs []lease.Run) {
	for _, w := range q.waiters {
		last := len(costs) - 1
		switch {
		case last >= 0 && costs[last].Cost == w.n:
			costs[last].Count++
		case last >= 0 && costs[last].Cost > w.n, len(costs) == lease.MaxRuns:
			return first, costs
		default:
			costs = append(costs, lease.Run{Cost: w.n, Count: 1})
		}
		first = append(first, w)
	}
	return first, costs
}

// behind is what a request is told that comes while others wait for the key: they are first.
func (e *entry) behind(a *account, n int) limit.Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	lim, q := e.terms.Load().Limit, &a.queue
	first := max(0, q.next-e.limiter.clock.Now())
	retry := max(queued(time.Duration(first), q.behindFirst()+int64(n), lim), time.Microsecond)
	return limit.Result{
		Verdict: limit.Verdict{Origin: limit.Local}, RetryAfter: retry, ResetAfter: max(retry, lim.ResetAfter(0)),
	}
}

// queued is when the rate has brought so many tokens, if it begins with them after first. It saturates below limit.Never:
// those who wait may ask for centuries together.
func queued(first time.Duration, tokens int64, lim limit.Limit) time.Duration {
	if lim.Rate == 0 {
		return first
	}
	d := float64(tokens) / float64(lim.Rate) * float64(lim.Period)
	if d >= float64(limit.Never-max(0, first)) {
		return limit.Never - 1
	}
	return first + time.Duration(d)
}

// pay decides for the first waiters, in order, until one has to wait on; it returns for how long. An error is for all.
func (e *entry) pay(a *account, first []*waiter, costs []lease.Run) (retry time.Duration, err error) {
	w, l := a.lane, e.limiter
	var paid []lease.Paid
	cause := w.paused(a)
	if cause != nil {
		e.probeIfDue(w)
	} else if paid, err = l.flights.DoAll(e.key, costs, e.refill); errors.Is(err, limit.ErrUnavailable) {
		e.waitedBehind(w, len(first), err)
		cause = err
	} else if err != nil {
		return 0, err
	}
	if cause == nil {
		return e.settle(a, first, paid), nil
	}
	for _, f := range first {
		if e.isGone(f) {
			continue
		}
		res, err := e.withoutRedis(f.n, cause)
		if err != nil {
			return 0, err
		}
		if !res.Allowed {
			return res.RetryAfter, nil
		}
		e.done(a, f, false)
	}
	return 0, nil
}

func (e *entry) isGone(w *waiter) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return w.gone
}

// settle tells those who were paid, and returns how long the first of the others has to wait.
func (e *entry) settle(a *account, first []*waiter, paid []lease.Paid) (retry time.Duration) {
	for i := 0; len(paid) > 0; paid = paid[1:] {
		for range paid[0].Admitted {
			if i == len(first) {
				return 0 // others have joined the last run
			}
			e.done(a, first[i], e.terms.Load().Limit.Rate > 0)
			i++
		}
		if i < len(first) && first[i].n == paid[0].Cost {
			return paid[0].Denied.RetryAfter
		}
	}
	return 0
}

// done tells a waiter that it is paid. What a bucket has paid for one who has left goes back with the next request.
func (e *entry) done(a *account, w *waiter, byBucket bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.gone && byBucket {
		a.creditLocked(int64(w.n), int64(e.terms.Load().Limit.Burst))
	}
	e.tellLocked(a, w, nil)
}

// wakeLocked tells all waiters that the limiter is closed.
func (e *entry) wakeLocked(a *account) {
	for _, w := range slices.Clone(a.queue.waiters) {
		e.tellLocked(a, w, limit.ErrClosed)
	}
}
