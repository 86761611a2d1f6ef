package remote

import (
	"context"
	"strconv"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// window is the mode of the three limiters that count in windows. Their keys are named after the period as well: under
// one name, limits of different periods would end each other's windows.
type window struct {
	limit  limit.Limit
	script script
	name   string // the suffix
	args   []any  // of the script, before the costs
}

func newWindow(version string, s script, lim limit.Limit, args ...any) window {
	return window{lim, s, version + ":" + strconv.FormatInt(lim.Period.Milliseconds(), 10), args}
}

func (w window) suffix() string { return w.name }

// decide runs the script. All three have the same reply: tokens left before the call, and for each run the requests
// admitted, the wait of a refused one and the time until all is available again.
func (w window) decide(ctx context.Context, c conn, key string, costs []lease.Run) ([]lease.Paid, error) {
	reply, err := c.run(ctx, w.script, key, w.args, costs)
	if err != nil {
		return nil, err
	}
	var few few
	n, err := integers(few[:0], reply, 1+3*len(costs))
	if err != nil {
		return nil, err
	}
	if n[0] < 0 || n[0] > int64(w.limit.Rate) {
		return nil, badReply("more left than the limit, or less than nothing")
	}
	left := int(n[0])
	paid := make([]lease.Paid, len(costs))
	for i, c := range costs {
		fit := c.Count
		if c.Cost > 0 {
			fit = min(fit, left/c.Cost)
		}
		wait, reset := n[2+3*i], n[3+3*i]
		if n[1+3*i] != int64(fit) || wait < 0 || reset < 0 {
			return nil, badReply("not what is left for the request")
		}
		p := &paid[i]
		p.Cost, p.Admitted = c.Cost, fit
		p.Allowed = limit.Result{
			Verdict:    limit.Verdict{Allowed: true, Origin: limit.Remote},
			Remaining:  left - c.Cost,
			ResetAfter: limit.Micros(reset),
		}
		left -= fit * c.Cost
		p.Denied = limit.Result{
			Verdict:    limit.Verdict{Origin: limit.Remote},
			Remaining:  left,
			RetryAfter: max(limit.Micros(wait), time.Microsecond),
			ResetAfter: limit.Micros(reset),
		}
	}
	return paid, nil
}
