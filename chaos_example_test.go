package hybrid_test

import (
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/remote"
)

// The code of docs/operations.md.

func Example_sentinel() {
	rdb := redis.NewFailoverClient(remote.Recommended(&redis.FailoverOptions{
		MasterName:    "main",
		SentinelAddrs: []string{"sentinel-1:26379", "sentinel-2:26379", "sentinel-3:26379"},
	}))
	defer rdb.Close()
}

func Example_cluster() {
	rdb := redis.NewClusterClient(remote.Recommended(&redis.ClusterOptions{
		Addrs:     []string{"node-1:6379", "node-2:6379", "node-3:6379"},
		Username:  "limiter",
		Password:  "PASSWORD",
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}))
	defer rdb.Close()
}

func Example_operations() {
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: "redis:6379"}))
	defer rdb.Close()

	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{
		OnFailure: hybrid.FailLocal,
		Instances: 10, // of this service, when all are up
		Logger:    slog.Default(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())

	last := lim.Stats()
	for range time.Tick(10 * time.Second) {
		now := lim.Stats()
		slog.Info("limiter",
			"calls", now.Calls-last.Calls, "failed", now.Failed-last.Failed, "fallbacks", now.Fallbacks-last.Fallbacks,
			"leased", now.Leased-last.Leased, "expired", now.Expired-last.Expired, "held", now.Held,
			"unavailable", now.Unavailable, "err", now.Err, "roundtrip", now.RoundTrip, "instances", now.Instances)
		last = now
	}
}
