package fleet

import (
	"math"
	"testing"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

func TestDemandAddsUp(t *testing.T) {
	for _, p := range scenario.Patterns() {
		for _, n := range []int{1, 2, 5} {
			s := scenario.Default()
			s.Instances, s.Demand = n, scenario.Demand{Pattern: p, PerInstance: 30}
			seconds := float64(2 * n) // whole rounds
			sum := 0.0
			for i := range n {
				sum += expected(s, i, seconds)
				last := 0.0
				for at := 0.0; at <= seconds; at += 0.01 {
					if now := expected(s, i, at); now < last {
						t.Fatalf("%s: fewer at %v than before", p, at)
					} else {
						last = now
					}
				}
			}
			if want := s.PerSecond() * seconds; math.Abs(sum-want) > 1e-6 {
				t.Errorf("%s, %d instances: %v requests expected, want %v", p, n, sum, want)
			}
		}
	}
}

// Each pattern puts demand where it says.
func TestPatterns(t *testing.T) {
	s := scenario.Default()
	s.Instances = 4
	for _, c := range []struct {
		pattern  scenario.Pattern
		instance int
		at, want float64
	}{
		{scenario.Steady, 3, 1.5, 150},
		{scenario.Flood, 0, 1.5, 1500},
		{scenario.Bursty, 0, 0.05, 50}, {scenario.Bursty, 0, 0.1, 100}, {scenario.Bursty, 1, 0.9, 100}, {scenario.Bursty, 0, 3.05, 350},
		{scenario.Skewed, 0, 1, 200}, {scenario.Skewed, 1, 1, 100}, {scenario.Skewed, 2, 1, 50}, {scenario.Skewed, 3, 1, 50},
		{scenario.Roaming, 0, 0.5, 200}, {scenario.Roaming, 0, 3.9, 400}, {scenario.Roaming, 1, 1, 0}, {scenario.Roaming, 3, 3.5, 200}, {scenario.Roaming, 0, 4.5, 600},
	} {
		s.Demand = scenario.Demand{Pattern: c.pattern, PerInstance: 100}
		if got := expected(s, c.instance, c.at); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s, instance %d: %v until %v s, want %v", c.pattern, c.instance, got, c.at, c.want)
		}
	}
}

// Requests come at random, but the same in each run, and however often one looks.
func TestArrivals(t *testing.T) {
	s := scenario.Default()
	s.Demand.PerInstance = 1000
	a, b, c := newArrivals(s, 0), newArrivals(s, 0), newArrivals(s, 1)
	often, other := 0, 0
	differs := false
	for ms := range 10_000 {
		n, m := a.due(float64(ms)/1000), c.due(float64(ms)/1000)
		often, other, differs = often+n, other+m, differs || n != m
	}
	once := b.due(9.999)
	if often != once {
		t.Errorf("%d requests, and %d when one looks once", often, once)
	}
	if math.Abs(float64(once)-9999) > 6*100 { // six deviations
		t.Errorf("%d requests in 10 s, want about 10000", once)
	}
	if !differs {
		t.Error("two instances are asked at the same moments")
	}
}
