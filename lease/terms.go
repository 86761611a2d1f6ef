package lease

import (
	"fmt"
	"math"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Tuning are the settings from which Terms follow. The zero value is ready to use.
type Tuning struct {
	// Size leases so many tokens at a time; 0 lets demand decide.
	Size int
	// Refresh is the time a lease is sized for; 0 is 5 % of the time the burst lasts, at most 1s.
	Refresh time.Duration
	// TTL is how long a lease lives; 0 is 4*Refresh, at least 40ms. At most Burst/(2*Rate) in any case.
	TTL time.Duration
	// MaxLeased is the share of the burst that all processes together may hold; 0 is 0.25.
	MaxLeased float64
	// Slack is the share of the burst by which the bound may be exceeded.
	Slack float64
}

// Validate returns nil, or an error that wraps limit.ErrInvalid and says what to change.
func (t Tuning) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: Options."+format, append([]any{limit.ErrInvalid}, args...)...)
	}
	switch {
	case t.Size < 0:
		return bad("LeaseSize %d is negative", t.Size)
	case t.Refresh < 0:
		return bad("Refresh %v is negative", t.Refresh)
	case t.TTL < 0:
		return bad("LeaseTTL %v is negative", t.TTL)
	case !(t.MaxLeased >= 0 && t.MaxLeased <= 1): // so that NaN is refused too
		return bad("MaxLeased %v must be between 0 and 1", t.MaxLeased)
	case !(t.Slack >= 0 && t.Slack <= 1):
		return bad("Slack %v must be between 0 and 1", t.Slack)
	}
	return nil
}

// Terms are the conditions of the leases under one limit: tau and T of docs/protocol.md, and what follows from them.
type Terms struct {
	Limit limit.Limit
	// Tau is the time a lease is sized for; TTL how long one lives.
	Tau, TTL time.Duration
	// Fixed is the size of a lease, or 0 if demand decides.
	Fixed int64
	// MaxLeased is how many tokens all processes together may hold, and Slack by how many the bound may be exceeded.
	MaxLeased, Slack int64
	// Dry is the level below which the bucket counts as dry: what the rate brings in 2*Tau, or in the time for which a
	// process holds off.
	Dry int64
}

const (
	defaultMaxLeased = 0.25
	refreshShare     = 0.05
	maxTau           = time.Second
	minTTL           = 40 * time.Millisecond
)

// NewTerms works out the terms of a valid limit that has a rate.
func NewTerms(lim limit.Limit, t Tuning) Terms {
	lasts := lim.ResetAfter(0) // Burst/Rate
	if t.MaxLeased == 0 {
		t.MaxLeased = defaultMaxLeased
	}
	tau := t.Refresh
	if tau == 0 {
		tau = min(time.Duration(refreshShare*float64(lasts)), maxTau)
	}
	tau = max(min(tau, lasts), time.Microsecond) // a lease for longer would be more than the burst
	ttl := t.TTL
	if ttl == 0 {
		ttl = max(4*min(tau, lasts/4), minTTL)
	}
	// A lease must end while the tokens it keeps from refilling are still less than half a burst.
	ttl = max(min(ttl, lasts/2), time.Microsecond)
	terms := Terms{
		Limit: lim, Tau: tau, TTL: ttl,
		MaxLeased: int64(t.MaxLeased * float64(lim.Burst)),
		Slack:     int64(t.Slack * float64(lim.Burst)),
		Dry:       dry(lim, tau),
	}
	if t.Size > 0 {
		terms.MaxLeased = max(1, terms.MaxLeased)
		terms.Fixed = min(int64(t.Size), terms.MaxLeased)
	}
	return terms
}

// dry is what the rate brings in 2*tau, or between two calls of a process that holds off, whichever is more: else such a
// process would find the bucket not dry, and have to ask once more to hear that it is. But no more than an eighth of
// the burst for that.
func dry(lim limit.Limit, tau time.Duration) int64 {
	paced := min(perSecond(lim)*minPace.Seconds(), float64(lim.Burst)/8)
	return int64(math.Ceil(max(2*perSecond(lim)*tau.Seconds(), paced)))
}

// perSecond is the rate of a limit in tokens per second.
func perSecond(lim limit.Limit) float64 { return float64(lim.Rate) / lim.Period.Seconds() }

// Life is how long tokens of a lease may be spent, counted from the moment the request was sent: a little less than the
// bucket thinks, for clocks that do not run alike.
func Life(ttl time.Duration) time.Duration {
	return max(0, ttl-ttl/1000-time.Millisecond)
}

const (
	// minLeased is the smallest lease that saves a call.
	minLeased = 2
	// A lease is worth it for a key that needs so many tokens in Tau. Fewer, and the estimate is mostly chance: many
	// processes that now and then lease a few tokens which they then do not need keep them from those that do.
	worthLeasing = 6
	// manyCalls a second are too many to ask each time, however short Tau is.
	manyCalls = 50
	// headroom is for demand that is not even. The next lease is asked for when a quarter is left, see Mark, so with
	// 4/3 a lease lasts Tau.
	headroom = 4.0 / 3
)

// Want is how many tokens a process with the given demand wants to hold after its next call, when it holds held tokens
// now. 0 means that leasing is not worth it: the bucket decides each batch of callers.
//
// A process that comes back from a refusal wants to get by until it may ask again. Else a key under flood would cost two
// or three calls each time: one that gets a little, and one to hear that there is no more.
func (t Terms) Want(d *Demand, rtt *RTT, held, now int64) int64 {
	if rtt.High() >= Life(t.TTL) {
		return 0 // it would be over before it came
	}
	if t.Fixed > 0 {
		return held + t.Fixed
	}
	if rtt.High() > t.TTL/10 {
		return 0
	}
	doubled := d.doubled(now)
	need := max(d.PerSecond()*t.Tau.Seconds(), d.begun())
	worth := need >= worthLeasing || d.steady >= manyCalls || doubled > 0
	want := int64(math.Ceil(need * headroom))
	if paced := d.PerSecond() * max(t.Tau, minPace).Seconds(); d.paced(now) && paced >= 1 {
		want, worth = max(int64(math.Ceil(paced*headroom)), minLeased), true
	}
	want = min(max(want, doubled), t.MaxLeased)
	if !worth || want < minLeased {
		return 0
	}
	return want
}

// Mark is how many tokens are left when the next lease of so many is asked for ahead of need; 0 means not ahead.
func (t Terms) Mark(d *Demand, rtt *RTT, size int64) int64 {
	if size < 3 {
		return 0
	}
	need := int64(2 * d.PerSecond() * rtt.High().Seconds())
	return min(max(need, size/4), size/2)
}

// Idle is how long a lease must lie untouched before it is given back.
func (t Terms) Idle() time.Duration { return max(t.Tau, t.TTL/4) }
