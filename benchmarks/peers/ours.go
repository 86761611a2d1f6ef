package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
	"github.com/hybridlimit/hybrid/remote"
)

// ourRedisPeers are the limiters of this module over Redis. Each row has a prefix of its own: under the same one a
// token bucket and the leases share their state, and so would the rows their load.
func ourRedisPeers() []Peer {
	return []Peer{
		{Name: "remote.TokenBucket", Redis: true, New: ofRemote("bucket:", remote.NewTokenBucket)},
		{Name: "remote.GCRA", Redis: true, New: ofRemote("gcra:", remote.NewGCRA)},
		{Name: "remote.FixedWindow", Redis: true, Windows: true, New: ofRemote("fixed:", remote.NewFixedWindow)},
		{Name: "remote.SlidingLog", Redis: true, Windows: true, Speed: limit.PerSecond(100_000), New: ofRemote("log:", remote.NewSlidingLog)},
		{Name: "remote.SlidingCounter", Redis: true, Windows: true, New: ofRemote("counter:", remote.NewSlidingCounter)},
		leased("hybrid, LeaseSize 100", hybrid.Options{Prefix: "lease100:", LeaseSize: 100}),
		leased("hybrid, LeaseSize 1000", hybrid.Options{Prefix: "lease1000:", LeaseSize: 1000}),
		leased("hybrid, default lease", hybrid.Options{Prefix: "default:"}),
	}
}

// ourMemoryPeers are those that answer from memory. The last two lease from Redis, and lease enough for a pass: what
// leases cost is in the tables over Redis, here it is what an answer from one costs.
func ourMemoryPeers() []Peer {
	// A log holds at most 100,000 tokens, which memory would deal out in milliseconds: its window is one.
	log := limit.Limit{Rate: 100_000, Period: time.Millisecond, Burst: 100_000}
	handle := lasting("hybrid, lasting lease, handle", ofHandle)
	handle.OneKey = true
	return []Peer{
		{Name: "local.TokenBucket", New: ofLocal(local.NewTokenBucket)},
		{Name: "local.FixedWindow", Windows: true, New: ofLocal(local.NewFixedWindow)},
		{Name: "local.SlidingLog", Windows: true, Speed: log, New: ofLocal(local.NewSlidingLog)},
		{Name: "local.SlidingCounter", Windows: true, New: ofLocal(local.NewSlidingCounter)},
		lasting("hybrid, lasting lease", func(l *hybrid.Limiter) allowFunc { return allowOf(l) }),
		handle,
	}
}

func allowOf(l limit.Limiter) allowFunc {
	return func(ctx context.Context, key string) (bool, error) {
		res, err := l.Allow(ctx, key)
		return res.Allowed, err
	}
}

func ofRemote[L limit.Limiter](prefix string, make func(remote.Client, limit.Limit, remote.Options) (L, error)) newFunc {
	return func(rdb *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
		l, err := make(rdb, lim, remote.Options{Prefix: prefix})
		if err != nil {
			return nil, nil, err
		}
		return allowOf(l), nothing, nil
	}
}

func ofLocal[L limit.Limiter](make func(limit.Limit, local.Options) (L, error)) newFunc {
	return func(_ *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
		l, err := make(lim, local.Options{})
		if err != nil {
			return nil, nil, err
		}
		return allowOf(l), nothing, nil
	}
}

// leased is a peer that keeps tokens. At the vast limit they live 200 ms: after that there is nothing to give back.
func leased(name string, opts hybrid.Options) Peer {
	return Peer{Name: name, Redis: true, Settle: 250 * time.Millisecond, New: func(rdb *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
		l, closer, err := open(rdb, lim, opts)
		if err != nil {
			return nil, nil, err
		}
		return allowOf(l), closer, nil
	}}
}

// lasting is a peer whose leases outlast a round. A lease lives at most half as long as the burst lasts, so the burst
// is a minute's worth.
func lasting(name string, ask func(l *hybrid.Limiter) allowFunc) Peer {
	return Peer{Name: name, Redis: true, Speed: limit.PerMinute(vast.Rate), Warm: 2 * time.Second, New: func(rdb *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
		// A handle has one key only, which nobody must have used before.
		prefix := fmt.Sprintf("lasting:%d:", time.Now().UnixNano())
		l, closer, err := open(rdb, lim, hybrid.Options{Prefix: prefix, LeaseTTL: 30 * time.Second})
		if err != nil {
			return nil, nil, err
		}
		return ask(l), closer, nil
	}}
}

func open(rdb *redis.Client, lim limit.Limit, opts hybrid.Options) (*hybrid.Limiter, func(), error) {
	opts.OnFailure = hybrid.FailClosed // no decision of Redis is no decision
	l, err := hybrid.New(rdb, lim, opts)
	if err != nil {
		return nil, nil, err
	}
	return l, func() { l.Close(context.Background()) }, nil
}

// ofHandle asks one key whatever it is asked, without looking it up.
func ofHandle(l *hybrid.Limiter) allowFunc {
	key := l.Key("handle")
	return func(ctx context.Context, _ string) (bool, error) {
		res, err := key.Allow(ctx)
		return res.Allowed, err
	}
}
