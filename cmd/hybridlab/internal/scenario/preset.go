package scenario

import (
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Presets are scenarios that show one thing each, all valid. The first is a good one to begin with.
func Presets() []Scenario {
	of := func(name string, change func(s *Scenario)) Scenario {
		s := Default()
		s.Name = name
		change(&s)
		return s
	}
	return []Scenario{
		of("Steady load", func(*Scenario) {}),
		of("One hot instance", func(s *Scenario) {
			s.Demand.Pattern = Skewed
			s.LeaseSize = 100
		}),
		of("Demand that roams", func(s *Scenario) {
			s.Demand = Demand{Roaming, 230, 1}
			s.LeaseSize = 250
		}),
		of("Flood", func(s *Scenario) {
			s.Demand = Demand{Flood, 500, 1}
		}),
		of("Redis hangs", func(s *Scenario) {
			s.Demand.PerInstance = 400
			s.Faults = []Fault{{Kind: Hang, At: Duration(6 * time.Second), For: Duration(4 * time.Second)}}
		}),
		of("An instance dies", func(s *Scenario) {
			s.LeaseSize = 50
			s.Faults = []Fault{{Kind: Kill, At: Duration(6 * time.Second), For: Duration(6 * time.Second), Instance: 1}}
		}),
		of("Far Redis (40 ms)", func(s *Scenario) {
			s.Delay = Duration(40 * time.Millisecond)
			s.Limit = limit.PerSecond(1000).WithBurst(4000)
		}),
	}
}
