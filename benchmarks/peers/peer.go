package main

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"golang.org/x/time/rate"

	"github.com/hybridlimit/hybrid/limit"
)

// allowFunc asks for one token of a key. A denial is false and nil; an error means that nothing was decided.
type allowFunc func(ctx context.Context, key string) (bool, error)

// newFunc makes a limiter. Limiters in memory get a nil client.
type newFunc func(rdb *redis.Client, lim limit.Limit) (allow allowFunc, closer func(), err error)

// Peer is one limiter under test, behind the smallest shape that all of them have.
type Peer struct {
	Name string
	// Redis says that New needs a client.
	Redis bool
	// Windows says that it counts in windows of the period: it admits at most Rate in each, and what a window did
	// not use is lost.
	Windows bool
	// OneKey says that it has no keys, so that only one hot key can be compared.
	OneKey bool
	// Speed is the limit of the speed runs. Zero is vast.
	Speed limit.Limit
	// Warm is how long it is asked before the first round, to learn how much is asked.
	Warm time.Duration
	// Settle is how long it may still talk to Redis once nobody asks it anything: leases that go back. The next
	// limiter is not measured before.
	Settle time.Duration
	New    newFunc
}

// vast is a limit that no limiter here can reach, so that the speed runs measure admissions.
var vast = limit.PerSecond(1_000_000_000)

// coarse is the vast limit of those GCRAs that keep the time of the epoch in one float64: at 1e9/s the step of a
// nanosecond is below the resolution of that number and is lost, and with it the write to Redis. At 1e6/s they do
// their ordinary work, and a round trip per decision keeps them far below it.
var coarse = limit.PerSecond(1_000_000)

func (p Peer) speed() limit.Limit {
	if p.Speed == (limit.Limit{}) {
		return vast
	}
	return p.Speed
}

func nothing() {}

// The rows that the others are compared with. They come first in their tables.
const (
	redisYardstick  = "redis_rate"
	memoryYardstick = "x/time/rate, one limiter"
	mapYardstick    = "x/time/rate in a sync.Map"
)

// redisPeers are the other limiters over Redis.
func redisPeers() []Peer {
	return []Peer{
		{Name: redisYardstick, Redis: true, Speed: coarse, New: newRedisRate},
		{Name: "throttled, go-redis v9 store", Redis: true, New: newThrottledRedis},
		{Name: "ulule, redis store", Redis: true, Windows: true, New: newUluleRedis},
		{Name: "GCRA script over rueidis", Redis: true, Speed: coarse, New: newRueidisGCRA},
	}
}

// memoryPeers are the other limiters in memory.
func memoryPeers() []Peer {
	// memorystore adds interval/tokens tokens per interval, in nanoseconds: right up to 31,622 per second only
	// (sethvargo/go-limiter#29). A day long interval keeps that sum out of the run.
	day := limit.PerDay(1_000_000_000)
	return []Peer{
		{Name: memoryYardstick, OneKey: true, New: newRate},
		{Name: mapYardstick, New: newRateMap},
		{Name: "go-limiter memorystore", Windows: true, Speed: day, New: newMemorystore},
		{Name: "throttled, memstore", New: newThrottledMemory},
		{Name: "ulule, memory store", Windows: true, New: newUluleMemory},
	}
}

// missing are limiters that belong in these tables and could not be had as modules when they were made.
var missing = []string{
	"github.com/vearne/ratelimit: the module proxy does not serve it",
	"github.com/redis/rueidis/rueidislimiter: not part of the rueidis module, and not found as a module of its own; " +
		"the row \"GCRA script over rueidis\" shows what its client can do, with a script written for this table",
}

func newRedisRate(rdb *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	l := redis_rate.NewLimiter(rdb)
	per := redis_rate.Limit{Rate: lim.Rate, Burst: lim.Burst, Period: lim.Period}
	return func(ctx context.Context, key string) (bool, error) {
		res, err := l.Allow(ctx, key, per)
		if err != nil {
			return false, err
		}
		return res.Allowed > 0, nil
	}, nothing, nil
}

