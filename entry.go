package hybrid

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

// entry is what this process knows about one key: its tokens, and the lease that they belong to.
type entry struct {
	limiter *Limiter
	key     string

	balance local.Balance                 // the tokens; taken by anyone, else touched only under mu
	mark    atomic.Int64                  // when so many are left, the next lease is asked for
	level   atomic.Int64                  // of the bucket, at the last reply
	refusal atomic.Pointer[lease.Refusal] // nil unless the last reply said that the bucket is dry
	terms   atomic.Pointer[lease.Terms]   // of the limit in force
	rated   atomic.Pointer[lease.Terms]   // of the last limit that had a rate: leases under it may still be out
	checked atomic.Int64                  // when LimitFor was last asked about a limit without a rate
	idle    atomic.Bool                   // the next flight without callers gives everything back
	report  atomic.Bool                   // the next flight without callers says what is held, see owed
	gone    atomic.Bool                   // the table has forgotten it: look the key up again

	// mu is held for moments, never during a call. A flight takes it before and after its call; there is one flight
	// for the key at a time, but entries are also swept, forgotten and closed.
	mu       sync.Mutex
	lease    lease.State
	demand   lease.Demand
	denied   int64 // tokens refused since demand was last told
	paid     int64 // tokens paid by Redis to callers since then
	seen     int64 // tokens used of this lease when demand was last told
	deadline int64 // of the balance; 0 before the first answer
	owed     int64 // tokens given up since the last answer, which the bucket may not know of
	lives    int   // leases that have ended: an answer to a request of an earlier life is void
}

// entry finds the entry of a key, or makes one; if it is not to be kept, one that leaves no trace.
func (l *Limiter) entry(key string, keep bool) (*entry, error) {
	find := l.keys.Get
	if !keep {
		find = l.keys.Peek
	}
	if e, ok := find(key); ok {
		return e, nil
	}
	lim, err := l.limitFor(key)
	if err != nil {
		return nil, err
	}
	e := &entry{limiter: l, key: key}
	e.setTerms(lim)
	if !keep {
		return e, nil
	}
	if old, ok, _ := l.keys.PeekOrAdd(key, e); ok {
		return old, nil // another caller was first
	}
	e.renewTerms() // a SetLimit in between did not find the entry yet
	return e, nil
}

// allowed is the result of a request that was paid from memory and left so many tokens there.
func (e *entry) allowed(left int64) limit.Result {
	return limit.Result{
		Verdict:   limit.Verdict{Allowed: true, Origin: limit.Local},
		Remaining: int(max(0, min(left+e.level.Load(), int64(e.terms.Load().Limit.Burst)))),
	}
}

// prefetch asks for the next lease before this one is used up.
func (e *entry) prefetch() {
	if e.limiter.now() >= e.refusal.Load().Until() {
		e.limiter.flights.Start(e.key, e.refill)
	}
}

// refill is the flight of the key: it pays the callers of one batch and brings the next lease. costs is empty when it
// was started ahead of need, or to give back what lies idle.
func (e *entry) refill(ctx context.Context, _ string, costs []lease.Run) ([]lease.Paid, error) {
	l := e.limiter
	if !l.begin() {
		return nil, limit.ErrClosed
	}
	defer l.end()
	e.renewTerms()
	limited := e.terms.Load().Limit.Rate > 0
	if !limited && len(costs) > 0 {
		return e.payConstant(costs), nil
	}
	// The second look. Callers who came while the last flight was out wait in this batch, and that flight may have
	// brought enough for them, or the news that there is no more:
	//   A misses, flies; B and C miss, wait; A's flight brings one token and finds the bucket dry; B's flight starts.
	if len(costs) > 0 {
		if paid, ok := e.decideLocally(costs); ok {
			return paid, nil
		}
	}
	why := e.purpose(costs, limited)
	if why == nothing {
		return nil, nil
	}
	for attempt := 0; ; attempt++ {
		a := e.ask(costs, why)
		l.counts.calls.Add(1)
		g := l.source.do(ctx, a.req)
		if g.Err != nil {
			// What was held stays good until it ends, and what was given up comes back with the totals of the
			// next request.
			l.counts.failed.Add(1)
			return nil, g.Err
		}
		void := g.Status == lease.Stale || g.Status == lease.Reset
		if !void {
			return e.accept(&a, &g), nil
		}
		e.forfeit()
		if len(costs) == 0 {
			return nil, nil
		}
		if attempt > 0 {
			l.counts.failed.Add(1)
			return nil, limit.ErrUnavailable
		}
	}
}

