package fleet

import (
	"math"
	"math/rand/v2"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// expected is how many requests an instance has been asked for on average until t, in seconds since the start.
func expected(s scenario.Scenario, instance int, t float64) float64 {
	n, per := float64(s.Instances), s.Demand.PerInstance
	switch s.Demand.Pattern {
	case scenario.Bursty: // within the first tenth of each second
		whole, part := math.Modf(t)
		return per * (whole + min(10*part, 1))
	case scenario.Skewed: // 1/2, 1/4, 1/8, ...; the last two get the same, so that it adds up
		return n * per * t * math.Ldexp(1, -min(instance+1, s.Instances-1))
	case scenario.Roaming:
		rounds := math.Floor(t / n)
		return n * per * (rounds + min(1, max(0, t-n*rounds-float64(instance))))
	case scenario.Flood:
		return 10 * per * t
	}
	return per * t
}

// arrivals are the requests that one instance is asked for, at random moments: a Poisson process of the expected
// intensity. The same scenario gives the same moments in each run.
type arrivals struct {
	scenario scenario.Scenario
	instance int
	rng      *rand.Rand
	next     float64 // when the next one comes, as how many are expected until then
}

func newArrivals(s scenario.Scenario, instance int) *arrivals {
	a := &arrivals{scenario: s, instance: instance, rng: rand.New(rand.NewPCG(1, uint64(instance)))}
	a.next = a.rng.ExpFloat64()
	return a
}

// due is how many have come since the last call until t.
func (a *arrivals) due(t float64) (n int) {
	for until := expected(a.scenario, a.instance, t); a.next <= until; n++ {
		a.next += a.rng.ExpFloat64()
	}
	return n
}
