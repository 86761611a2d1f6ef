package hybrid

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

// entry is what this process knows about one key.
type entry struct {
	limiter *Limiter
	key     string
	balance local.Balance           // drained and installed only by the flight of the key, and by Close after the last
	level   atomic.Int64            // of the bucket, at the last reply
	refusal atomic.Pointer[refusal] // nil if the last reply refused nothing
	evicted atomic.Bool             // the table has forgotten it: look the key up again
}

// maxHoldOff is how long a refusal may answer further requests: tokens that others give back are not missed longer.
const maxHoldOff = time.Second

// refusal is what Redis last refused: until then, requests that cost as much are refused here.
type refusal struct {
	cost  int
	level bucket.Level // of the bucket at the time at, when the request was sent
	at    int64
	until int64
}

// allowed is the result of a request that was paid from memory and left so many tokens there.
func (e *entry) allowed(left int64) limit.Result {
	return limit.Result{
		Verdict:   limit.Verdict{Allowed: true, Origin: limit.Local},
		Remaining: int(max(0, min(left+e.level.Load(), int64(e.limiter.limit.Burst)))),
	}
}

// denied answers a request of n tokens from the last refusal, if that is still certain: even with nobody else taking,
// the refill since would not pay it.
func (e *entry) denied(n int, now int64) (limit.Result, bool) {
	r, lim := e.refusal.Load(), e.limiter.limit
	if r == nil || n < r.cost || now >= r.until {
		return limit.Result{}, false
	}
	rate := bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
	level := r.level.After(rate, int64(lim.Burst), (now-r.at)/1000)
	return limit.Result{
		Verdict:    limit.Verdict{Origin: limit.Local},
		Remaining:  int(max(0, level.N)),
		RetryAfter: max(limit.Micros(level.Wait(rate, int64(n))), time.Microsecond),
		ResetAfter: limit.Micros(level.Wait(rate, int64(lim.Burst))),
	}, true
}

// refill is the flight of the key: it pays the callers of one batch and brings a new lease. There is one at a time.
func (e *entry) refill(ctx context.Context, _ string, costs []lease.Run) ([]lease.Paid, error) {
	l := e.limiter
	if !l.begin() {
		return nil, limit.ErrClosed
	}
	defer l.end()

	total := 0
	for _, c := range costs {
		total += c.Cost * c.Count
	}
	// The second look. Callers who came while the last flight was out wait in this batch, and that flight may have
	// brought enough for all of them:
	//   A misses, flies; B misses, waits; A's flight installs 99 tokens; B's flight starts.
	if left, ok := e.balance.Take(int64(total), l.now); ok {
		return e.payLocally(costs, left), nil
	}

	// What is left is too little for somebody in the batch. It is given back in the same call, before the costs, so
	// that nobody is refused for tokens that lie here; and it leaves the balance before it is sent, so that nobody
	// spends it twice.
	left, live := e.balance.Drain(l.now())
	req := lease.Request{Key: e.key, Limit: l.limit, Costs: costs}
	if live {
		req.Credit = int(left)
	} else {
		l.counts.expired.Add(left)
	}
	if want := l.size - total; want > 0 {
		req.Costs = append(costs[:len(costs):len(costs)], lease.Run{Cost: 1, Count: want})
	}

	sent := l.now()
	g := &l.acquire(ctx, []lease.Request{req})[0]
	if g.Err != nil {
		return nil, g.Err
	}
	e.level.Store(g.Level)
	if n := len(req.Costs) - len(costs); n > 0 {
		leased := g.Admitted[len(costs)]
		l.counts.leased.Add(int64(leased))
		e.balance.Install(int64(leased), sent+int64(l.ttl))
		if e.evicted.Load() {
			// Forgotten while the call was out. Whichever comes second, this or the eviction, finds the tokens.
			l.void(e)
		}
	}
	paid := g.Pay(l.limit, req.Costs)[:len(costs)]
	e.remember(paid, g, sent)
	return paid, nil
}

// payLocally is the results of a batch whose costs were all taken from the balance, which has so many tokens left.
func (e *entry) payLocally(costs []lease.Run, left int64) []lease.Paid {
	paid := make([]lease.Paid, len(costs))
	for i, c := range slices.Backward(costs) {
		left += int64(c.Cost) * int64(c.Count-1) // after the first of the run
		paid[i] = lease.Paid{Cost: c.Cost, Admitted: c.Count, Allowed: e.allowed(left)}
		left += int64(c.Cost)
	}
	return paid
}