// purpose is what a flight is for.
type purpose int

const (
	nothing  purpose = iota // overtaken by another flight
	refill                  // callers wait, or the next lease is needed soon
	giveBack                // the lease lies idle, or the key is not wanted any more
	report                  // tokens were given up, and it is not known whether the bucket has heard of it
)

// purpose is what a flight with these callers is for.
func (e *entry) purpose(costs []lease.Run, limited bool) purpose {
	idle, told := e.idle.Swap(false), e.report.Swap(false)
	switch {
	case len(costs) > 0:
		return refill
	case idle || !limited:
		return giveBack
	case told && e.owes(e.limiter.now()):
		return report
	case told || e.balance.Tokens() > e.mark.Load():
		return nothing
	}
	return refill
}

// owes reports whether tokens were given up without an answer, and the lease they belong to has not ended.
func (e *entry) owes(now int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.owed > 0 && e.lease.Open() && now < e.deadline+int64(afterlife)
}

// asked is a request under way.
type asked struct {
	req   lease.Request
	terms *lease.Terms
	sent  int64
	lives int // of the entry
}

// afterlife is for how long after the deadline of a lease its tokens can still be given back under its name: less than
// the 100ms by which the bucket keeps it longer.
const afterlife = 90 * time.Millisecond

// ask makes the next request and freezes what it says about the lease.
func (e *entry) ask(costs []lease.Run, why purpose) asked {
	l := e.limiter
	e.mu.Lock()
	defer e.mu.Unlock()
	terms, now := e.rated.Load(), l.now()
	e.countLocked(terms, now)
	switch {
	case !e.lease.Open() || e.deadline == 0: // none, or one whose first answer was lost: the totals bring it back
	case now >= e.deadline+int64(afterlife):
		// The lease has ended. Its name ends with it: the bucket forgets it, and would take its totals for a loss.
		e.endLocked()
	case now >= e.deadline:
		// The bucket will have it for a little longer, and until then it keeps the place of what was not spent.
		e.expireLocked()
	}
	if e.lease.Used(0) > maxTotal {
		e.endLocked()
	}
	if len(costs) > 0 || why == giveBack {
		// What is left is too little for somebody in the batch, or not wanted.
		e.giveUpLocked()
	}
	held := e.balance.Tokens()
	req := lease.Request{Key: e.key, Limit: terms.Limit, Slack: terms.Slack, Costs: costs}
	want := int64(0)
	if why == refill && !l.opts.Exact && !e.gone.Load() && !l.ended.Load() {
		want = terms.Want(&e.demand, l.roundTrip(), held, now)
		if terms.Fixed > 0 {
			want = max(0, want-lease.Total(costs))
		}
	}
	want = max(want, held)
	if want > 0 || e.lease.Open() {
		if !e.lease.Open() {
			e.lease.Begin(l.newID())
		}
		e.lease.Ask(&req.Lease, held, want)
		req.Lease.Demand = e.demand.InTau()
		req.Lease.MaxLeased, req.Lease.Dry, req.Lease.TTL = terms.MaxLeased, terms.Dry, terms.TTL
	}
	return asked{req, terms, now, e.lives}
}

// maxTotal is how many tokens one lease may use in all: the script counts in doubles, which are exact up to twice that.
const maxTotal = 1 << 52

