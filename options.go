package hybrid

import (
	"fmt"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// Options of a Limiter. The zero value is ready to use; New copies and checks them.
type Options struct {
	// Prefix is put before every key in Redis. Limiters with different prefixes never meet; those with the same
	// prefix share the buckets of equal keys, and so does remote.NewTokenBucket. No braces. Default "hybrid:".
	Prefix string
	// LeaseSize is how many tokens one call to Redis fetches for a key. More means fewer calls, and more tokens that
	// one process holds while another asks for them. It is clamped to MaxLeased of the burst. Default: what the rate
	// brings in 5 % of the time that the burst lasts, at most a second's worth.
	LeaseSize int
	// LeaseTTL is how long fetched tokens may be spent; then they are void and come back to the bucket only by
	// refill. Default: four times the time a default lease is sized for, at least 40ms. Clamped to Burst/(2*Rate).
	LeaseTTL time.Duration
	// MaxLeased is the largest share of the burst that one lease may have, above 0 and at most 1. Default 0.25.
	MaxLeased float64
	// MaxKeys is how many keys this process remembers; the least recently used are forgotten, and the tokens leased
	// for them with them. The buckets in Redis are not touched. Default 65536.
	MaxKeys int
	// Timeout bounds one call to Redis, whatever the contexts of the callers say. Default 100ms.
	Timeout time.Duration
}

// Defaults of Options.
const (
	defaultMaxLeased = 0.25
	defaultMaxKeys   = 65536
)

// complete returns the options with defaults filled in, or an error that wraps ErrInvalid.
func (o Options) complete() (Options, error) {
	bad := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("%w: Options."+format, append([]any{limit.ErrInvalid}, args...)...)
	}
	if o.Prefix == "" {
		o.Prefix = remote.DefaultPrefix
	}
	if o.MaxLeased == 0 {
		o.MaxLeased = defaultMaxLeased
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if o.Timeout == 0 {
		o.Timeout = remote.DefaultTimeout
	}
	switch {
	case strings.ContainsAny(o.Prefix, "{}"):
		return bad("Prefix must not contain braces")
	case o.LeaseSize < 0:
		return bad("LeaseSize %d is negative", o.LeaseSize)
	case o.LeaseTTL < 0:
		return bad("LeaseTTL %v is negative", o.LeaseTTL)
	case !(o.MaxLeased > 0 && o.MaxLeased <= 1): // written so that NaN is refused too
		return bad("MaxLeased %v must be above 0 and at most 1", o.MaxLeased)
	case o.MaxKeys < 0:
		return bad("MaxKeys %d is negative", o.MaxKeys)
	case o.Timeout < 0:
		return bad("Timeout %v is negative", o.Timeout)
	}
	return o, nil
}
