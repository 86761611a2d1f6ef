package remote

import (
	_ "embed"
	"fmt"

	"github.com/hybridlimit/hybrid/limit"
)

//go:embed sliding_log.lua
var slidingLogSource string

var slidingLogScript = newScript(slidingLogSource)

// MaxLog is the largest Rate of a SlidingLog: about 12 MB of Redis memory for one key.
const MaxLog = 100_000

// SlidingLog admits at most Rate tokens in any window (t - Period, t], exactly. It remembers every admitted token, about
// 120 bytes each, and is meant for small limits that must hold to the letter.
//
// A limiter with another Period counts apart, even with the same prefix and key; one with another Rate goes on with
// the count.
type SlidingLog struct{ Limiter }

// NewSlidingLog returns a SlidingLog. The limit must have Burst == Rate, at most MaxLog, and a Period of whole
// milliseconds; errors wrap limit.ErrInvalid.
func NewSlidingLog(rdb Client, lim limit.Limit, opts Options) (*SlidingLog, error) {
	if err := lim.ValidateWindow(); err != nil {
		return nil, err
	}
	if lim.Rate > MaxLog {
		return nil, fmt.Errorf("%w: Rate %d is too large for a log of each token; at most %d, or use another algorithm", limit.ErrInvalid, lim.Rate, MaxLog)
	}
	l, err := newLimiter(rdb, lim, opts, newWindow("sl1", slidingLogScript, lim, lim.Period.Microseconds(), lim.Rate))
	if err != nil {
		return nil, err
	}
	return &SlidingLog{l}, nil
}