// remember keeps the cheapest refusal of a reply, or forgets the last one.
func (e *entry) remember(paid []lease.Paid, g *lease.Grant, sent int64) {
	var refused *lease.Paid
	for i := range paid {
		p := &paid[i]
		if p.Denied.RetryAfter > 0 && (refused == nil || p.Cost < refused.Cost) {
			refused = p
		}
	}
	if refused == nil {
		e.refusal.Store(nil)
		return
	}
	// From the time it was sent: the script ran later, so the tokens come no earlier than that.
	hold := min(refused.Denied.RetryAfter, maxHoldOff)
	e.refusal.Store(&refusal{
		cost:  refused.Cost,
		level: bucket.Level{N: g.Level, F: g.Frac},
		at:    sent,
		until: sent + int64(hold),
	})
}

// entry finds or makes the entry of a key.
func (l *Limiter) entry(key string) *entry {
	if e, ok := l.keys.Get(key); ok {
		return e
	}
	e := &entry{limiter: l, key: key}
	if old, ok, _ := l.keys.PeekOrAdd(key, e); ok {
		return old // another caller was first: two entries would be two leases
	}
	return e
}

// evicted is called by the table for an entry that it forgets. Its tokens are void: the bucket in Redis has counted
// them as used, so forgetting never hands out more, and they come back by refill.
func (l *Limiter) evicted(_ string, e *entry) {
	e.evicted.Store(true)
	l.void(e)
}

// void throws the tokens of an entry away.
func (l *Limiter) void(e *entry) {
	tokens, _ := e.balance.Drain(l.now())
	l.counts.expired.Add(tokens)
}

// peek tells what is left for a key without taking anything: from memory if this process knows it, else from Redis. It
// leaves no trace.
func (l *Limiter) peek(ctx context.Context, key string) (limit.Result, error) {
	if e, ok := l.keys.Peek(key); ok {
		now := l.now()
		if held := e.balance.Held(now); held > 0 {
			return e.allowed(held), nil
		}
		if r, ok := e.denied(l.limit.Burst, now); ok {
			return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Local}, Remaining: r.Remaining}, nil
		}
	}
	return l.peeks.Do(ctx, key, 0, l.look)
}

// look reads the bucket for the peeks of one batch.
func (l *Limiter) look(ctx context.Context, key string, costs []lease.Run) ([]lease.Paid, error) {
	if !l.begin() {
		return nil, limit.ErrClosed
	}
	defer l.end()
	g := l.acquire(ctx, []lease.Request{{Key: key, Limit: l.limit, Costs: costs}})[0]
	if g.Err != nil {
		return nil, g.Err
	}
	return g.Pay(l.limit, costs), nil
}

// acquire asks the source and counts.
func (l *Limiter) acquire(ctx context.Context, reqs []lease.Request) []lease.Grant {
	grants := make([]lease.Grant, len(reqs))
	l.source.Acquire(ctx, reqs, grants)
	l.counts.calls.Add(int64(len(reqs)))
	for i := range grants {
		credit := max(0, int64(reqs[i].Credit))
		if grants[i].Err != nil {
			l.counts.failed.Add(1)
			l.counts.expired.Add(credit) // nobody knows whether they arrived
		} else {
			l.counts.returned.Add(credit)
		}
	}
	return grants
}

// maxPipeline is how many buckets one pipeline gives tokens back to.
const maxPipeline = 100

// giveBack returns the tokens of all keys. No flight may be out.
func (l *Limiter) giveBack(ctx context.Context) error {
	var reqs []lease.Request
	for _, e := range l.keys.Values() {
		e.refusal.Store(nil) // from now on the answer is ErrClosed
		tokens, live := e.balance.Drain(l.now())
		switch {
		case tokens == 0:
		case !live:
			l.counts.expired.Add(tokens)
		default:
			reqs = append(reqs, lease.Request{Key: e.key, Limit: l.limit, Credit: int(tokens)})
		}
	}
	var failed error
	lost := 0
	for len(reqs) > 0 {
		n := min(len(reqs), maxPipeline)
		for _, g := range l.acquire(ctx, reqs[:n]) {
			if g.Err != nil {
				failed, lost = g.Err, lost+1
			}
		}
		reqs = reqs[n:]
	}
	if failed != nil {
		return fmt.Errorf("hybrid: tokens of %d keys were not given back and will come back by refill: %w", lost, failed)
	}
	return nil
}
