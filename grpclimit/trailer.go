package grpclimit

import (
	"math"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/hybridlimit/hybrid/limit"
)

// The names in trailers; clients read them with grpc.Trailer.
const (
	// TrailerLimit is the burst: how many tokens there are at most at once.
	TrailerLimit = "x-ratelimit-limit"
	// TrailerRemaining is how many tokens are left; with leases an estimate.
	TrailerRemaining = "x-ratelimit-remaining"
	// TrailerReset is in how many seconds all tokens are there again, rounded up.
	TrailerReset = "x-ratelimit-reset"

	trailerPushback = "grpc-retry-pushback-ms" // of gRPC, read by its retry policies
)

// tell tells the result and the limit, which is the zero Limit if it is not known.
//
// Of an unlimited key there is nothing to tell, and a decision made without Redis knows nothing of the tokens that all
// processes share.
func tell(to metadata.MD, lim limit.Limit, res limit.Result) {
	if res.Origin == limit.Fallback || lim == limit.Unlimited() || res.Remaining == math.MaxInt {
		return
	}
	remaining, reset := max(0, res.Remaining), res.ResetAfter
	known := lim.Validate() == nil
	if known {
		remaining = min(remaining, lim.Burst) // the limit may have been changed in between
		to.Set(TrailerLimit, strconv.Itoa(lim.Burst))
		if reset == 0 {
			reset = lim.ResetAfter(remaining)
		}
	}
	to.Set(TrailerRemaining, strconv.Itoa(remaining))
	if reset != limit.Never && lim != limit.Blocked() && (known || reset > 0) {
		to.Set(TrailerReset, strconv.FormatInt(ceil(reset, time.Second), 10))
	}
}

// pushBack asks for the call to be sent again after wait, or, if it is longer than most, not to be.
func pushBack(to metadata.MD, wait, most time.Duration) {
	ms := int64(-1)
	if wait <= most {
		ms = ceil(wait, time.Millisecond)
	}
	to.Set(trailerPushback, strconv.FormatInt(ms, 10))
}

// ceil is d in a unit, rounded up.
func ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
