package hybrid

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// open returns the account of the entry for one more flight; close must follow.
func (e *entry) open() *account {
	e.mu.Lock()
	a := e.account.Load()
	fresh := a == nil
	if fresh {
		a = &account{lane: e.limiter.lane(e.key), watched: watch{tokens: -1}}
		e.account.Store(a)
	}
	a.flights++
	e.mu.Unlock()
	if fresh {
		e.limiter.janitor.watch(e) // before there are tokens in it
	}
	return a
}

// close ends a flight.
func (e *entry) close(a *account) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeLocked(a)
}

func (e *entry) closeLocked(a *account) {
	a.flights--
	a.used = e.limiter.clock.Now()
}

// refill is the flight of the key: it pays the callers of one batch and brings the next lease. costs is empty when it
// was started ahead of need, or to give back what lies idle.
func (e *entry) refill(ctx context.Context, _ string, costs []lease.Run) ([]lease.Paid, error) {
	return e.fly(ctx, costs, false)
}

// probe is a flight that sees whether Redis answers again.
func (e *entry) probe(ctx context.Context, _ string, costs []lease.Run) (paid []lease.Paid, err error) {
	good := false
	w := e.lane(e.account.Load())
	defer func() { w.probed(good) }() // whatever the source does to this goroutine
	paid, err = e.fly(ctx, costs, true)
	good = err == nil || errors.Is(err, remote.ErrRefused)
	return paid, err
}

func (e *entry) fly(ctx context.Context, costs []lease.Run, probing bool) ([]lease.Paid, error) {
	l := e.limiter
	if !l.begin() {
		return nil, limit.ErrClosed
	}
	defer l.end()
	a := e.open()
	defer e.close(a)
	e.renewTerms()
	limited := e.terms.Load().Limit.Rate > 0
	if !limited && len(costs) > 0 {
		return e.payConstant(costs), nil
	}
	// The second look. Callers who came while the last flight was out wait in this batch, and that flight may have
	// brought enough for them, or the news that there is no more:
	//   A misses, flies; B and C miss, wait; A's flight brings one token and finds the bucket dry; B's flight starts.
	if len(costs) > 0 && !probing {
		if paid, ok := e.decideLocally(a, costs); ok {
			return paid, nil
		}
	}
	callers := lease.Callers(costs)
	why := e.purpose(a, costs, limited, probing)
	if why == nothing {
		return nil, nil
	}
	if cause := a.lane.paused(a); cause != nil && !probing { // they came before that was known
		return nil, cause
	}
	for attempt := 0; ; attempt++ {
		q := e.ask(a, costs, why)
		g := a.lane.do(ctx, q.req)
		l.called(a.lane, a, q.sent, callers, g.Err)
		if g.Err != nil {
			// What was held stays good until it ends, and what was given up comes back with the totals of the
			// next request.
			return nil, g.Err
		}
		void := g.Status == lease.Stale || g.Status == lease.Reset
		if !void {
			return e.accept(a, &q, &g), nil
		}
		e.void(a, &q)
		if len(costs) == 0 {
			return nil, nil
		}
		if attempt > 0 {
			l.counts.failed.Add(1)
			return nil, limit.ErrUnavailable
		}
	}
}

// paused is why Redis is not to be asked, for the key of this account or for any; nil if it is.
func (o *outage) paused(a *account) error {
	if o.open.Load() {
		return o.cause()
	}
	if a != nil {
		if r := a.refused.Load(); r != nil && o.limiter.clock.Now() < r.until {
			return r.err
		}
	}
	return nil
}

// purpose is what a flight is for.
type purpose int

const (
	nothing  purpose = iota // overtaken by another flight
	refill                  // callers wait, or the next lease is needed soon
	giveBack                // the lease lies idle, or the key is not wanted any more
	report                  // tokens were given up, and it is not known whether the bucket has heard of it
	probe                   // does Redis answer again?
)

