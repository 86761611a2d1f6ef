package hybrid_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
	"github.com/hybridlimit/hybrid/remote"
)

// startRedis starts a Redis that is embedded in the program, and returns its address.
func startRedis() (addr string, stop func()) {
	m, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	m.ClockTTL(true) // else keys never expire
	return m.Addr(), m.Close
}

func Example() {
	addr, stop := startRedis()
	defer stop()

	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()

	lim, err := hybrid.New(rdb, hybrid.PerMinute(3), hybrid.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background()) // gives unspent tokens back

	for range 4 {
		res, err := lim.Allow(context.Background(), "customer-42")
		switch {
		case err != nil: // bad input; that Redis is away is no error, see Options.OnFailure
			log.Print(err)
		case res.Allowed:
			fmt.Println("served,", res.Remaining, "left")
		default:
			fmt.Println("too many requests, try again in", res.RetryAfter.Round(time.Second))
		}
	}
	// Output:
	// served, 2 left
	// served, 1 left
	// served, 0 left
	// too many requests, try again in 20s
}

// A handle saves the look-up of a key that is asked for often.
func ExampleLimiter_Key() {
	addr, stop := startRedis()
	defer stop()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()
	lim, err := hybrid.New(rdb, hybrid.PerSecond(100), hybrid.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	upload := lim.Key("upload")
	res, err := upload.AllowN(context.Background(), 30) // as lim.AllowN(ctx, "upload", 30)
	fmt.Println(res.Allowed, err)
	// Output:
	// true <nil>
}

// silent is a source of leases that never answers, to see what a program does then.
type silent struct{}

func (silent) Acquire(_ context.Context, _ []lease.Request, grants []lease.Grant) {
	for i := range grants {
		grants[i].Err = fmt.Errorf("%w: pulled the plug", hybrid.ErrUnavailable)
	}
}

// NewFrom takes any source of leases, so tests need no Redis.
func ExampleNewFrom() {
	lim, err := hybrid.NewFrom(silent{}, hybrid.PerSecond(100), hybrid.Options{OnFailure: hybrid.FailClosed})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	_, err = lim.Allow(context.Background(), "customer-42")
	fmt.Println(errors.Is(err, hybrid.ErrUnavailable))
	fmt.Println(err)
	// Output:
	// true
	// limit: redis unavailable: pulled the plug
}

// Every limiter of this module is a limit.Limiter, so one can be exchanged for another.
func Example_exchange() {
	addr, stop := startRedis()
	defer stop()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()

	lim := hybrid.PerMinute(2)
	leased, err1 := hybrid.New(rdb, lim, hybrid.Options{Timeout: time.Second})
	exact, err2 := remote.NewSlidingLog(rdb, lim, remote.Options{Timeout: time.Second})
	alone, err3 := local.NewTokenBucket(lim, local.Options{})
	if err := errors.Join(err1, err2, err3); err != nil {
		log.Fatal(err)
	}
	defer leased.Close(context.Background())

	for _, l := range []limit.Limiter{leased, exact, alone} {
		served := 0
		for range 3 {
			if res, err := l.Allow(context.Background(), "customer-42"); err == nil && res.Allowed {
				served++
			}
		}
		fmt.Printf("%T served %d of 3\n", l, served)
	}
	// Output:
	// *hybrid.Limiter served 2 of 3
	// *remote.SlidingLog served 2 of 3
	// *local.TokenBucket served 2 of 3
}

func ExampleParse() {
	for _, s := range []string{"100/s", "5/10m burst 20", "5/fortnight"} {
		lim, err := hybrid.Parse(s)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(lim.Rate, "per", lim.Period, "with a burst of", lim.Burst)
	}
	// Output:
	// 100 per 1s with a burst of 100
	// 5 per 10m0s with a burst of 20
	// limit: invalid limit: no unit of time in "5/fortnight" (want for example "100/s", "5/10m burst 20", "unlimited" or "blocked")
}
