package otellimit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/otellimit"
	"github.com/hybridlimit/hybrid/remote"
	"github.com/hybridlimit/hybrid/tally"
)

func ExampleNew() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: server.Addr()}))
	defer rdb.Close()
	reader := sdk.NewManualReader() // in a program, a periodic reader with an exporter
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	ctx := context.Background()

	m, err := otellimit.New(provider, otellimit.Options{Name: "api"})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	lim, err := hybrid.New(rdb, hybrid.PerHour(2), hybrid.Options{Observer: m})
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(ctx)
	if err := m.Watch(lim); err != nil {
		log.Fatal(err)
	}
	counted, err := m.Count(lim, tally.Options{})
	if err != nil {
		log.Fatal(err)
	}

	for range 5 {
		if _, err := counted.Allow(ctx, "customer-42"); err != nil {
			log.Fatal(err)
		}
	}
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &collected); err != nil {
		log.Fatal(err)
	}
	outcomes := map[string]float64{}
	for _, metric := range collected.ScopeMetrics[0].Metrics {
		if metric.Name == "hybrid.decisions" {
			for _, p := range metric.Data.(metricdata.Sum[float64]).DataPoints {
				outcome, _ := p.Attributes.Value("hybrid.outcome")
				outcomes[outcome.AsString()] += p.Value
			}
		}
	}
	fmt.Println(outcomes)
	// Output:
	// map[allowed:2 denied:3]
}
