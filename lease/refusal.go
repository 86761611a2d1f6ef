package lease

import (
	"math"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

// Refusal is a reply by which the bucket was dry. Until it has had time to fill, requests that cost as much are denied
// without asking again: a flood on a dry key must not become a flood on Redis. Times are nanoseconds of any clock.
type Refusal struct {
	// A flood of requests looks only at these.
	cost  int64
	until int64
	open  int64 // when the refusal has ended and the refill alone has paid cost
	full  int64 // when it has filled the bucket, not before open
	next  int64 // when the next token comes, and how many there are until then
	left  int

	rate  bucket.Rate
	burst int64
	level bucket.Level // at the time at, from which on it rises
	at    int64
}

// Bounds of the time for which a refusal is believed.
const (
	// maxHoldOff: tokens that others give back, and a key that was reset, are not missed for longer.
	maxHoldOff = time.Second
	// minPace is how long to let a dry bucket gather tokens, at least: about 20 calls a second for each process.
	minPace = 60 * time.Millisecond
)

// NewRefusal makes a refusal of requests that cost at least cost from a grant whose request was sent at sent. chance is
// a random number in [0, 1) that keeps processes from asking in step.
//
// It holds off until the refill alone can have paid the cost, even if all that is lent came back at once, and for a
// pace in any case: the time a lease is sized for, or the time in which the rate brings a token for each process. It
// counts from the time of sending, which is before the time of the bucket's answer.
func NewRefusal(t Terms, g *Grant, cost, sent int64, chance float64) *Refusal {
	r := newRefusal(t, g, cost, sent)
	perHolders := min(float64(g.Holders)/perSecond(t.Limit), maxHoldOff.Seconds())
	pace := max(t.Tau, minPace, time.Duration(perHolders*float64(time.Second)))
	pace = min(pace, t.Limit.ResetAfter(0)/2) // no longer than the bucket can take in what it gathers
	pace = time.Duration(float64(pace) * (0.75 + 0.25*chance))
	return r.hold(sent + int64(min(max(pace, r.certain(g)), maxHoldOff)))
}

// NewCertainRefusal is NewRefusal without a pace: it holds off only as long as nothing can pay the cost.
func NewCertainRefusal(t Terms, g *Grant, cost, sent int64) *Refusal {
	r := newRefusal(t, g, cost, sent)
	return r.hold(sent + int64(min(r.certain(g), maxHoldOff)))
}

func newRefusal(t Terms, g *Grant, cost, sent int64) *Refusal {
	return &Refusal{
		cost: cost, rate: bucket.NewRate(int64(t.Limit.Rate), t.Limit.Period.Microseconds()), burst: int64(t.Limit.Burst),
		level: bucket.Level{N: g.Level, F: g.Frac}, at: sent + int64(g.Lag),
	}
}

// hold makes the refusal last until then, and works out the rest.
func (r *Refusal) hold(until int64) *Refusal {
	r.until = until
	r.open = max(until, r.paid(r.cost))
	r.full = max(r.open, r.paid(r.burst))
	r.left, r.next = int(max(0, r.level.N)), r.paid(min(max(0, r.level.N)+1, r.burst))
	if r.level.N >= r.burst {
		r.next = math.MaxInt64
	}
	return r
}

// Answered notes that the answer to the request, which took so long, has come. The level is of some moment in between,
// and a caller who waits as told must not come too early.
func (r *Refusal) Answered(took time.Duration) {
	r.at += int64(took)
	r.hold(r.until)
}

// paid is when the refill alone has paid a cost.
func (r *Refusal) paid(cost int64) int64 {
	return int64(later(r.level.Wait(r.rate, cost), time.Duration(r.at)))
}

// certain is how long the cost cannot be paid, even if all that is lent came back at once.
func (r *Refusal) certain(g *Grant) time.Duration {
	back := bucket.Level{N: min(g.Level+g.Lent, r.burst), F: g.Frac}
	wait := back.Wait(r.rate, r.cost)
	if wait == 0 {
		return 0
	}
	return later(wait, g.Lag)
}

// Denies decides a request from memory, if the refusal still holds and covers it.
func (r *Refusal) Denies(now, cost int64) (limit.Result, bool) {
	if r == nil || cost < r.cost || now >= r.until {
		return limit.Result{}, false
	}
	open, full, left := r.open, r.full, r.left
	if cost > r.cost {
		open = max(r.until, r.paid(cost))
		full = max(open, full)
	}
	if now >= r.next {
		left = int(max(0, r.level.After(r.rate, r.burst, (now-r.at)/1000).N))
	}
	// Not before the refusal ends: until then this process does not ask.
	return limit.Result{
		Verdict:    limit.Verdict{Origin: limit.Local},
		Remaining:  left,
		RetryAfter: time.Duration(open - now),
		ResetAfter: time.Duration(full - now),
	}, true
}

// Again is what Denies says of a request that costs just what was refused, if the refusal lasts for a while longer and no
// token has come since: then nothing has to be worked out. In a flood nearly all are such.
func (r *Refusal) Again(now, longer, cost int64) (limit.Result, bool) {
	return limit.Result{
		Verdict: limit.Verdict{Origin: limit.Local}, Remaining: r.left,
		RetryAfter: time.Duration(r.open - now), ResetAfter: time.Duration(r.full - now),
	}, cost == r.cost && now < r.next && now < r.until-longer
}

// Until is when the refusal ends; 0 if there is none.
func (r *Refusal) Until() int64 {
	if r == nil {
		return 0
	}
	return r.until
}
