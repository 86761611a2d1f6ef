package hybrid

import (
	"sync/atomic"
	"time"
)

// Stats are counts since the limiter was made, and what it holds now.
type Stats struct {
	// Keys is how many keys are remembered.
	Keys int
	// LeaseSize and LeaseTTL are the values in force, after clamping.
	LeaseSize int
	LeaseTTL  time.Duration
	// Calls is how many requests were sent to Redis; Failed how many of them got no answer.
	Calls, Failed int64
	// Leased is how many tokens were fetched beyond what callers were waiting for. Each of them is spent, or Held by
	// this process now, or was Returned to its bucket, or Expired unspent.
	Leased, Held, Returned, Expired int64
}

type counters struct {
	calls, failed, leased, returned, expired atomic.Int64
}

// Stats reads the counts. They are not taken at one instant.
func (l *Limiter) Stats() Stats {
	s := Stats{
		Keys: l.keys.Len(), LeaseSize: l.size, LeaseTTL: l.ttl,
		Calls: l.counts.calls.Load(), Failed: l.counts.failed.Load(),
		Leased: l.counts.leased.Load(), Returned: l.counts.returned.Load(), Expired: l.counts.expired.Load(),
	}
	now := l.now()
	for _, e := range l.keys.Values() {
		s.Held += e.balance.Held(now)
	}
	return s
}
