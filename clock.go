package hybrid

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/lease"
)

// clock counts nanoseconds since the limiter was made, by the monotonic clock.
//
// Reading it costs more than all the rest of a decision, so the janitor leaves a reading here in each of its rounds while
// something is live. Where a little does not matter that one will do.
type clock struct {
	start  time.Time
	latest atomic.Int64 // the last reading, or stopped
	asked  atomic.Bool  // About was called since the last reading
}

// stopped stands for a reading when nobody takes any: it is later than any time, so whoever compares with it finds that it
// is not good enough, and takes one.
const stopped = math.MaxInt64

func (c *clock) init() {
	c.start = time.Now()
	c.latest.Store(stopped)
}

// Now reads the clock.
func (c *clock) Now() int64 { return int64(time.Since(c.start)) }

// About is the last reading, or stopped.
func (c *clock) About() int64 { return c.latest.Load() }

// Refresh is Now, and leaves the reading for others if the last one is old, as it may be on a busy machine.
func (c *clock) Refresh() int64 {
	now, last := c.Now(), c.latest.Load()
	if last != stopped && now-last > int64(time.Millisecond) {
		c.latest.CompareAndSwap(last, now) // else the janitor has just read it, or stopped
	}
	return now
}

// denialTime is the time by which a request is denied: exact when the refusal is about to end, else not older than one
// round of the janitor, so that a flood of denials does not read the clock for each.
func (l *Limiter) denialTime(r *lease.Refusal) int64 {
	c := &l.clock
	if now := c.About(); now < r.Until()-nearEnd && c.asked.Load() {
		return now
	}
	return l.exactDenialTime(r)
}

// nearEnd is how long before its end a refusal is told by the exact time.
const nearEnd = int64(2 * sweepEvery)

// exactDenialTime is denialTime by the clock; it keeps the janitor going for the next ones.
func (l *Limiter) exactDenialTime(r *lease.Refusal) int64 {
	c := &l.clock
	now := c.Now()
	if now < r.Until()-nearEnd {
		c.asked.Store(true)
		if c.About() == stopped {
			l.janitor.wake()
		}
	}
	return now
}
