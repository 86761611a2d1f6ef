package fleet

import (
	"context"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

// ideal is one limiter in memory that sees all requests, at the moment at which they are asked: what the fleet would be
// without distance and without faults. For modes that count in windows it counts in the same way, with the same windows
// of the clock; for all others it is a token bucket.
type ideal struct {
	lim limit.Limiter
	now time.Time
}

func newIdeal(m scenario.Mode, l limit.Limit) (*ideal, error) {
	i := &ideal{}
	opts := local.Options{MaxKeys: 1, Now: func() time.Time { return i.now }}
	var err error
	switch m {
	case scenario.FixedWindow:
		i.lim, err = local.NewFixedWindow(l, opts)
	case scenario.SlidingLog:
		i.lim, err = local.NewSlidingLog(l, opts)
	case scenario.SlidingCounter:
		i.lim, err = local.NewSlidingCounter(l, opts)
	default:
		i.lim, err = local.NewTokenBucket(l, opts)
	}
	return i, err
}

// ask returns how many of n requests of the same cost it admits at now, in microseconds since 1970.
func (i *ideal) ask(now int64, n, cost int) (admitted int) {
	i.now = time.UnixMicro(now)
	for ; admitted < n; admitted++ {
		if r, err := i.lim.AllowN(context.Background(), key, cost); err != nil || !r.Allowed {
			break // and so are the others, at the same time
		}
	}
	return admitted
}

// key is the only one that is asked for.
const key = "lab"
