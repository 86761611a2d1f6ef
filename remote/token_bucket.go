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

//go:embed reset.lua
var resetSource string

var (
	tokenBucketScript = newScript(tokenBucketSource)
	resetScript       = newScript(resetSource)
)

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
	m := tokenBucket{limit: lim}
	if lim.Rate > 0 {
		m.args = bucketArgs(&lease.Request{Limit: lim})
	}
	l, err := newLimiter(rdb, lim, opts, m)
	if err != nil {
		return nil, err
	}
	return &TokenBucket{l}, nil
}

// Reset makes the bucket of key full. Leases of it are void as soon as their holders ask again, at the latest when they
// end; until then what they hold may be used once more. An unknown key is no error.
func (b *TokenBucket) Reset(ctx context.Context, key string) error {
	if b.limit.Rate == 0 { // Unlimited and Blocked have no bucket
		return b.limit.Admit(key, 0)
	}
	return b.reset(ctx, key, func(ctx context.Context, redisKey string) error {
		return resetBucket(ctx, b.conn, redisKey, b.limit)
	})
}

type tokenBucket struct {
	limit limit.Limit
	args  []any // of the script, before the costs
}

func (tokenBucket) suffix() string { return tokenBucketSuffix }

func (m tokenBucket) decide(ctx context.Context, c conn, key string, costs []lease.Run) ([]lease.Paid, error) {
	reply, err := c.run(ctx, tokenBucketScript, key, m.args, costs)
	if err != nil {
		return nil, err
	}
	g, err := readGrant(reply, &lease.Request{Limit: m.limit, Costs: costs})
	if err != nil {
		return nil, err
	}
	return g.Pay(m.limit, costs, 0), nil
}

// resetBucket runs the script that makes a bucket full.
func resetBucket(ctx context.Context, c conn, key string, lim limit.Limit) error {
	rate := bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
	_, err := c.run(ctx, resetScript, key, []any{rate.Tokens, rate.Micros, lim.Burst}, nil)
	return err
}

// bucketArgs are the arguments of the token bucket script for a request, but for its costs.
func bucketArgs(req *lease.Request) []any {
	rate := bucket.NewRate(int64(req.Limit.Rate), req.Limit.Period.Microseconds())
	h := &req.Lease
	args := make([]any, 0, 16)
	args = append(args, rate.Tokens, rate.Micros, req.Limit.Burst, req.Slack, req.Credit, h.ID)
	if h.ID != "" {
		args = append(args, h.Seq, h.Used, h.Held, h.Want, h.Demand, h.Epoch, h.Expiry, h.MaxLeased, h.TTL.Microseconds(), h.Dry)
	}
	return args
}

const (
	// bucketReply is how many numbers come before those of the runs.
	bucketReply = 11
	// maxExact is the largest integer in the sums of a script, and maxLag the most that a script takes for a small
	// step back of the clock, in microseconds.
	maxExact = 1 << 53
	maxLag   = 5_000_000
)

// readGrant reads the reply to a request. Whatever no bucket answers to this request is an error: a token more than
// was asked for would be spent.
func readGrant(reply []any, req *lease.Request) (lease.Grant, error) {
	costs, h := req.Costs, &req.Lease
	if len(reply) == bucketReply {
		costs = nil // stale or reset: nothing was decided
	}
	var few few
	n, err := integers(few[:0], reply, bucketReply+len(costs))
	if err != nil {
		return lease.Grant{}, err
	}
	g := lease.Grant{
		Status: lease.Status(n[0]), Now: n[1], Lag: limit.Micros(n[2]), Epoch: n[3], Granted: n[4], Expiry: n[5],
		Level: n[6], Frac: n[7], Lent: n[8], Holders: int(n[9]), Scarce: n[10] == 1,
	}
	decided := g.Status == lease.OK || g.Status == lease.Loss
	period := bucket.NewRate(int64(req.Limit.Rate), req.Limit.Period.Microseconds()).Micros
	switch {
	case n[0] < 0 || n[0] > int64(lease.Loss):
		return lease.Grant{}, badReply("unknown status")
	case decided != (len(costs) == len(req.Costs)) && len(req.Costs) > 0 || !decided && h.ID == "":
		return lease.Grant{}, badReply("status and costs do not fit")
	case n[2] < 0 || n[2] > maxLag || n[6] < -maxExact || n[6] > maxExact || n[7] < 0 || n[7] >= period || n[8] < 0 || n[9] < 0:
		return lease.Grant{}, badReply("not a bucket")
	case decided && (g.Granted < h.Used+h.Held || g.Granted > h.Used+max(h.Held, h.Want)):
		return lease.Grant{}, badReply("more granted than asked for")
	}
	if !decided {
		g.Admitted = []int{}
		return g, nil
	}
	if g.Admitted, err = readAdmitted(n[bucketReply:], costs); err != nil {
		return lease.Grant{}, err
	}
	if h.ID == "" { // else what was lent came out of the level too
		err = checkAdmitted(g.Admitted, req.Limit, costs, g.Level)
	}
	return g, err
}

// readAdmitted reads how many of each run were admitted.
func readAdmitted(n []int64, costs []lease.Run) ([]int, error) {
	admitted := make([]int, len(costs))
	for i, c := range costs {
		if n[i] < 0 || n[i] > int64(c.Count) {
			return nil, badReply("more admitted than asked for")
		}
		admitted[i] = int(n[i])
	}
	return admitted, nil
}

// checkAdmitted says what is wrong with the requests admitted, level being what they left: going back from there, each
// run must have got what the level before it paid for.
func checkAdmitted(admitted []int, lim limit.Limit, costs []lease.Run, level int64) error {
	burst := int64(lim.Burst)
	for i, c := range slices.Backward(costs) {
		n, cost := int64(admitted[i]), int64(c.Cost)
		switch {
		case level > burst:
			return badReply("more left than the burst")
		case n < int64(c.Count) && (level >= cost || cost == 0):
			return badReply("refused what was left")
		case cost > 0 && n > (burst-level)/cost:
			return badReply("more admitted than the burst")
		}
		level += n * cost
	}
	if level > burst {
		return badReply("more left than the burst")
	}
	return nil
}
