package local_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func ExampleTokenBucket() {
	bucket, err := local.NewTokenBucket(limit.Limit{Rate: 10, Period: time.Hour, Burst: 3}, local.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		res, err := bucket.Allow(context.Background(), "alice")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(res.Allowed, res.Remaining, "wait", res.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 2 wait 0s
	// true 1 wait 0s
	// true 0 wait 0s
	// false 0 wait 6m0s
}
