package promlimit_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/promlimit"
	"github.com/hybridlimit/hybrid/remote"
)

// A limit is tried out before it is enforced: nothing is denied, and what would have been is counted.
func ExampleMetrics_shadow() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: server.Addr()}))
	defer rdb.Close()
	reg := prometheus.NewRegistry()
	ctx := context.Background()

	m, err := promlimit.New(promlimit.Options{Name: "trial"})
	if err != nil {
		log.Fatal(err)
	}
	reg.MustRegister(m)
	trial, err := hybrid.New(rdb, hybrid.PerMinute(2), hybrid.Options{Prefix: "trial:", Shadow: true, Observer: m})
	if err != nil {
		log.Fatal(err)
	}
	defer trial.Close(ctx)
	if err := m.Watch(trial); err != nil {
		log.Fatal(err)
	}

	for range 5 {
		if _, err := trial.Allow(ctx, "customer-42"); err != nil {
			log.Fatal(err)
		}
	}
	err = testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP hybrid_shadowed_decisions_total Requests allowed only because of Options.Shadow.
# TYPE hybrid_shadowed_decisions_total counter
hybrid_shadowed_decisions_total{limiter="trial"} 3
`), "hybrid_shadowed_decisions_total")
	fmt.Println(err)
	// Output:
	// <nil>
}
