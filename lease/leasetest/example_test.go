package leasetest_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
)

// Two limiters over one source are two processes that share Redis. The source can be told to fail.
func Example() {
	src := leasetest.NewSource()
	ctx := context.Background()
	var processes []*hybrid.Limiter
	for range 2 {
		lim, err := hybrid.NewFrom(src, hybrid.PerMinute(5), hybrid.Options{OnFailure: hybrid.FailClosed})
		if err != nil {
			log.Fatal(err)
		}
		defer lim.Close(ctx)
		processes = append(processes, lim)
	}

	served := 0
	for i := range 10 {
		res, err := processes[i%2].Allow(ctx, "customer-42")
		if err != nil {
			log.Fatal(err)
		}
		if res.Allowed {
			served++
		}
	}
	fmt.Println("served", served, "of 10")

	src.Down(errors.New("pulled the plug"))
	_, err := processes[0].Allow(ctx, "customer-43")
	fmt.Println("unavailable:", errors.Is(err, hybrid.ErrUnavailable))

	// Output:
	// served 5 of 10
	// unavailable: true
}
