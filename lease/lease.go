// Package lease is the protocol by which processes share one bucket per key: pure, without Redis, goroutine or clock.
//
// A process asks with a [Request] and is answered by a [Grant]; a [Source] carries both. What it knows about its lease
// of one key is a [State]. How much it asks for, and when, follows from [Terms], [Demand], [RTT] and [Refusal]: these
// can be tuned freely, they cannot touch the bound. The order of what State and the bucket do can not; docs/protocol.md
// says why.
package lease

import (
	"context"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Source is where leases come from: the buckets in Redis, or the model of package leasetest.
type Source interface {
	// Acquire sends all requests in one go and fills the grant of the same index of each. The slices have the same
	// length. Errors are per Grant, because the nodes of a cluster fail apart. It must not send a request twice.
	Acquire(ctx context.Context, reqs []Request, grants []Grant)
}

// Request asks the bucket of one key. The bucket settles what the lease has used, takes Credit back, decides the
// requests of Costs one after another, each as if it had come alone, and then lends up to Want.
type Request struct {
	Key   string
	Limit limit.Limit
	// Slack is by how many tokens the bound may be exceeded. 0 is strict.
	Slack int64
	// Credit gives tokens back that do not belong to a lease; the bucket never rises above what it may hold. If
	// negative it charges tokens that were used already, if need be into a debt of at most Burst.
	Credit int64
	// Costs are what callers wait for, in order.
	Costs []Run

	// Lease is what the rest is about; with an empty Lease.ID nothing is kept and only Costs and Credit count.
	Lease Holding
}

// Holding is what a process says about its lease. All counts are totals since the ID was made, never differences, so a
// request that is lost, repeated or late does no harm.
type Holding struct {
	// ID names one entry in one process, and is never used again for another.
	ID string
	// Seq numbers the requests of the ID; the bucket ignores one that is not newer than the last it accepted.
	Seq int64
	// Used is how many tokens of the lease are gone in all: never more than really are.
	Used int64
	// Held is how many it holds now, and Want how many it wants to hold after this call. When Want is less than
	// Held, the process has given the difference up before it asked.
	Held, Want int64
	// Demand is how many tokens the process needs in the time a lease is sized for: its weight when tokens are
	// scarce.
	Demand int64
	// Epoch and Expiry are those of the last Grant; 0 before the first.
	Epoch, Expiry int64
	// MaxLeased is how many tokens may be lent to all processes together.
	MaxLeased int64
	// TTL is how long the lease shall live from now.
	TTL time.Duration
	// Dry is the level below which a lease that was cut short counts as scarcity.
	Dry int64
}

// Status is how the bucket took a Request.
type Status uint8

const (
	// OK: done as asked.
	OK Status = iota
	// Stale: the request is older than one already accepted, or the lease has ended. Nothing was done.
	Stale
	// Reset: the key was reset since; the lease is void. Nothing was done.
	Reset
	// Loss: the bucket had lost what it knew of this lease, and has written it down again. Else done as asked.
	Loss
)

// Bounds of what a bucket answers: its sums are exact doubles, and a clock that is further behind counts as set back.
const (
	maxSum = 1 << 53
	maxLag = 5 * time.Second
)

// Answers reports whether g has the form of an answer to req: an error, a request that was not decided, or a decision
// about each run of its costs and no more tokens than it wanted. A source of one's own may give anything.
func (g *Grant) Answers(req *Request) bool {
	h := &req.Lease
	switch {
	case g.Err != nil:
		return true
	case g.Status == Stale || g.Status == Reset:
		return h.ID != ""
	case g.Status > Loss || len(g.Admitted) != len(req.Costs):
		return false
	case g.Level > int64(req.Limit.Burst) || g.Level < -maxSum || g.Frac < 0 || g.Frac >= req.Limit.Period.Microseconds():
		return false
	case g.Lag < 0 || g.Lag > maxLag || g.Lent < 0 || g.Lent > maxSum || g.Holders < 0:
		return false
	case h.ID != "" && (g.Granted < h.Used+h.Held || g.Granted > h.Used+max(h.Held, h.Want)):
		return false
	}
	for i, n := range g.Admitted {
		if n < 0 || n > req.Costs[i].Count || req.Costs[i].Cost == 0 && n != req.Costs[i].Count {
			return false
		}
	}
	return true
}

// Grant is the answer to one Request.
type Grant struct {
	// Err says why nothing is known. The Request may have been executed all the same.
	Err    error
	Status Status
	// Now is the time of the bucket in microseconds; Lag is how far its clock was behind the newest time it had
	// seen: waits are longer by it.
	Now int64
	Lag time.Duration
	// Epoch names the life of the bucket: it is new when the bucket was made anew.
	Epoch int64
	// Granted is how many tokens the ID was lent in all, less what it gave back.
	Granted int64
	// Expiry is when the lease ends by the clock of the bucket, or 0 if this call did not renew it.
	Expiry int64
	// Admitted is how many requests of each run of Costs were admitted; the first ones of a run are.
	Admitted []int
	// Level is how many whole tokens the bucket kept after this call; negative is a debt. Frac is the started token
	// in units of 1/p, where p is the Period in microseconds of the Limit in lowest terms.
	Level, Frac int64
	// Lent is how many tokens all processes hold, as far as the bucket knows, and Holders how many processes hold or
	// want some.
	Lent    int64
	Holders int
	// Scarce: a cost was refused, or a lease was cut short while the bucket was dry.
	Scarce bool
}
