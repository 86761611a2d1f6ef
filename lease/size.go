package lease

import (
	"math"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Bounds of the time that a lease is sized for and of its life.
const (
	maxRefresh = time.Second
	minTTL     = 40 * time.Millisecond
	// refreshShare is the part of the time that a burst lasts at the limit's rate for which a lease is sized: what
	// the processes hold is on average this part of the burst.
	refreshShare = 0.05
)

// Refresh is the time a lease is sized for when nothing else is said: 5 % of the time in which lim fills its burst, at
// most a second.
func Refresh(lim limit.Limit) time.Duration {
	return min(time.Duration(refreshShare*float64(lim.ResetAfter(0))), maxRefresh)
}

// TTL is how long a lease lives when ttl was asked for, 0 meaning four times Refresh and at least 40ms. It is never
// more than half the time in which lim fills its burst, so that tokens which nobody spends are not missed for long.
func TTL(lim limit.Limit, ttl time.Duration) time.Duration {
	if ttl == 0 {
		ttl = max(4*Refresh(lim), minTTL)
	}
	return min(ttl, lim.ResetAfter(0)/2)
}

// Size is how many tokens a lease has when size were asked for, 0 meaning as many as lim brings in Refresh. It is at
// most share of the burst, and at least 1.
func Size(lim limit.Limit, size int, share float64) int {
	if size == 0 {
		size = int(math.Ceil(float64(lim.Rate) * float64(Refresh(lim)) / float64(lim.Period)))
	}
	return max(1, min(size, int(share*float64(lim.Burst))))
}
