package lease_test

import (
	"fmt"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// What follows from a limit and the settings of its leases, after clamping.
func ExampleNewTerms() {
	t := lease.NewTerms(limit.PerSecond(1000), lease.Tuning{Size: 400, TTL: 2 * time.Second})
	fmt.Println(t.Fixed, "tokens at a time, for", t.TTL, "and at most", t.MaxLeased, "in all")
	// Output:
	// 250 tokens at a time, for 500ms and at most 250 in all
}
