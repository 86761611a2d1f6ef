// Package lease is what a process and the bucket in Redis say to each other: a [Request] goes out with what callers
// wait for, a [Grant] comes back with what they got, and a [Source] carries both. The package is pure: it knows no
// Redis, goroutine or clock.
package lease

import (
	"context"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

// MaxRuns is how many runs of costs one Request may carry.
const MaxRuns = 64

// Run is Count requests in a row that cost Cost tokens each.
type Run struct {
	Cost  int
	Count int
}

// Request asks the bucket of one key. The bucket first takes Credit back, then decides the requests of Costs one after
// another, each as if it had come alone: it is admitted if its whole cost is there, else it changes nothing.
type Request struct {
	Key   string
	Limit limit.Limit
	// Credit gives tokens back that were granted earlier; the bucket never rises above Burst. If negative it charges
	// tokens that were used already, if need be into a debt of at most Burst.
	Credit int
	// Costs are what callers wait for, in order. A prefetched lease of n tokens is the run {1, n}: as many of them
	// as the bucket can pay.
	Costs []Run
}

// Grant is the answer to one Request.
type Grant struct {
	// Err says why nothing is known. The Request may have been executed all the same: what it charged is then lost
	// to this process and comes back by refill.
	Err error
	// Admitted is how many requests of each run of Costs were admitted; the first ones of a run are.
	Admitted []int
	// Level is how many whole tokens the bucket kept after this call; negative is a debt. Frac is the started token
	// in units of 1/p, where p is the Period in microseconds of the Limit in lowest terms.
	Level int64
	Frac  int64
	// Lag is how far the Redis clock was behind the newest time the bucket had seen: waits are longer by it.
	Lag time.Duration
}

// Source is where leases come from: the buckets in Redis, or a stand-in.
type Source interface {
	// Acquire sends all requests in one go and fills the grant of the same index of each. The slices have the same
	// length. Errors are per Grant, because the nodes of a cluster fail apart.
	Acquire(ctx context.Context, reqs []Request, grants []Grant)
}

// Paid is how the requests of one Run fared: the first Admitted ones are allowed, the others denied.
type Paid struct {
	Cost     int
	Admitted int
	// Allowed is the result of the first admitted request; each further one has Cost less Remaining.
	Allowed limit.Result
	// Denied is the result of those that were not admitted.
	Denied limit.Result
}

// Result is the result of request i of the run, counted from 0.
func (p *Paid) Result(i int) limit.Result {
	if i >= p.Admitted {
		return p.Denied
	}
	r := p.Allowed
	r.Remaining -= i * p.Cost
	return r
}

// Pay turns the grant into the results of the runs of costs, which must be those that were asked for. Whatever later
// runs were granted counts in the Remaining of earlier ones: it was still in the bucket then.
func (g *Grant) Pay(lim limit.Limit, costs []Run) []Paid {
	rate := bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
	level := bucket.Level{N: g.Level, F: g.Frac}
	for i, c := range costs {
		level.N += int64(c.Cost) * int64(g.Admitted[i])
	}
	paid := make([]Paid, len(costs))
	for i, c := range costs {
		p := &paid[i]
		p.Cost, p.Admitted = c.Cost, g.Admitted[i]
		if p.Admitted > 0 {
			p.Allowed = limit.Result{
				Verdict:   limit.Verdict{Allowed: true, Origin: limit.Remote},
				Remaining: remaining(level.N-int64(c.Cost), lim.Burst),
			}
			level.N -= int64(c.Cost) * int64(p.Admitted)
		}
		if p.Admitted < c.Count {
			p.Denied = limit.Result{
				Verdict:    limit.Verdict{Origin: limit.Remote},
				Remaining:  remaining(level.N, lim.Burst),
				RetryAfter: limit.Micros(level.Wait(rate, int64(c.Cost))) + g.Lag,
				ResetAfter: limit.Micros(level.Wait(rate, int64(lim.Burst))) + g.Lag,
			}
		}
	}
	return paid
}

func remaining(level int64, burst int) int {
	return int(max(0, min(level, int64(burst))))
}