// purpose is what a flight with these callers is for.
func (e *entry) purpose(a *account, costs []lease.Run, limited, probing bool) purpose {
	e.mu.Lock()
	defer e.mu.Unlock()
	idle, told := a.idle, a.report
	a.idle, a.report = false, false
	switch {
	case probing:
		return probe
	case len(costs) > 0:
		return refill
	case idle || !limited:
		return giveBack
	case told && a.owesLocked(e.limiter.clock.Now()):
		return report
	case told || a.balance.Common() > a.mark.Load():
		return nothing
	}
	return refill
}

// request is a request under way.
type request struct {
	req   lease.Request
	terms *terms
	sent  int64
	lives int // of the account
	// charged: what was spent without Redis and what is to be given back is in it, so much.
	charged       bool
	spent, credit int64
}

// ask makes the next request and freezes what it says about the lease.
func (e *entry) ask(a *account, costs []lease.Run, why purpose) request {
	l := e.limiter
	e.mu.Lock()
	defer e.mu.Unlock()
	terms, now := e.terms.Load().rated, l.clock.Now()
	a.countLocked(&terms.Terms, now)
	switch {
	case !a.lease.Open() || a.deadline == 0: // none, or one whose first answer was lost: the totals bring it back
	case now >= a.deadline+int64(afterlife):
		// The lease has ended. Its name ends with it: the bucket forgets it, and would take its totals for a loss.
		l.expired(a.endLocked())
	case now >= a.deadline:
		// The bucket will have it for a little longer, and until then it keeps the place of what was not spent. The
		// lease stays: the answer may renew it, and then brings them back.
		l.expired(a.giveUpLocked())
	}
	if a.lease.Used(0) > maxTotal {
		l.expired(a.endLocked())
	}
	if len(costs) > 0 || why == giveBack {
		// What is left is too little for somebody in the batch, or not wanted.
		l.returned(a.giveUpLocked())
	}
	held := a.balance.Tokens()
	req := lease.Request{Key: e.key, Limit: terms.Limit, Slack: terms.Slack, Costs: costs}
	// What is owed is charged once: if there is no answer, it may have been all the same. So not while that is likely.
	var spent, credit int64
	charged := why != probe && !a.lane.failing.Load()
	if charged && a.share != nil {
		spent = a.share.spent(now)
		a.share.ideal = a.share.level
	}
	if charged {
		credit, a.credit = a.credit, 0
	}
	// Never more than the bucket can take in one go.
	req.Credit = credit - spent
	want := int64(0)
	if a.waiting.Load() > 0 {
		why = report // nothing is kept for who comes later while others wait
	}
	if (why == refill || why == probe) && !l.opts.Exact && !e.gone.Load() && !l.ended.Load() {
		want = terms.Want(&a.demand, l.roundTrip(), held, now)
		if terms.Fixed > 0 {
			want = max(0, want-lease.Total(costs))
		}
	}
	want = max(want, held)
	if want > 0 || a.lease.Open() {
		if !a.lease.Open() {
			a.lease.Begin(l.newID())
		}
		a.lease.Ask(&req.Lease, held, want)
		req.Lease.Demand = a.demand.InTau()
		terms.fill(&req.Lease)
	}
	return request{req, terms, now, a.lives, charged, spent, credit}
}

