package monitoring

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/otellimit"
	"github.com/hybridlimit/hybrid/tally"
)

// TestNamesFromOpenTelemetry requires that metrics which reach Prometheus from otellimit have the names that those of
// promlimit have.
func TestNamesFromOpenTelemetry(t *testing.T) {
	reg := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(reg), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	defer provider.Shutdown(context.Background())
	m, err := otellimit.New(provider, otellimit.Options{Name: "api"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	l, err := hybrid.NewFrom(leasetest.NewSource(), limit.PerHour(1000), hybrid.Options{Observer: m})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	if err := m.Watch(l); err != nil {
		t.Fatal(err)
	}
	counted, err := m.Count(l, tally.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := counted.Allow(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]bool)
	for name := range scrape(t) {
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, part)
		}
		want[name] = true
	}
	for _, f := range families {
		if !want[f.GetName()] {
			t.Errorf("promlimit has no %s", f.GetName())
		}
		delete(want, f.GetName())
		limiter := false
		for _, l := range f.Metric[0].Label {
			limiter = limiter || l.GetName() == "hybrid_limiter"
		}
		if !limiter {
			t.Errorf("%s has no label hybrid_limiter", f.GetName())
		}
	}
	for name := range want {
		t.Errorf("otellimit has no %s", name)
	}
}
