package hybrid

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/lease"
)

// Stats are counts since the limiter was made, and what it holds now.
type Stats struct {
	// Terms are the conditions of leases in force for the limiter's own limit, after clamping.
	Terms lease.Terms
	// Keys is how many keys are remembered.
	Keys int
	// Calls is how many requests were sent to Redis, several of which may have shared a round trip; Failed is how
	// many of them got no answer.
	Calls, Failed int64
	// Leased is how many tokens were leased. Each of them was spent, or is Held now, or was Returned to its bucket,
	// or Expired unspent.
	Leased, Held, Returned, Expired int64
	// Leases is how many answers of Redis brought tokens: Leased/Leases is the size of a lease.
	Leases int64
	// Unavailable says that Redis, or a server of it, is not asked, but for probes, because it does not answer; Err is
	// the last failure, of now or of some time ago. Fallbacks is how many requests were decided by FailLocal or FailOpen.
	Unavailable bool
	Err         error
	Fallbacks   int64
	// Shadowed is how many requests were allowed only because of Options.Shadow.
	Shadowed int64
	// Instances is how many processes are taken to share a key; see Options.Instances.
	Instances int
	// RoundTrip is a round trip to Redis that few exceed; 0 before the first.
	RoundTrip time.Duration
}

// counters are the parts of Stats that are counted; rtt is measured along with them.
type counters struct {
	calls, failed, leased, leases, returned, expired, fallback, shadowed atomic.Int64
	rtt                                                                  atomic.Pointer[lease.RTT]
}

// Stats reads the counts. They are not taken at one instant.
func (l *Limiter) Stats() Stats {
	s := Stats{
		Terms: l.newTerms(*l.limit.Load(), nil).Terms,
		Keys:  l.keys.Len(),
		Calls: l.counts.calls.Load(), Failed: l.counts.failed.Load(),
		Leased: l.counts.leased.Load(), Leases: l.counts.leases.Load(),
		Returned: l.counts.returned.Load(), Expired: l.counts.expired.Load(),
		RoundTrip: l.roundTrip().High(),
	}
	now := l.clock.Now()
	s.Held, s.Instances = l.janitor.held(now), l.instances()
	s.Unavailable, s.Err = l.lanes.unavailable()
	s.Fallbacks, s.Shadowed = l.counts.fallback.Load(), l.counts.shadowed.Load()
	return s
}

// leased counts tokens that an answer has brought.
func (l *Limiter) leased(n int64) {
	l.counts.leased.Add(n)
	l.counts.leases.Add(1)
}

// expired counts tokens that were not spent in time.
func (l *Limiter) expired(n int64) { l.counts.expired.Add(n) }

// returned counts tokens that were given up before their time.
func (l *Limiter) returned(n int64) { l.counts.returned.Add(n) }

// lost counts tokens that a take has found too late; see Balance.Confirm.
func (l *Limiter) lost(left int64) {
	if left < 0 {
		l.expired(-left)
	}
}

// roundTrip is the estimate of the round trip; it does not change.
func (l *Limiter) roundTrip() *lease.RTT {
	if r := l.counts.rtt.Load(); r != nil {
		return r
	}
	return &lease.RTT{}
}

// addRoundTrip notes one. When two come at once one of them is not counted: it is an estimate.
func (l *Limiter) addRoundTrip(d time.Duration) {
	old := l.counts.rtt.Load()
	next := lease.RTT{}
	if old != nil {
		next = *old
	}
	next.Add(d)
	l.counts.rtt.CompareAndSwap(old, &next)
}

// String says what is in force for keys of the limiter's own limit.
func (l *Limiter) String() string { return "hybrid: " + l.describe(l.newTerms(*l.limit.Load(), nil)) }

// describe puts terms into words.
func (l *Limiter) describe(t *terms) string {
	switch {
	case t.Limit.Rate == 0:
		return t.Limit.String()
	case l.opts.Exact:
		return fmt.Sprintf("%v, exact", t.Limit)
	}
	size := fmt.Sprintf("%v of demand", t.Tau)
	if t.Fixed > 0 {
		size = fmt.Sprintf("%d tokens", t.Fixed)
	}
	return fmt.Sprintf("%v, leases of %s, each for %v, at most %d tokens lent, slack %d, dry below %d",
		t.Limit, size, t.TTL, t.MaxLeased, t.Slack, t.Dry)
}
