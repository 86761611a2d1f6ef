package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/figures"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/otellimit"
	"github.com/hybridlimit/hybrid/tally"
)

// meter collects what is exported.
type meter struct {
	*sdk.MeterProvider
	reader *sdk.ManualReader
}

func newMeter() meter {
	r := sdk.NewManualReader()
	return meter{sdk.NewMeterProvider(sdk.WithReader(r)), r}
}

func (m meter) collect(t *testing.T) []metricdata.Metrics {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := m.reader.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	var all []metricdata.Metrics
	for _, s := range rm.ScopeMetrics {
		if s.Scope.Name != otellimit.ScopeName {
			t.Errorf("scope %q", s.Scope.Name)
		}
		all = append(all, s.Metrics...)
	}
	return all
}

// values are what is collected, by the name of the series; a histogram by its count.
func (m meter) values(t *testing.T) map[string]float64 {
	t.Helper()
	all := make(map[string]float64)
	name := func(metric string, attrs attribute.Set) string {
		var text strings.Builder
		text.WriteString(metric)
		for _, kv := range attrs.ToSlice() { // sorted by their keys
			text.WriteString(" " + strings.TrimPrefix(string(kv.Key), "hybrid.") + "=" + kv.Value.AsString())
		}
		return text.String()
	}
	for _, c := range m.collect(t) {
		switch d := c.Data.(type) {
		case metricdata.Sum[float64]:
			for _, p := range d.DataPoints {
				all[name(c.Name, p.Attributes)] = p.Value
			}
		case metricdata.Gauge[float64]:
			for _, p := range d.DataPoints {
				all[name(c.Name, p.Attributes)] = p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				all[name(c.Name, p.Attributes)] = float64(p.Count)
			}
		default:
			t.Errorf("%s is a %T", c.Name, d)
		}
	}
	return all
}

// process is a limiter with all its metrics.
type process struct {
	*hybrid.Limiter
	metrics *otellimit.Metrics
	counted *tally.Limiter
	src     *leasetest.Source
}

