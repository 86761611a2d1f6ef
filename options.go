package hybrid

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// Options of a Limiter. The zero value is ready to use; New copies and checks them.
type Options struct {
	// Prefix is put before every key in Redis. Limiters with different prefixes never meet; those with the same
	// prefix share the buckets of equal keys, and so does remote.NewTokenBucket. No braces. Default "hybrid:".
	Prefix string
	// LimitFor gives a key its own limit, for tiers; the zero Limit stands for the limiter's own. It is asked when
	// a key is first seen and before each call to Redis for it, must be quick and safe for concurrent use, and must
	// not call the limiter. If its answer is invalid the first call of the key fails with ErrInvalid; later the last
	// good answer stays in force. Default: every key has the limiter's own limit.
	LimitFor func(key string) limit.Limit
	// Exact keeps no tokens in memory: every decision comes from Redis, callers of one key grouped into one call.
	// Only denials that are certain are answered here. For keys where exactness matters more than speed; they may
	// be shared with limiters that lease.
	Exact bool
	// LeaseSize is how many tokens are leased at a time. It is clamped to MaxLeased of the burst. Default 0: as many
	// as demand needs in Refresh.
	LeaseSize int
	// LeaseTTL is how long leased tokens may be spent. It is clamped to Burst/(2*Rate). Default: four times Refresh,
	// at least 40ms.
	LeaseTTL time.Duration
	// MaxLeased is the largest share of the burst that all processes together may hold on lease. Default 0.25.
	MaxLeased float64
	// Slack is the share of the burst by which the bound may be exceeded, at most 1; among the processes that use a
	// key the largest counts. Default 0: strict.
	Slack float64
	// Refresh is the time a lease is sized for: the one tuning knob. Longer means fewer calls to Redis, and more
	// tokens that one process holds while another could use them. Default: 5 % of the time the burst lasts at the
	// limit's rate, at most 1s.
	Refresh time.Duration
	// MaxKeys is how many keys this process remembers; the least recently used are forgotten and their tokens given
	// back. The buckets in Redis are not touched. Default 65536.
	MaxKeys int
	// Timeout bounds one call to Redis, whatever the contexts of the callers say. A caller may have to wait as long
	// again for a call of the same key that is out already. It should be five round trips or more: a new connection is
	// made within the call that needs it, and takes up to four. Default 100ms.
	Timeout time.Duration
	// OnFailure decides requests while Redis does not answer. Default FailLocal.
	OnFailure FailurePolicy
	// Instances is how many processes share the limits, for FailLocal before Redis was ever seen; later the most that
	// were seen to share a key in the last minutes count, if they are more. Default 1.
	Instances int
	// Shadow decides and counts, and then allows everything: for trying a limit out before it is enforced. What would
	// have been denied is counted in Stats.Shadowed. Default false.
	Shadow bool
	// Observer is told of calls to Redis and of outages. Default: nobody is.
	Observer Observer
	// Logger gets a line when Redis stops answering, when it answers again, when it refuses requests, and from New for
	// what remote.Advice says of the client. No line holds a key. Default: nothing is logged.
	Logger *slog.Logger
}

const defaultMaxKeys = 65536

// complete returns the options with defaults filled in, or an error that wraps ErrInvalid.
func (o Options) complete() (Options, error) {
	bad := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("%w: Options."+format, append([]any{limit.ErrInvalid}, args...)...)
	}
	if o.Prefix == "" {
		o.Prefix = remote.DefaultPrefix
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if o.Timeout == 0 {
		o.Timeout = remote.DefaultTimeout
	}
	if o.Instances == 0 {
		o.Instances = 1
	}
	switch {
	case o.OnFailure < FailLocal || o.OnFailure > FailOpen:
		return bad("OnFailure %d is no policy", int(o.OnFailure))
	case o.Instances < 0:
		return bad("Instances %d is negative", o.Instances)
	case strings.ContainsAny(o.Prefix, "{}"):
		return bad("Prefix must not contain braces")
	case o.MaxKeys < 0:
		return bad("MaxKeys %d is negative", o.MaxKeys)
	case o.Timeout < 0:
		return bad("Timeout %v is negative", o.Timeout)
	}
	return o, o.tuning().Validate()
}

// tuning is the part of the options that shapes leases.
func (o Options) tuning() lease.Tuning {
	return lease.Tuning{Size: o.LeaseSize, Refresh: o.Refresh, TTL: o.LeaseTTL, MaxLeased: o.MaxLeased, Slack: o.Slack}
}
