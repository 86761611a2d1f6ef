package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	sredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"golang.org/x/time/rate"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// The code of docs/migrating.md, before and after.

func fromRedisRate(ctx context.Context, rdb *redis.Client, customer string) error {
	limiter := redis_rate.NewLimiter(rdb)

	res, err := limiter.Allow(ctx, "api:"+customer, redis_rate.PerMinute(100))
	if err != nil {
		return err
	}
	if res.Allowed == 0 {
		return tooMany(res.RetryAfter)
	}
	return nil
}

func toHybrid(ctx context.Context, rdb *redis.Client, customer string) error {
	limiter, err := hybrid.New(rdb, hybrid.PerMinute(100), hybrid.Options{Prefix: "api:"}) // once, not for each request
	if err != nil {
		return err
	}
	defer limiter.Close(ctx) // when the process ends

	res, err := limiter.Allow(ctx, customer)
	if err != nil {
		return err
	}
	if !res.Allowed {
		return tooMany(res.RetryAfter)
	}
	return nil
}

func toTiers(rdb *redis.Client, planOf func(customer string) string) (*hybrid.Limiter, error) {
	limits := map[string]limit.Limit{
		"free": limit.PerMinute(100),
		"pro":  limit.PerMinute(5000),
	}
	return hybrid.New(rdb, limit.PerMinute(10), hybrid.Options{
		LimitFor: func(customer string) limit.Limit { return limits[planOf(customer)] }, // none: the 10 per minute
	})
}

func fromUlule(rdb *redis.Client, mux http.Handler) (http.Handler, error) {
	rate, err := limiter.NewRateFromFormatted("1000-H")
	if err != nil {
		return nil, err
	}
	store, err := sredis.NewStoreWithOptions(rdb, limiter.StoreOptions{Prefix: "api"})
	if err != nil {
		return nil, err
	}
	middleware := stdlib.NewMiddleware(limiter.New(store, rate, limiter.WithTrustForwardHeader(true)))
	return middleware.Handler(mux), nil
}

func toMiddleware(rdb *redis.Client, mux http.Handler) (http.Handler, error) {
	lim, err := hybrid.New(rdb, hybrid.PerHour(1000), hybrid.Options{Prefix: "api:"})
	if err != nil {
		return nil, err
	}
	middleware, err := httplimit.New(lim, httplimit.Options{
		Key:        httplimit.ByAddr(netip.MustParsePrefix("10.0.0.0/8")), // whose X-Forwarded-For is believed
		XRateLimit: httplimit.XEpoch,
	})
	if err != nil {
		return nil, err
	}
	return middleware.Handler(mux), nil
}

func toWindow(rdb *redis.Client) (limit.Limiter, error) {
	return remote.NewFixedWindow(rdb, limit.PerHour(1000), remote.Options{Prefix: "api:"})
}

func fromThrottled(ctx context.Context, rdb *redis.Client, customer string) error {
	store, err := goredisstore.NewCtx(rdb, "api:")
	if err != nil {
		return err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerMin(100), MaxBurst: 19})
	if err != nil {
		return err
	}
	limited, res, err := limiter.RateLimitCtx(ctx, customer, 1)
	if err != nil {
		return err
	}
	if limited {
		return tooMany(res.RetryAfter)
	}
	return nil
}

func toBurst(rdb *redis.Client) (*hybrid.Limiter, error) {
	return hybrid.New(rdb, hybrid.PerMinute(100).WithBurst(20), hybrid.Options{Prefix: "api:"}) // MaxBurst + 1
}

func fromRate(ctx context.Context) error {
	limiter := rate.NewLimiter(rate.Limit(50), 10)

	if !limiter.Allow() {
		return tooMany(0)
	}
	return limiter.Wait(ctx)
}

func toKey(ctx context.Context, rdb *redis.Client) error {
	lim, err := hybrid.New(rdb, hybrid.PerSecond(50).WithBurst(10), hybrid.Options{})
	if err != nil {
		return err
	}
	defer lim.Close(context.Background())
	limiter := lim.Key("payments") // a handle: no look-up for each request

	res, err := limiter.Allow(ctx)
	if err != nil {
		return err
	}
	if !res.Allowed {
		return tooMany(res.RetryAfter)
	}
	return limiter.Wait(ctx)
}

func shadow(rdb *redis.Client) {
	lim, err := hybrid.New(rdb, hybrid.PerMinute(100), hybrid.Options{Prefix: "api-new:", Shadow: true})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	// ... ask it beside the old limiter, and after a day:
	fmt.Println("would have been denied:", lim.Stats().Shadowed)
}

// Only compiled: they are not about how many are admitted.
var _ = []any{fromRate, toKey, shadow}

// TestMigratingAdmits requires that what the page calls equal admits the same number of requests that come at once.
func TestMigratingAdmits(t *testing.T) {
	for name, c := range map[string]struct {
		asked, want int
		ask         func(rdb *redis.Client) func() bool
	}{
		"redis_rate": {120, 100, func(rdb *redis.Client) func() bool {
			return func() bool { return admitted(t, fromRedisRate(t.Context(), rdb, "c")) }
		}},
		"hybrid": {120, 100, func(rdb *redis.Client) func() bool {
			return func() bool { return admitted(t, toHybrid(t.Context(), rdb, "c")) }
		}},
		"throttled": {30, 20, func(rdb *redis.Client) func() bool {
			return func() bool { return admitted(t, fromThrottled(t.Context(), rdb, "c")) }
		}},
		"burst": {30, 20, func(rdb *redis.Client) func() bool {
			l, err := toBurst(rdb)
			return allows(t, l, err)
		}},
		"tiers": {120, 100, func(rdb *redis.Client) func() bool {
			l, err := toTiers(rdb, func(string) string { return "free" })
			return allows(t, l, err)
		}},
		"no tier": {120, 10, func(rdb *redis.Client) func() bool {
			l, err := toTiers(rdb, func(string) string { return "" })
			return allows(t, l, err)
		}},
		"ulule": {1100, 1000, func(rdb *redis.Client) func() bool {
			h, err := fromUlule(rdb, http.NotFoundHandler())
			return serves(t, h, err)
		}},
		"middleware": {1100, 1000, func(rdb *redis.Client) func() bool {
			h, err := toMiddleware(rdb, http.NotFoundHandler())
			return serves(t, h, err)
		}},
		"window": {1100, 1000, func(rdb *redis.Client) func() bool {
			l, err := toWindow(rdb)
			return allows(t, l, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := miniredis.RunT(t)
			rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: srv.Addr()}))
			defer rdb.Close()
			ask := c.ask(rdb)
			n := 0
			for range c.asked {
				if ask() {
					n++
				}
			}
			if n < c.want || n > c.want+2 { // a token or two may be added while the calls run
				t.Errorf("%d of %d were admitted, want %d", n, c.asked, c.want)
			}
		})
	}
}

// tooMany is how the functions of the page report a denial.
type tooMany time.Duration

func (tooMany) Error() string { return "too many requests" }

func admitted(t *testing.T, err error) bool {
	t.Helper()
	if _, denied := err.(tooMany); err != nil && !denied {
		t.Fatal(err)
	}
	return err == nil
}

func allows(t *testing.T, l limit.Limiter, err error) func() bool {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := l.(*hybrid.Limiter); ok {
		t.Cleanup(func() { c.Close(context.Background()) })
	}
	return func() bool {
		r, err := l.Allow(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		return r.Allowed
	}
}

func serves(t *testing.T, h http.Handler, err error) func() bool {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return func() bool {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w.Code != http.StatusTooManyRequests
	}
}
