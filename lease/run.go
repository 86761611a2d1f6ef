package lease

import (
	"math"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

// MaxRuns is how many runs of costs one Request may carry: enough that callers with many different costs share a few
// calls, and few enough for the argument lists of Lua.
const MaxRuns = 512

// Run is Count requests in a row that cost Cost tokens each.
type Run struct {
	Cost  int
	Count int
}

// Callers is how many requests there are in all runs.
func Callers(costs []Run) (n int) {
	for _, c := range costs {
		n += c.Count
	}
	return n
}

// Total is the sum of the costs of all requests; it saturates.
func Total(costs []Run) int64 {
	var n int64
	for _, c := range costs {
		if c.Count > 0 && int64(c.Cost) > (math.MaxInt64-n)/int64(c.Count) {
			return math.MaxInt64
		}
		n += int64(c.Cost) * int64(c.Count)
	}
	return n
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

// later is a wait in microseconds and a lag on top; it saturates at limit.Never.
func later(micros int64, lag time.Duration) time.Duration {
	d := limit.Micros(micros)
	if d > limit.Never-lag {
		return limit.Never
	}
	return d + lag
}

// Pay turns the grant into the results of the runs of costs, which must be those that were asked for. lent is how many
// tokens the same call lent to the process: for the callers they were still in the bucket.
func (g *Grant) Pay(lim limit.Limit, costs []Run, lent int64) []Paid {
	rate := bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
	level := bucket.Level{N: g.Level + lent, F: g.Frac}
	for i, c := range costs {
		level.N += int64(c.Cost) * int64(g.Admitted[i])
	}
	remaining := func() int { return int(max(0, min(level.N, int64(lim.Burst)))) }
	paid := make([]Paid, len(costs))
	for i, c := range costs {
		p := &paid[i]
		p.Cost, p.Admitted = c.Cost, g.Admitted[i]
		if p.Admitted > 0 {
			level.N -= int64(c.Cost)
			p.Allowed = limit.Result{
				Verdict:   limit.Verdict{Allowed: true, Origin: limit.Remote},
				Remaining: remaining(),
			}
			level.N -= int64(c.Cost) * int64(p.Admitted-1)
		}
		if p.Admitted < c.Count {
			p.Denied = limit.Result{
				Verdict:    limit.Verdict{Origin: limit.Remote},
				Remaining:  remaining(),
				RetryAfter: max(later(level.Wait(rate, int64(c.Cost)), g.Lag), 1000),
				ResetAfter: later(level.Wait(rate, int64(lim.Burst)), g.Lag),
			}
			if c.Cost > lim.Burst { // lowered while the caller waited
				p.Denied.RetryAfter = limit.Never
			}
		}
	}
	return paid
}
