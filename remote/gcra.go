package remote

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

//go:embed gcra.lua
var gcraSource string

var gcraScript = newScript(gcraSource)

// maxGCRA bounds the time in which a burst refills, in microseconds: that time is added to the clock, and the sum must
// stay an exact double.
const maxGCRA = 1 << 52

// GCRA is the generic cell rate algorithm (ITU-T I.371): it decides as a token bucket of the same limit does, but keeps
// only the time when everything will be available again. It takes the least memory of all modes.
//
// What one number cannot know: when the Redis clock is set back by d, the tokens of that time, Rate*d, are lost once
// (at most Burst); and when the limit changes, a bucket keeps the time it needs to fill and not its tokens.
type GCRA struct{ Limiter }

// NewGCRA returns a GCRA. The burst must refill within 142 years; errors wrap limit.ErrInvalid.
func NewGCRA(rdb Client, lim limit.Limit, opts Options) (*GCRA, error) {
	if err := lim.Validate(); err != nil {
		return nil, err
	}
	m := gcra{limit: lim}
	if lim.Rate > 0 {
		m.rate = bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
		if m.rate.Span(int64(lim.Burst)) > maxGCRA {
			return nil, fmt.Errorf("%w: Burst %d takes too long to refill at %d per %v for a GCRA; lower it or use a token bucket", limit.ErrInvalid, lim.Burst, lim.Rate, lim.Period)
		}
		us, frac := m.rate.Units(int64(lim.Burst))
		m.args = []any{m.rate.Tokens, us, frac}
	}
	l, err := newLimiter(rdb, lim, opts, m)
	if err != nil {
		return nil, err
	}
	return &GCRA{l}, nil
}

type gcra struct {
	limit limit.Limit
	rate  bucket.Rate
	args  []any // of the script, before the costs
}

func (gcra) suffix() string { return "gc1" }

func (m gcra) decide(ctx context.Context, c conn, key string, costs []lease.Run) ([]lease.Paid, error) {
	args := make([]any, 0, len(m.args)+3*len(costs))
	args = append(args, m.args...)
	for _, c := range costs {
		us, frac := m.rate.Units(int64(c.Cost))
		args = append(args, us, frac, c.Count)
	}
	reply, err := c.run(ctx, gcraScript, key, args, nil)
	if err != nil {
		return nil, err
	}
	var few few
	n, err := integers(few[:0], reply, 4+len(costs))
	if err != nil {
		return nil, err
	}
	if n[1] < 0 || n[1] > maxLag || n[2] < 0 || n[3] < 0 || n[3] >= m.rate.Tokens {
		return nil, badReply("not a room")
	}
	// The room left is the level of a bucket, in another unit.
	level := bucket.FromUnits(m.rate, n[2], n[3])
	g := lease.Grant{Lag: limit.Micros(n[1]), Level: level.N, Frac: level.F}
	if g.Admitted, err = readAdmitted(n[4:], costs); err != nil {
		return nil, err
	}
	if err := checkAdmitted(g.Admitted, m.limit, costs, g.Level); err != nil {
		return nil, err
	}
	return g.Pay(m.limit, costs, 0), nil
}
