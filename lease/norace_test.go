//go:build !race

package lease_test

import "time"

// simulated is how long a load lasts in virtual time. The race detector has nothing to find in a simulation.
const simulated = 60 * time.Second
