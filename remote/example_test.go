package remote_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// startClient returns a client of a Redis that is embedded in the program.
func startClient() (rdb *redis.Client, stop func()) {
	m, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	m.ClockTTL(true) // else keys never expire
	rdb = redis.NewClient(remote.Recommended(&redis.Options{Addr: m.Addr()}))
	return rdb, func() {
		rdb.Close()
		m.Close()
	}
}

func ExampleTokenBucket() {
	rdb, stop := startClient()
	defer stop()
	bucket, err := remote.NewTokenBucket(rdb, limit.PerHour(60).WithBurst(2), remote.Options{Timeout: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		res, err := bucket.Allow(context.Background(), "customer-42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(res.Allowed, res.Remaining, res.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 1m0s
}

// The five algorithms have one shape. Windows have no burst beside their rate.
func Example() {
	rdb, stop := startClient()
	defer stop()
	lim, opts := limit.PerDay(3), remote.Options{Timeout: time.Second}
	bucket, err1 := remote.NewTokenBucket(rdb, lim, opts)
	gcra, err2 := remote.NewGCRA(rdb, lim, opts)
	window, err3 := remote.NewFixedWindow(rdb, lim, opts)
	slidingLog, err4 := remote.NewSlidingLog(rdb, lim, opts)
	counter, err5 := remote.NewSlidingCounter(rdb, lim, opts)
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			log.Fatal(err)
		}
	}
	for _, l := range []limit.Limiter{bucket, gcra, window, slidingLog, counter} {
		res, err := l.AllowN(context.Background(), "customer-42", 2)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%T: %d left\n", l, res.Remaining)
	}
	// Output:
	// *remote.TokenBucket: 1 left
	// *remote.GCRA: 1 left
	// *remote.FixedWindow: 1 left
	// *remote.SlidingLog: 1 left
	// *remote.SlidingCounter: 1 left
}

// Advice says what outages would make of the settings of a client.
func ExampleAdvice() {
	rdb := redis.NewClient(&redis.Options{Addr: "redis:6379"})
	defer rdb.Close()
	for _, line := range remote.Advice(rdb) {
		fmt.Println(line)
	}
	better := redis.NewClient(remote.Recommended(&redis.Options{Addr: "redis:6379"}))
	defer better.Close()
	fmt.Println(len(remote.Advice(better)))
	// Output:
	// ContextTimeoutEnabled is false: the client goes on waiting for replies that the limiter has given up, and each call needs a goroutine of its own
	// DialerRetries is not 1: while Redis is down a call waits for several attempts to connect
	// 0
}