// giveUpLocked takes what is left out of the balance. That comes before it is sent back: on its way it must not be spent.
func (e *entry) giveUpLocked() {
	n := e.balance.Drain()
	e.lease.GiveUp(n)
	e.owed += n
	e.limiter.counts.returned.Add(n)
}

// accept takes the answer to the newest request and pays the batch.
func (e *entry) accept(a *asked, g *lease.Grant) []lease.Paid {
	now := e.limiter.now()
	e.limiter.addRoundTrip(time.Duration(now - a.sent))
	paid, watch := e.settle(a, g, now)
	if watch {
		e.limiter.janitor.watch(e)
	}
	return paid
}

// settle is accept, under mu; watch says whether the janitor should look after the entry.
func (e *entry) settle(a *asked, g *lease.Grant, now int64) (paid []lease.Paid, watch bool) {
	l, costs := e.limiter, a.req.Costs
	e.mu.Lock()
	defer e.mu.Unlock()
	if a.lives != e.lives || l.ended.Load() {
		// The key was reset, or the limiter closed, while the request was out. The callers are paid, but what the
		// answer says of the lease is void: its totals would be taken for tokens that have just come in.
		return g.Pay(a.req.Limit, costs, 0), false
	}
	e.owed = 0
	var lent int64
	if a.req.Lease.ID != "" {
		lent = e.lease.Accept(g)
		// Only an answer can renew the lease, and only if the bucket did. From the moment of sending: the bucket
		// counts from a later one.
		if g.Expiry != 0 {
			e.deadline = max(e.deadline, a.sent+int64(lease.Life(a.req.Lease.TTL)))
			e.balance.Install(lent, e.deadline)
		}
		if lent > 0 {
			e.demand.Leased(now, lent)
			e.mark.Store(a.terms.Mark(&e.demand, l.roundTrip(), a.req.Lease.Held+lent))
			l.counts.leased.Add(lent)
		}
	}
	if e.terms.Load() != a.terms {
		e.giveUpLocked() // lent under a limit that is not in force any more
	}
	paid = g.Pay(a.req.Limit, costs, lent)
	e.level.Store(g.Level)
	hold := time.Duration(e.remember(a, paid, g, now) - now)
	for i := range paid {
		p, n := &paid[i], int64(paid[i].Cost)
		e.paid += n * int64(p.Admitted)
		e.denied += n * int64(costs[i].Count-p.Admitted)
		if p.Denied.RetryAfter > 0 {
			p.Denied.RetryAfter = max(p.Denied.RetryAfter, hold) // before that this process will not ask
		}
	}
	return paid, lent > 0
}

// remember keeps what a dry bucket said, so that it is not asked again at once, and returns until when. The caller holds
// mu.
func (e *entry) remember(a *asked, paid []lease.Paid, g *lease.Grant, now int64) (until int64) {
	cost := int64(0)
	for i := range paid {
		if p := &paid[i]; p.Denied.RetryAfter > 0 && (cost == 0 || int64(p.Cost) < cost) {
			cost = int64(p.Cost)
		}
	}
	if cost == 0 && g.Scarce {
		// Callers were paid, the lease was cut short. What the bucket kept is for other processes; if there are none,
		// for whoever asks for no more than that.
		cost = 1
		if g.Holders <= 1 {
			cost = max(1, g.Level+1)
		}
	}
	var r *lease.Refusal
	switch {
	case cost == 0:
	case e.limiter.opts.Exact:
		r = lease.NewCertainRefusal(*a.terms, g, cost, a.sent)
	default:
		r = lease.NewRefusal(*a.terms, g, cost, a.sent, rand.Float64())
	}
	if r != nil {
		r.Answered(time.Duration(now - a.sent))
		e.demand.Refused(r.Until())
	}
	e.refusal.Store(r)
	if e.terms.Load() != a.terms {
		e.refusal.Store(nil) // the limit has changed meanwhile, see renewTerms
	}
	return r.Until()
}

