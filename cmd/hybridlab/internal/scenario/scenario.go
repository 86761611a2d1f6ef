// Package scenario says what the lab runs: a limit, how it is held, who asks, and what goes wrong.
package scenario

import (
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Scenario is one run of the lab. The zero value is not ready to use: begin with Default.
type Scenario struct {
	Name      string      `json:"name,omitempty"`
	Limit     limit.Limit `json:"limit"` // "1000/s burst 2000"
	Mode      Mode        `json:"mode"`
	Instances int         `json:"instances"`
	LeaseSize int         `json:"leaseSize,omitempty"` // 0: adaptive
	Refresh   Duration    `json:"refresh,omitempty"`   // 0: the library's default; so for the others below
	LeaseTTL  Duration    `json:"leaseTTL,omitempty"`
	MaxLeased float64     `json:"maxLeased,omitempty"`
	Slack     float64     `json:"slack,omitempty"`
	OnFailure string      `json:"onFailure,omitempty"` // "local", "closed", "open"
	Delay     Duration    `json:"delay,omitempty"`     // added to each round trip to Redis
	Demand    Demand      `json:"demand"`
	For       Duration    `json:"for"` // how long it runs
	Faults    []Fault     `json:"faults,omitempty"`
}

// Mode is how decisions are made.
type Mode string

// The modes, in the order in which they are offered.
const (
	Leased         Mode = "leased"
	Exact          Mode = "exact"
	TokenBucket    Mode = "token-bucket"
	GCRA           Mode = "gcra"
	FixedWindow    Mode = "fixed-window"
	SlidingLog     Mode = "sliding-log"
	SlidingCounter Mode = "sliding-counter"
)

// Demand is what the instances are asked for.
type Demand struct {
	Pattern     Pattern `json:"pattern"`
	PerInstance float64 `json:"perInstance"`    // requests per second, on average
	Cost        int     `json:"cost,omitempty"` // tokens of one request; 0 stands for 1
}

// Pattern is how demand is spread over time and instances.
type Pattern string

// The patterns, in the order in which they are offered.
const (
	Steady  Pattern = "steady"  // the same everywhere, at random moments
	Bursty  Pattern = "bursty"  // all of a second's requests within a tenth of it
	Skewed  Pattern = "skewed"  // the first instance gets half of all, the next half of the rest, and so on
	Roaming Pattern = "roaming" // one instance after the other gets all of it, a second each
	Flood   Pattern = "flood"   // ten times PerInstance
)

// Fault is something that goes wrong for a while.
type Fault struct {
	Kind     FaultKind `json:"kind"`
	At       Duration  `json:"at"`
	For      Duration  `json:"for"`
	Instance int       `json:"instance,omitempty"` // of Kill
}

// FaultKind is what goes wrong.
type FaultKind string

// The faults.
const (
	Hang FaultKind = "hang" // Redis takes requests and does not answer
	Kill FaultKind = "kill" // an instance dies without giving anything back, and is started again afterwards
)

// Duration is a time.Duration that is text in JSON: "150ms".
type Duration time.Duration