// accept takes the answer to the newest request and pays the batch.
func (e *entry) accept(a *account, q *request, g *lease.Grant) []lease.Paid {
	l, costs, now := e.limiter, q.req.Costs, e.limiter.clock.Now()
	l.addRoundTrip(time.Duration(now - q.sent))
	if q.req.Lease.ID != "" {
		l.janitor.wake() // before there are tokens
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.lives != a.lives || l.ended.Load() {
		// The key was reset, or the limiter closed, while the request was out. The callers are paid, but what the
		// answer says of the lease is void: its totals would be taken for tokens that have just come in.
		return g.Pay(q.req.Limit, costs, 0)
	}
	a.owed, a.replied = 0, now
	a.known = now + int64(min(q.req.Limit.ResetAfter(int(max(0, g.Level))), keepLevel))
	if q.charged && a.share != nil && a.share.spent(now) == 0 { // else it was spent from since the request was made
		a.share = nil
	}
	l.holders.see(now, g.Holders)
	var lent int64
	if q.req.Lease.ID != "" {
		lent = a.lease.Accept(g)
		// Only an answer can renew the lease, and only if the bucket did. From the moment of sending: the bucket
		// counts from a later one.
		if g.Expiry != 0 {
			a.deadline = max(a.deadline, q.sent+int64(lease.Life(q.req.Lease.TTL)))
			a.balance.Install(lent, a.deadline)
		}
		if lent > 0 {
			a.demand.Leased(now, lent)
			a.mark.Store(q.terms.Mark(&a.demand, l.roundTrip(), q.req.Lease.Held+lent))
			l.leased(lent)
		}
	}
	if e.terms.Load() != q.terms {
		l.returned(a.giveUpLocked()) // lent under a limit that is not in force any more
	}
	a.touched = a.balance.Tokens() // what comes is not yet a use
	paid := g.Pay(q.req.Limit, costs, lent)
	a.level.Store(g.Level)
	hold := time.Duration(e.remember(a, q, paid, g, now) - now)
	for i := range paid {
		p, n := &paid[i], int64(paid[i].Cost)
		a.paid += n * int64(p.Admitted)
		a.denied += n * int64(costs[i].Count-p.Admitted)
		if p.Denied.RetryAfter > 0 {
			p.Denied.RetryAfter = max(p.Denied.RetryAfter, hold) // before that this process will not ask
		}
	}
	return paid
}

// remember keeps what a dry bucket said, so that it is not asked again at once, and returns until when. The caller holds
// mu.
func (e *entry) remember(a *account, q *request, paid []lease.Paid, g *lease.Grant, now int64) (until int64) {
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
		r = lease.NewCertainRefusal(q.terms.Terms, g, cost, q.sent)
	default:
		r = lease.NewRefusal(q.terms.Terms, g, cost, q.sent, rand.Float64())
	}
	if r != nil {
		r.Answered(time.Duration(now - q.sent))
		a.demand.Refused(r.Until())
	}
	e.refusal.Store(r)
	if e.terms.Load() != q.terms {
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
func (e *entry) decideLocally(a *account, costs []lease.Run) ([]lease.Paid, bool) {
	l, now := e.limiter, e.limiter.clock.Now()
	refusal, left := e.refusal.Load(), a.balance.Held(now)
	total := int64(0)
	paid := make([]lease.Paid, len(costs))
	for i, c := range costs {
		cost, p := int64(c.Cost), &paid[i]
		n := min(int64(c.Count), left/cost)
		p.Cost, p.Admitted, p.Allowed = c.Cost, int(n), e.allowed(a, left-cost)
		left, total = left-n*cost, total+n*cost
		if p.Admitted < c.Count {
			var ok bool
			if p.Denied, ok = refusal.Denies(now, cost-left); !ok {
				return nil, false
			}
		}
	}
	if total > 0 {
		if left, ok := a.balance.Take(total, l.clock.Now); !ok {
			l.lost(left)
			return nil, false
		}
	}
	return paid, true
}

// void ends the lease, because the bucket has answered that it is void. Nothing else was done, so what was to be charged
// still is.
func (e *entry) void(a *account, q *request) {
	e.forfeit()
	e.mu.Lock()
	defer e.mu.Unlock()
	a.credit += q.credit
	if a.share != nil {
		a.share.ideal.N += q.spent
	}
}

// forfeit ends the lease and forgets what the bucket said.
func (e *entry) forfeit() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.account.Load(); a != nil {
		e.limiter.expired(a.endLocked())
	}
	e.refusal.Store(nil)
}