// payConstant is the results of a batch whose limit has become one that is decided without counting.
func (e *entry) payConstant(costs []lease.Run) []lease.Paid {
	paid := make([]lease.Paid, len(costs))
	for i, c := range costs {
		r, _ := e.terms.Load().Limit.Constant(c.Cost, limit.Local)
		paid[i] = lease.Paid{Cost: c.Cost, Allowed: r, Denied: r}
		if r.Allowed {
			paid[i].Admitted = c.Count
		}
	}
	return paid
}

// decideLocally decides a batch from memory, if all of it can be: some are paid from the balance, and for the others the
// bucket was found dry a moment ago.
func (e *entry) decideLocally(costs []lease.Run) ([]lease.Paid, bool) {
	l, now := e.limiter, e.limiter.now()
	refusal, left := e.refusal.Load(), e.balance.Held(now)
	total := int64(0)
	paid := make([]lease.Paid, len(costs))
	for i, c := range costs {
		cost, p := int64(c.Cost), &paid[i]
		n := min(int64(c.Count), left/cost)
		p.Cost, p.Admitted, p.Allowed = c.Cost, int(n), e.allowed(left-cost)
		left, total = left-n*cost, total+n*cost
		if p.Admitted < c.Count {
			var ok bool
			if p.Denied, ok = refusal.Denies(now, cost-left); !ok {
				return nil, false
			}
		}
	}
	if total > 0 {
		if left, ok := e.balance.Take(total, l.now); !ok {
			l.lost(left)
			return nil, false
		}
	}
	return paid, true
}

// countLocked tells the estimate of demand what was used since the last time.
func (e *entry) countLocked(terms *lease.Terms, now int64) {
	used := e.lease.Used(e.balance.Tokens())
	e.demand.Add(now, terms.Tau, used-e.seen+e.paid, e.denied)
	e.seen, e.paid, e.denied = used, 0, 0
}

// endLocked throws away what is left of a lease that is over, and its name.
func (e *entry) endLocked() {
	e.limiter.counts.expired.Add(e.balance.Drain())
	e.lease.End()
	e.seen, e.deadline, e.owed = 0, 0, 0
	e.lives++
}

// expireLocked throws away the tokens of a lease that is over. The lease stays: an answer that is under way may renew
// it, and then brings them back.
func (e *entry) expireLocked() (tokens int64) {
	tokens = e.balance.Drain()
	e.lease.GiveUp(tokens)
	e.owed += tokens
	e.limiter.counts.expired.Add(tokens)
	return tokens
}

// forfeit ends the lease, because the bucket said that it is void.
func (e *entry) forfeit() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endLocked()
	e.refusal.Store(nil)
}

// peek tells what is left without taking anything: from memory if this process holds tokens or knows that there are
// none, else from Redis.
func (e *entry) peek(ctx context.Context) (limit.Result, error) {
	l := e.limiter
	now := l.now()
	if held := e.balance.Held(now); held > 0 {
		return e.allowed(held), nil
	}
	if r, ok := e.refusal.Load().Denies(now, int64(e.terms.Load().Limit.Burst)); ok {
		return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Local}, Remaining: r.Remaining}, nil
	}
	return l.peeks.Do(ctx, e.key, 0, e.look)
}

// look reads the bucket for the peeks of one batch.
func (e *entry) look(ctx context.Context, _ string, costs []lease.Run) ([]lease.Paid, error) {
	l := e.limiter
	if !l.begin() {
		return nil, limit.ErrClosed
	}
	defer l.end()
	terms := e.rated.Load()
	l.counts.calls.Add(1)
	g := l.source.do(ctx, lease.Request{Key: e.key, Limit: terms.Limit, Slack: terms.Slack, Costs: costs})
	if g.Err != nil {
		l.counts.failed.Add(1)
		return nil, g.Err
	}
	return g.Pay(terms.Limit, costs, 0), nil
}
