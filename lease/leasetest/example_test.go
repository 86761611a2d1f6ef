package leasetest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// A lost reply: the caller hears nothing, the tokens are gone all the same.
func ExampleSource() {
	src := leasetest.NewSource()
	src.Timeout = time.Millisecond

	ask := func() lease.Grant {
		grants := make([]lease.Grant, 1)
		src.Acquire(context.Background(), []lease.Request{{
			Key: "user:7", Limit: limit.PerMinute(10), Costs: []lease.Run{{Cost: 2, Count: 1}},
		}}, grants)
		return grants[0]
	}

	src.Next(leasetest.Fault{LoseReply: true})
	fmt.Println(errors.Is(ask().Err, limit.ErrUnavailable))
	fmt.Println(ask().Level)
	fmt.Println(src.Calls("user:7"))
	// Output:
	// true
	// 6
	// 2
}

// Two bursts of ten, a tenth of a second apart, at ten per second: only one token of the second burst is allowed.
func ExampleEnvelope() {
	var e leasetest.Envelope
	e.Add(0, 10)
	e.Add(100_000, 10)
	fmt.Println(e.Worst(limit.PerSecond(10)))
	// Output:
	// 20 tokens in the 100ms up to 100000 µs, +9 of what is allowed
}
