package lease

import "time"

// RTT estimates the round trip to the bucket as TCP does (RFC 6298): a smoothed mean, and a smoothed deviation that is
// weighed four times to get a value which few round trips exceed. The zero value knows nothing. It is not safe for
// concurrent use.
type RTT struct {
	mean, deviation time.Duration
}

// Add notes one round trip.
func (r *RTT) Add(d time.Duration) {
	if r.mean == 0 {
		r.mean, r.deviation = d, d/2
		return
	}
	r.deviation += ((r.mean - d).Abs() - r.deviation) / 4
	r.mean += (d - r.mean) / 8
}

// High is a round trip that few exceed, or 0 before the first.
func (r *RTT) High() time.Duration { return r.mean + 4*r.deviation }
