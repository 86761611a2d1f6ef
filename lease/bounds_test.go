package lease_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

var simulationSeed = flag.Uint64("simulation.seed", 1, "seed of the simulations")

// Leases must not admit much less than one bucket for all would.
func TestShortfall(t *testing.T) {
	for _, tt := range []struct {
		nodes int
		lim   limit.Limit
	}{
		{10, limit.PerSecond(2000)},
		{50, limit.PerSecond(200)},
	} {
		ls := loads(tt.nodes, float64(tt.lim.Rate))
		for _, name := range []string{"even 2x", "even 0.8x", "skewed 2x", "bursts", "roaming"} {
			s := newSimulation(*simulationSeed, tt.nodes, tt.lim, lease.Tuning{})
			length := simulated
			s.run(length, ls[name])
			most := promised(s.nodes[0].terms)
			busiest := int64(0)
			for _, n := range s.nodes {
				busiest = max(busiest, n.calls)
			}
			t.Logf("%2d processes, %v, %-9s  admitted/ideal %.4f  shortfall at most %.0f of %.0f  calls/request %.3f  calls/s %.0f, busiest %.0f",
				tt.nodes, tt.lim, name, s.ratio(), s.shortfall, most, float64(s.calls)/float64(s.requests),
				float64(s.calls)/length.Seconds(), float64(busiest)/length.Seconds())
			if s.ratio() < 0.995 || s.shortfall > most {
				t.Errorf("%d processes, %v, %s: admitted/ideal %.4f, shortfall %.0f; want 0.995, %.0f", tt.nodes, tt.lim, name, s.ratio(), s.shortfall, most)
			}
		}
	}
}

// The calls of one process for one key are bounded by numbers that do not depend on how many requests come.
func TestCalls(t *testing.T) {
	for _, burst := range []time.Duration{350 * time.Millisecond, 500 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, rate := range []int{40, 100, 200, 400, 1000, 10_000} {
			for _, kind := range []struct {
				name string
				load float64 // as a share of the rate
				most float64
			}{
				{"busy", 0.3, 60}, {"busy", 0.5, 60}, {"busy", 0.9, 60}, {"flood", 2, 60}, {"flood", 10, 25},
			} {
				if kind.name == "flood" && burst < 500*time.Millisecond {
					continue
				}
				lim := limit.PerSecond(rate)
				lim.Burst = int(float64(rate) * burst.Seconds())
				s := newSimulation(*simulationSeed, 1, lim, lease.Tuning{})
				const warm, length = 2 * time.Second, 3 * time.Second
				l := func(int, time.Duration) float64 { return kind.load * float64(rate) }
				s.run(warm, l)
				s.queue = nil
				s.nodes[0].flying, s.nodes[0].watched = false, false
				before, requests := s.calls, s.requests
				s.run(length, l)
				perSecond := float64(s.calls-before) / length.Seconds()
				what := fmt.Sprintf("%d/s for %v, %s %.1fx", rate, burst, kind.name, kind.load)
				t.Logf("%-31s  calls/s %.0f  calls/request %.4f", what, perSecond, float64(s.calls-before)/float64(s.requests-requests))
				if perSecond > kind.most {
					t.Errorf("%s: %.1f calls/s, want at most %.0f", what, perSecond, kind.most)
				}
			}
		}
	}
}
