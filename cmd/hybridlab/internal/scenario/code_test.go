package scenario_test

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// What Code gives, in functions that nobody calls: TestCode looks here for it.

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{
		Instances: 4,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{
		LeaseSize: 100,
		Instances: 4,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{
		LeaseSize: 250,
		Instances: 4,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{
		LeaseSize: 50,
		Instances: 4,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000).WithBurst(4000), hybrid.Options{
		Timeout:   200 * time.Millisecond,
		Instances: 4,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{
		LeaseSize: 10,
		Slack:     0.5,
		OnFailure: hybrid.FailOpen,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{
		Exact:     true,
		OnFailure: hybrid.FailOpen,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := remote.NewTokenBucket(rdb, limit.PerSecond(1000), remote.Options{})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := remote.NewGCRA(rdb, limit.PerSecond(1000), remote.Options{})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := remote.NewFixedWindow(rdb, limit.PerSecond(1000), remote.Options{})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := remote.NewSlidingLog(rdb, limit.PerSecond(1000), remote.Options{})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := remote.NewSlidingCounter(rdb, limit.PerSecond(1000), remote.Options{})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerMinute(30), hybrid.Options{
		LeaseTTL:  time.Second,
		MaxLeased: 0.5,
		Refresh:   150 * time.Millisecond,
		OnFailure: hybrid.FailClosed,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerHour(30).WithBurst(5), hybrid.Options{
		LeaseTTL:  time.Second,
		MaxLeased: 0.5,
		Refresh:   150 * time.Millisecond,
		OnFailure: hybrid.FailClosed,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.PerDay(30), hybrid.Options{
		LeaseTTL:  time.Second,
		MaxLeased: 0.5,
		Refresh:   150 * time.Millisecond,
		OnFailure: hybrid.FailClosed,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := hybrid.New(rdb, hybrid.Limit{Rate: 1, Period: 1500 * time.Microsecond, Burst: 1}, hybrid.Options{
		LeaseTTL:  time.Second,
		MaxLeased: 0.5,
		Refresh:   150 * time.Millisecond,
		OnFailure: hybrid.FailClosed,
	})
	return lim, err
}

func _(rdb *redis.Client) (limit.Limiter, error) {
	lim, err := remote.NewGCRA(rdb, limit.PerSecond(1000), remote.Options{
		Timeout: 200 * time.Millisecond,
	})
	return lim, err
}