func throttledQuota(lim limit.Limit) throttled.RateQuota {
	return throttled.RateQuota{MaxRate: throttled.PerDuration(lim.Rate, lim.Period), MaxBurst: lim.Burst - 1}
}

func newThrottled(store throttled.GCRAStoreCtx, lim limit.Limit) (allowFunc, func(), error) {
	l, err := throttled.NewGCRARateLimiterCtx(store, throttledQuota(lim))
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited, err
	}, nothing, nil
}

func newThrottledRedis(rdb *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	store, err := throttledredis.NewCtx(rdb, "throttled:")
	if err != nil {
		return nil, nil, err
	}
	return newThrottled(store, lim)
}

func newThrottledMemory(_ *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	store, err := memstore.NewCtx(65536)
	if err != nil {
		return nil, nil, err
	}
	return newThrottled(store, lim)
}

func newUlule(store limiter.Store, lim limit.Limit) (allowFunc, func(), error) {
	l := limiter.New(store, limiter.Rate{Period: lim.Period, Limit: int64(lim.Rate)})
	return func(ctx context.Context, key string) (bool, error) {
		c, err := l.Get(ctx, key)
		return err == nil && !c.Reached, err
	}, nothing, nil
}

func newUluleRedis(rdb *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	store, err := ululeredis.NewStoreWithOptions(rdb, limiter.StoreOptions{Prefix: "ulule"})
	if err != nil {
		return nil, nil, err
	}
	return newUlule(store, lim)
}

func newUluleMemory(_ *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	return newUlule(ululememory.NewStore(), lim)
}

// gcraScript keeps one number per key: the time in microseconds at which the bucket would be full again.
const gcraScript = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local full = tonumber(redis.call('GET', KEYS[1]) or now)
if full < now then full = now end
full = full + ARGV[1]
if full - now > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], full, 'PX', math.ceil((full - now) / 1000))
return 1`

func newRueidisGCRA(rdb *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	opt := rdb.Options()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{opt.Addr},
		ForceSingleClient: true,
		// Server-assisted caching is not used, and miniredis does not have it.
		DisableCache: true,
		DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return opt.Dialer(ctx, "tcp", addr)
		},
	})
	if err != nil {
		return nil, nil, err
	}
	script := rueidis.NewLuaScript(gcraScript)
	step := float64(lim.Period.Microseconds()) / float64(lim.Rate)
	args := []string{
		strconv.FormatFloat(step, 'f', -1, 64),
		strconv.FormatFloat(step*float64(lim.Burst), 'f', -1, 64),
	}
	return func(ctx context.Context, key string) (bool, error) {
		n, err := script.Exec(ctx, client, []string{"rueidis:" + key}, args).AsInt64()
		return n == 1, err
	}, client.Close, nil
}

func toRate(lim limit.Limit) rate.Limit {
	return rate.Limit(float64(lim.Rate) / lim.Period.Seconds())
}

func newRate(_ *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	l := rate.NewLimiter(toRate(lim), lim.Burst)
	return func(context.Context, string) (bool, error) { return l.Allow(), nil }, nothing, nil
}

func newRateMap(_ *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	var m sync.Map
	per := toRate(lim)
	return func(_ context.Context, key string) (bool, error) {
		v, ok := m.Load(key)
		if !ok {
			v, _ = m.LoadOrStore(key, rate.NewLimiter(per, lim.Burst))
		}
		return v.(*rate.Limiter).Allow(), nil
	}, nothing, nil
}

func newMemorystore(_ *redis.Client, lim limit.Limit) (allowFunc, func(), error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(lim.Rate), Interval: lim.Period})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		_, _, _, ok, err := store.Take(ctx, key)
		return ok, err
	}, func() { store.Close(context.Background()) }, nil
}
