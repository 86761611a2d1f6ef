// Package local holds rate limiters that live in the memory of one process: a token bucket, a fixed window, a sliding
// log and a sliding counter. They need no Redis and start no goroutine. All of them are safe for concurrent use.
//
// A limiter keeps the state of at most MaxKeys keys. When one more comes, the key that was asked for least recently is
// forgotten and has its whole allowance again when it comes back: a bounded memory can only do that or refuse new
// keys. Denials count as use, so a key that keeps asking is not forgotten. Choose MaxKeys well above the number of
// keys that are active within the time a limit takes to recover; a key of the sliding log needs up to 32 bytes per
// token of its limit, every other key about 200 bytes and its name.
//
// What the four admit with a limit of 60 per minute, for 60 requests at 0:59 and 60 at 1:00:
//
//	token bucket     60 + 1   never above Burst + Rate*W/Period in any window of length W
//	fixed window     60 + 60  never above Rate in a window that starts at a multiple of Period
//	sliding log      60 + 0   never above Rate in any window of length Period
//	sliding counter  60 + 0   as the log, if the requests of the previous window had come evenly
//
// Time is the monotonic clock of the process. A reading that lies up to 5 seconds back, as that of a delayed goroutine,
// counts as no time at all. If an injected clock is set back further, time goes on from the new reading: what was
// counted stays counted, and nothing waits for the old time to come round again.
package local

import (
	"fmt"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Options are the settings of every limiter of this package. The zero Options are ready to use.
type Options struct {
	// MaxKeys is how many keys are remembered; 0 means 65,536.
	MaxKeys int
	// Now is the clock; nil means time.Now. It is called inside the lock of the limiter, so it must not call the
	// limiter.
	Now func() time.Time
}

// withDefaults returns o with every default filled in; the error wraps limit.ErrInvalid.
func (o Options) withDefaults() (Options, error) {
	if o.MaxKeys < 0 {
		return o, fmt.Errorf("%w: MaxKeys %d must not be negative", limit.ErrInvalid, o.MaxKeys)
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = 65536
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}
