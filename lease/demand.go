package lease

import (
	"math"
	"time"
)

// Demand estimates how many tokens per second one process needs for one key. Times are nanoseconds of any clock. The
// zero value knows nothing. It is not safe for concurrent use.
type Demand struct {
	rate   float64 // tokens per second
	steady float64 // the same as a mean over steadyTime
	tau    time.Duration

	since    int64 // start of the current sample; tokens in it:
	admitted int64
	denied   int64

	refused int64 // until when the last refusal held off; 0 if there was none
	leased  int64 // when the last lease came, and how large it was
	size    int64
}

// Weights with which a new sample counts: demand that rises is believed sooner than demand that falls.
const (
	riseWeight = 0.5
	fallWeight = 0.25
)

// steadyTime is long enough for an estimate that is not mostly chance.
const steadyTime = 250 * time.Millisecond

// Add notes tokens that were admitted and tokens that were denied since the last call, and takes a sample when half of
// tau has passed.
func (d *Demand) Add(now int64, tau time.Duration, admitted, denied int64) {
	if d.tau == 0 {
		d.since = now
	}
	d.tau = tau
	d.admitted += admitted
	d.denied += denied
	elapsed := time.Duration(now - d.since)
	if elapsed < max(tau/2, 1) {
		return
	}
	// A flood of denials is not a need: it counts at most as much as what was admitted, and a little to begin with.
	sample := float64(d.admitted+min(d.denied, d.admitted+minLeased)) / elapsed.Seconds()
	weight := riseWeight
	if sample < d.rate {
		weight = fallWeight
	}
	// A long silence is many samples.
	weight = 1 - math.Pow(1-weight, max(1, 2*float64(elapsed)/float64(tau)))
	d.rate += weight * (sample - d.rate)
	d.steady += (1 - math.Exp(-float64(elapsed)/float64(steadyTime))) * (sample - d.steady)
	d.since, d.admitted, d.denied = now, 0, 0
}

// PerSecond is the estimate.
func (d *Demand) PerSecond() float64 { return d.rate }

// InTau is the estimate for the time a lease is sized for: the weight of this process among others.
func (d *Demand) InTau() int64 { return int64(math.Ceil(d.rate * d.tau.Seconds())) }

// Leased notes that a lease of so many tokens came.
func (d *Demand) Leased(now, size int64) { d.leased, d.size = now, size }

// Refused notes that the bucket was dry and the process holds off until then, see Refusal.Until.
func (d *Demand) Refused(until int64) { d.refused = until }

// paced is whether the process has been holding off until a moment ago: requests are waiting for it to ask again, or will
// soon.
func (d *Demand) paced(now int64) bool {
	return d.refused != 0 && time.Duration(now-d.refused) < 4*minPace
}

// begun is how many tokens were used since the last sample, which is less than half of tau ago. Of a key that was idle
// it is all that is known; without it the first half of tau would be exact calls, however many come.
func (d *Demand) begun() float64 { return float64(d.admitted) }

// doubled is twice the last lease if it was used up within half of tau, else 0: an estimate that lags behind demand
// must not hold it down.
func (d *Demand) doubled(now int64) int64 {
	if d.size == 0 || time.Duration(now-d.leased) >= d.tau/2 {
		return 0
	}
	return 2 * d.size
}
