package remote

import (
	_ "embed"

	"github.com/hybridlimit/hybrid/limit"
)

//go:embed sliding_counter.lua
var slidingCounterSource string

var slidingCounterScript = newScript(slidingCounterSource)

// SlidingCounter estimates a sliding log from the counts of two fixed windows: the older one counts in proportion to
// how much of it the sliding window still covers. It is exact when traffic is even within the older window.
//
// A limiter with another Period counts apart, even with the same prefix and key; one with another Rate goes on with
// the count.
type SlidingCounter struct{ Limiter }

// NewSlidingCounter returns a SlidingCounter. The limit must have Burst == Rate, a Period of whole milliseconds, and
// pass limit.ValidateCounter; errors wrap limit.ErrInvalid.
func NewSlidingCounter(rdb Client, lim limit.Limit, opts Options) (*SlidingCounter, error) {
	if err := lim.ValidateCounter(); err != nil {
		return nil, err
	}
	unit := lim.CounterUnit()
	l, err := newLimiter(rdb, lim, opts, newWindow("sc1", slidingCounterScript, lim, int64(lim.Period/unit), lim.Rate, unit.Microseconds()))
	if err != nil {
		return nil, err
	}
	return &SlidingCounter{l}, nil
}