func newProcess(t *testing.T, provider metric.MeterProvider, name string, lim limit.Limit, opts tally.Options) process {
	t.Helper()
	m, err := otellimit.New(provider, otellimit.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	p := process{metrics: m, src: leasetest.NewSource()}
	if p.Limiter, err = hybrid.NewFrom(p.src, lim, hybrid.Options{Observer: m}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	if err := m.Watch(p.Limiter); err != nil {
		t.Fatal(err)
	}
	if p.counted, err = m.Count(p.Limiter, opts); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMET01_SeriesDoNotDependOnKeys(t *testing.T) {
	series := func(keys int) int {
		m := newMeter()
		for i := range 3 {
			p := newProcess(t, m, fmt.Sprintf("limiter-%d", i), hybrid.PerHour(1), tally.Options{})
			for k := range keys + 5 { // five are asked for twice, and denied
				p.counted.Allow(t.Context(), strconv.Itoa(k%keys))
			}
		}
		return len(m.values(t))
	}
	few, many := series(5), series(10_000)
	// Each limiter: the figures, the histogram, and two or three kinds of decisions.
	if least := 3 * (len(figures.Table) + 1 + 2); few != many || many < least || many > least+3 {
		t.Errorf("%d series for 5 keys and %d for 10,000, want the same, and about %d", few, many, least)
	}
}

func TestInstruments(t *testing.T) {
	m := newMeter()
	p := newProcess(t, m, "api", hybrid.PerSecond(10), tally.Options{})
	p.counted.Allow(t.Context(), "k")
	want := map[string]figures.Metric{figures.Decisions.Name: figures.Decisions, figures.CallTime.Name: figures.CallTime}
	for _, f := range figures.Table {
		want[f.Name] = f.Metric
	}
	for _, c := range m.collect(t) {
		w, ok := want[c.Name]
		delete(want, c.Name)
		if !ok || c.Unit != w.Unit || c.Description != w.Help {
			t.Errorf("%s in %q: %s", c.Name, c.Unit, c.Description)
		}
		kind := figures.Gauge
		switch d := c.Data.(type) {
		case metricdata.Sum[float64]:
			if kind = figures.Counter; !d.IsMonotonic {
				t.Errorf("%s is not monotonic", c.Name)
			}
		case metricdata.Histogram[float64]:
			if kind = figures.Histogram; len(d.DataPoints[0].Bounds) != len(figures.CallTimeBounds) {
				t.Errorf("%s has the bounds %v", c.Name, d.DataPoints[0].Bounds)
			}
		}
		if kind != w.Kind {
			t.Errorf("%s is a %T", c.Name, c.Data)
		}
	}
	for name := range want {
		t.Errorf("%s is not exported", name)
	}
}

func TestNumbersAddUp(t *testing.T) {
	m := newMeter()
	p := newProcess(t, m, "api", hybrid.PerSecond(20_000), tally.Options{Class: func(key string) string { return "class-" + key }})
	const workers, each = 4, 5000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				if _, err := p.counted.Allow(context.Background(), strconv.Itoa(w%2)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		m.values(t)
	}
	wg.Wait()
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	values := m.values(t)
	decisions := map[string]float64{}
	local := 0.0
	for series, n := range values {
		if rest, ok := strings.CutPrefix(series, "hybrid.decisions class="); ok {
			class, rest, _ := strings.Cut(rest, " ")
			decisions[class] += n
			if rest == "limiter=api origin=local outcome=allowed" {
				local += n
			}
		}
	}
	if len(decisions) != 2 || decisions["class-0"] != workers*each/2 || decisions["class-1"] != workers*each/2 {
		t.Errorf("decisions: %v", decisions)
	}
	of := func(name string) float64 { return values["hybrid."+name+" limiter=api"] }
	if spent := of("leased_tokens") - of("held_tokens") - of("returned_tokens") - of("expired_tokens"); spent != local || local == 0 {
		t.Errorf("%v decided by leased tokens, of which %v were spent", local, spent)
	}
}

func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter()
		p := newProcess(t, m, "api", hybrid.PerSecond(100), tally.Options{})
		p.src.Down(errors.New("pulled the plug"))
		for range 100 {
			p.counted.Allow(t.Context(), "k")
			time.Sleep(10 * time.Millisecond)
		}
		v := m.values(t)
		if v["hybrid.redis.unavailable limiter=api"] != 1 || v["hybrid.redis.outages limiter=api"] != 1 || v["hybrid.redis.call.failures limiter=api"] == 0 {
			t.Errorf("during the outage: %v", v)
		}
		p.src.Down(nil)
		time.Sleep(time.Second) // the longest pause between two probes
		p.counted.Allow(t.Context(), "k")
		synctest.Wait()
		v = m.values(t)
		if lasted := v["hybrid.redis.outage.duration limiter=api"]; v["hybrid.redis.unavailable limiter=api"] != 0 || lasted < 1 || lasted > 2.1 {
			t.Errorf("after the outage: %v", v)
		}
		p.Close(t.Context())
	})
}

func TestClose(t *testing.T) {
	m := newMeter()
	p := newProcess(t, m, "api", hybrid.PerSecond(100), tally.Options{})
	if err := p.metrics.Close(); err != nil {
		t.Error(err)
	}
	if v := m.values(t); len(v) != 0 {
		t.Errorf("after Close: %v", v)
	}
	if err := p.metrics.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// refusing is a provider whose meters register nothing.
type refusing struct{ noop.MeterProvider }

type refusingMeter struct{ noop.Meter }

var errRefused = errors.New("refused")

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

func (refusingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return nil, errRefused
}

func TestBadInput(t *testing.T) {
	for name, f := range map[string]func() (*otellimit.Metrics, error){
		"no provider": func() (*otellimit.Metrics, error) { return otellimit.New(nil, otellimit.Options{Name: "api"}) },
		"typed nil": func() (*otellimit.Metrics, error) {
			var none *sdk.MeterProvider
			return otellimit.New(none, otellimit.Options{Name: "api"})
		},
		"no name": func() (*otellimit.Metrics, error) { return otellimit.New(newMeter(), otellimit.Options{}) },
	} {
		if m, err := f(); m != nil || !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	if m, err := otellimit.New(refusing{}, otellimit.Options{Name: "api"}); m != nil || !errors.Is(err, errRefused) {
		t.Errorf("%v, %v of a meter that refuses", m, err)
	}
	m, err := otellimit.New(noop.MeterProvider{}, otellimit.Options{Name: "api"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Watch(nil); !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("Watch(nil): %v", err)
	}
}
