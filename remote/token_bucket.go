package remote

import (
	"context"
	_ "embed"
	"slices"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

//go:embed token_bucket.lua
var tokenBucketSource string

var tokenBucketScript = newScript(tokenBucketSource)

const tokenBucketSuffix = "tb1"

// TokenBucket admits Burst at once and Rate per Period in the long run: in every window of length W at most
// Burst + Rate*W/Period. Its state is shared with the leases of package hybrid: exact and leased processes may use one
// key.
type TokenBucket struct{ Limiter }

// NewTokenBucket returns a TokenBucket. Errors wrap limit.ErrInvalid.
func NewTokenBucket(rdb Client, lim limit.Limit, opts Options) (*TokenBucket, error) {
	if err := lim.Validate(); err != nil {
		return nil, err
	}
	l, err := newLimiter(rdb, lim, opts, tokenBucket{lim})
	if err != nil {
		return nil, err
	}
	return &TokenBucket{l}, nil
}

type tokenBucket struct{ limit limit.Limit }

func (tokenBucket) suffix() string { return tokenBucketSuffix }

func (m tokenBucket) decide(ctx context.Context, c conn, key string, costs []lease.Run) ([]lease.Paid, error) {
	req := lease.Request{Limit: m.limit, Costs: costs}
	reply, err := c.run(ctx, tokenBucketScript, key, bucketArgs(&req))
	if err != nil {
		return nil, err
	}
	var g lease.Grant
	if err := readBucket(reply, &req, &g); err != nil {
		return nil, err
	}
	return g.Pay(m.limit, costs), nil
}

// bucketArgs are the arguments of the token bucket script for a request.
func bucketArgs(req *lease.Request) []any {
	rate := bucket.NewRate(int64(req.Limit.Rate), req.Limit.Period.Microseconds())
	args := make([]any, 0, 4+2*len(req.Costs))
	return appendCosts(append(args, rate.Tokens, rate.Micros, req.Limit.Burst, req.Credit), req.Costs)
}

// readBucket reads the reply to bucketArgs.
func readBucket(reply []any, req *lease.Request, g *lease.Grant) error {
	n, err := integers(reply, 4+len(req.Costs))
	if err != nil {
		return err
	}
	period := bucket.NewRate(int64(req.Limit.Rate), req.Limit.Period.Microseconds()).Micros
	if n[1] < 0 || n[1] > maxLag || n[2] < -maxExact || n[3] < 0 || n[3] >= period {
		return badReply("not a level")
	}
	g.Lag, g.Level, g.Frac = limit.Micros(n[1]), n[2], n[3]
	return readAdmitted(n[4:], req.Limit, req.Costs, g)
}

// maxExact is the largest integer in the sums of a script, and maxLag the most that a script takes for a small step
// back of the clock, in microseconds.
const (
	maxExact = 1 << 53
	maxLag   = 5_000_000
)

// readAdmitted reads how many of each run were admitted. g.Level is what they left: going back from there, each run
// must have got what the level before it paid for.
func readAdmitted(n []int64, lim limit.Limit, costs []lease.Run, g *lease.Grant) error {
	level, burst := g.Level, int64(lim.Burst)
	g.Admitted = make([]int, len(costs))
	for i, c := range slices.Backward(costs) {
		cost, count := int64(c.Cost), int64(c.Count)
		switch {
		case n[i] < 0 || n[i] > count || level > burst:
			return badReply("more admitted than asked for, or more left than the burst")
		case n[i] < count && (level >= cost || cost == 0):
			return badReply("refused what was left")
		case cost > 0 && n[i] > (burst-level)/cost:
			return badReply("more admitted than the burst")
		}
		level += n[i] * cost
		g.Admitted[i] = int(n[i])
	}
	if level > burst {
		return badReply("more left than the burst")
	}
	return nil
}
