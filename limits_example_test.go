package hybrid_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/remote"
)

// A limit that is tried out decides nothing: Stats say what it would have denied.
func ExampleOptions_shadow() {
	addr, stop := startRedis()
	defer stop()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()

	lim, err := hybrid.New(rdb, hybrid.PerMinute(3), hybrid.Options{Shadow: true})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	served := 0
	for range 5 {
		if res, err := lim.Allow(context.Background(), "customer-42"); err == nil && res.Allowed {
			served++
		}
	}
	fmt.Println("served", served, "and would have denied", lim.Stats().Shadowed)
	// Output:
	// served 5 and would have denied 2
}

// A limiter for a Redis in another region, 100 ms away.
func ExampleOptions_farRedis() {
	addr, stop := startRedis()
	defer stop()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()

	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000).WithBurst(6000), hybrid.Options{
		Timeout: 500 * time.Millisecond, // five round trips
	})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	fmt.Println(lim)
	// Output:
	// hybrid: 1000/s burst 6000, leases of 300ms of demand, each for 1.2s, at most 1500 tokens lent, slack 0, dry below 600
}

// A share for each region, which grows when another region is gone.
func ExampleLimiter_SetLimit_regions() {
	addr, stop := startRedis()
	defer stop()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()

	share := func(regions int) hybrid.Limit { return hybrid.PerSecond(1200 / regions) }
	lim, err := hybrid.New(rdb, share(3), hybrid.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	regionGone := func(left int) error { return lim.SetLimit(share(left)) } // in every process of the others
	if err := regionGone(2); err != nil {
		log.Fatal(err)
	}
	fmt.Println(lim.LimitOf("customer-42"))
	// Output:
	// 600/s
}

// A batch costs as much as its parts, and a message of a stream what a request does.
func ExampleLimiter_AllowN_batch() {
	addr, stop := startRedis()
	defer stop()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()
	lim, err := hybrid.New(rdb, hybrid.PerMinute(100), hybrid.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	batch := make([]string, 60) // operations, aliases, rows: what the client has put into one request
	for range 2 {
		res, err := lim.AllowN(context.Background(), "account:42", len(batch))
		fmt.Println(res.Allowed, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// What is slow is limited by how many run at once, which is no rate.
func Example_concurrency() {
	const most = 2
	running := make(chan struct{}, most)
	var refused atomic.Int64
	slow := func(work func()) {
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
			work()
		default:
			refused.Add(1) // answer 503
		}
	}
	slow(func() { slow(func() { slow(func() {}) }) })
	fmt.Println("refused", refused.Load())
	// Output:
	// refused 1
}
