package benchmarks

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
	"github.com/hybridlimit/hybrid/remote"
)

// mode is one way to keep a limit.
type mode struct {
	name  string
	redis bool // else in memory
	form  form
	edge  bool // admits up to twice its limit around the edge of a window
	lease int  // tokens of a lease, 0 if there are none
	open  opener
}

type opener func(rdb *redis.Client, lim limit.Limit, prefix string) (limit.Limiter, error)

// form is what kind of limit a mode needs.
type form int

const (
	bucket form = iota
	window
	log // a window that remembers every token
)

// modes are all there are.
func modes() []mode {
	var ms []mode
	for _, n := range []int{1, 10, 100, 1000} {
		ms = append(ms, mode{name: fmt.Sprintf("mode=leased/lease=%d", n), redis: true, lease: n, open: leased(n)})
	}
	return append(ms,
		mode{name: "mode=tokenbucket", redis: true, open: inRedis(remote.NewTokenBucket)},
		mode{name: "mode=gcra", redis: true, open: inRedis(remote.NewGCRA)},
		mode{name: "mode=fixedwindow", redis: true, form: window, edge: true, open: inRedis(remote.NewFixedWindow)},
		mode{name: "mode=slidinglog", redis: true, form: log, open: inRedis(remote.NewSlidingLog)},
		mode{name: "mode=slidingcounter", redis: true, form: window, open: inRedis(remote.NewSlidingCounter)},
		mode{name: "mode=local-tokenbucket", open: inMemory(local.NewTokenBucket)},
		mode{name: "mode=local-fixedwindow", form: window, edge: true, open: inMemory(local.NewFixedWindow)},
		mode{name: "mode=local-slidinglog", form: log, open: inMemory(local.NewSlidingLog)},
		mode{name: "mode=local-slidingcounter", form: window, open: inMemory(local.NewSlidingCounter)},
	)
}

func leased(n int) opener {
	return func(rdb *redis.Client, lim limit.Limit, prefix string) (limit.Limiter, error) {
		return hybrid.New(rdb, lim, hybrid.Options{
			OnFailure: hybrid.FailClosed, // no decision of Redis is no decision
			Prefix:    prefix, Timeout: timeout, LeaseSize: n,
			MaxLeased: 1,         // no clamp on LeaseSize
			LeaseTTL:  time.Hour, // clamped to half the time of a burst
		})
	}
}

func inRedis[L limit.Limiter](open func(remote.Client, limit.Limit, remote.Options) (L, error)) opener {
	return func(rdb *redis.Client, lim limit.Limit, prefix string) (limit.Limiter, error) {
		return open(rdb, lim, remote.Options{Prefix: prefix, Timeout: timeout})
	}
}

func inMemory[L limit.Limiter](open func(limit.Limit, local.Options) (L, error)) opener {
	return func(_ *redis.Client, lim limit.Limit, _ string) (limit.Limiter, error) {
		return open(lim, local.Options{})
	}
}

// closeLimiter gives leased tokens back. What could not be given back comes back by refill, and fails no benchmark.
func closeLimiter(b *testing.B, l limit.Limiter) {
	h, ok := l.(*hybrid.Limiter)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := h.Close(ctx); err != nil {
		b.Log(err)
	}
}
