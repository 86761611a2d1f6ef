package promlimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/figures"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/promlimit"
	"github.com/hybridlimit/hybrid/tally"
)

// process is a limiter with all its metrics.
type process struct {
	*hybrid.Limiter
	metrics *promlimit.Metrics
	counted *tally.Limiter
	src     *leasetest.Source
}

func newProcess(t *testing.T, reg prometheus.Registerer, name string, lim limit.Limit, opts tally.Options) process {
	t.Helper()
	m, err := promlimit.New(promlimit.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.Register(m); err != nil {
		t.Fatal(err)
	}
	p := process{metrics: m, src: leasetest.NewSource()}
	p.watch(t, lim)
	if p.counted, err = m.Count(p.Limiter, opts); err != nil {
		t.Fatal(err)
	}
	return p
}

// watch makes the limiter of the process, and exports it.
func (p *process) watch(t *testing.T, lim limit.Limit) {
	t.Helper()
	l, err := hybrid.NewFrom(p.src, lim, hybrid.Options{Observer: p.metrics})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.metrics.Watch(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(context.Background()) })
	p.Limiter = l
}

// values are what was gathered, by the name of the series; a histogram by its count.
func values(families map[string]*dto.MetricFamily) map[string]float64 {
	all := make(map[string]float64)
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			series := name + "{" + strings.Join(labels, ",") + "}"
			all[series] = m.Counter.GetValue() + m.Gauge.GetValue() + float64(m.Histogram.GetSampleCount())
		}
	}
	return all
}

func gather(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return values(byName)
}

// wantValues compares some of the series of limiter "api", named without that label where it is the only one.
func wantValues(t *testing.T, reg prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	got := gather(t, reg)
	for series, v := range want {
		name := series
		if !strings.Contains(name, "{") {
			name += "{limiter=api}"
		}
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s is %v (there: %v), want %v", name, g, ok, v)
		}
	}
}

func TestMET01_SeriesDoNotDependOnKeys(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	series := func(keys, denied int) int {
		for i := range 3 {
			// One token for each key; the key that is denied has asked before.
			p := newProcess(t, reg, fmt.Sprintf("limiter-%d-%d", i, keys), hybrid.PerHour(1), tally.Options{})
			for k := range keys {
				p.counted.Allow(t.Context(), strconv.Itoa(k))
			}
			for k := range denied {
				p.counted.Allow(t.Context(), strconv.Itoa(k))
			}
		}
		n := 0
		for name := range gather(t, reg) {
			if strings.Contains(name, fmt.Sprintf("-%d", keys)) {
				n++
			}
			if strings.Contains(name, "class") {
				t.Errorf("%s has a class that nobody asked for", name)
			}
		}
		return n
	}
	few, many := series(5, 5), series(10_000, 5)
	// Each limiter: the figures, the histogram, and two or three kinds of decisions.
	if least := 3 * (len(figures.Table) + 1 + 2); few != many || many < least || many > least+3 {
		t.Errorf("%d series for 5 keys and %d for 10,000, want the same, and about %d", few, many, least)
	}
}

func TestMET01_SeriesOfClassesAreBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p := newProcess(t, reg, "api", hybrid.PerHour(5), tally.Options{MaxClasses: 4, Class: func(key string) string { return key }})
	for k := range 1000 {
		p.counted.Allow(t.Context(), strconv.Itoa(k)+"\xff") // no label can be that
		p.counted.Allow(t.Context(), strconv.Itoa(k))
	}
	n := 0
	for name := range gather(t, reg) {
		if strings.HasPrefix(name, "hybrid_decisions_total{") {
			n++
		}
	}
	if n != 5 {
		t.Errorf("%d series of decisions, want 4 classes and the others", n)
	}
	wantValues(t, reg, map[string]float64{"hybrid_decisions_total{class=other,limiter=api,origin=remote,outcome=allowed}": 1996})
}

func TestNamesFollowTheConventions(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p := newProcess(t, reg, "api", hybrid.PerSecond(10), tally.Options{})
	p.counted.Allow(t.Context(), "k")
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Error(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(families), len(figures.Table)+2; got != want {
		t.Errorf("%d metrics, want %d", got, want)
	}
	for _, f := range families {
		total := strings.HasSuffix(f.GetName(), "_total")
		if counter := f.GetType() == dto.MetricType_COUNTER; counter != total || !strings.HasPrefix(f.GetName(), "hybrid_") {
			t.Errorf("%s is a %v", f.GetName(), f.GetType())
		}
	}
}

func TestOutageAndRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		p := newProcess(t, reg, "api", hybrid.PerSecond(100), tally.Options{})
		p.counted.Allow(t.Context(), "k")
		synctest.Wait()
		wantValues(t, reg, map[string]float64{
			"hybrid_redis_unavailable": 0, "hybrid_redis_outages_total": 0, "hybrid_redis_outage_duration_seconds_total": 0,
			"hybrid_redis_call_failures_total": 0, "hybrid_fallback_decisions_total": 0, "hybrid_keys": 1, "hybrid_instances": 1,
		})
		p.src.Down(errors.New("pulled the plug"))
		for range 200 {
			p.counted.Allow(t.Context(), "k")
			time.Sleep(5 * time.Millisecond)
		}
		during := gather(t, reg)
		wantValues(t, reg, map[string]float64{
			"hybrid_redis_unavailable": 1, "hybrid_redis_outages_total": 1, "hybrid_redis_outage_duration_seconds_total": 0,
		})
		if n := during["hybrid_redis_call_failures_total{limiter=api}"]; n < 5 || n > 100 {
			t.Errorf("%v failures", n)
		}
		if n := during["hybrid_fallback_decisions_total{limiter=api}"]; n < 100 || n > 200 {
			t.Errorf("%v of 200 decided by the policy", n)
		}
		p.src.Down(nil)
		time.Sleep(time.Second) // the longest pause between two probes
		p.counted.Allow(t.Context(), "k")
		synctest.Wait()
		wantValues(t, reg, map[string]float64{"hybrid_redis_unavailable": 0, "hybrid_redis_outages_total": 1})
		if s := gather(t, reg)["hybrid_redis_outage_duration_seconds_total{limiter=api}"]; s < 1 || s > 2.1 {
			t.Errorf("the outage lasted %vs, want 1 s to 2.1 s", s)
		}
		p.Close(t.Context())
	})
}

func TestShadowIsCounted(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p := newProcess(t, reg, "api", hybrid.PerHour(1), tally.Options{})
	l, err := hybrid.NewFrom(p.src, hybrid.PerHour(1), hybrid.Options{Shadow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	p.metrics.Watch(l)
	for range 3 {
		l.Allow(t.Context(), "k")
	}
	wantValues(t, reg, map[string]float64{"hybrid_shadowed_decisions_total": 2})
}

// When a limiter is replaced its counts stay, and what it holds goes.
func TestWatchAnother(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p := newProcess(t, reg, "api", hybrid.PerHour(1000), tally.Options{})
	calls := 0.0
	for i := range 3 {
		for k := range 3 {
			p.counted.Allow(t.Context(), strconv.Itoa(k))
			p.Allow(t.Context(), strconv.Itoa(k)) // not through the wrapper
		}
		wantValues(t, reg, map[string]float64{"hybrid_keys": 3})
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		calls += float64(p.Stats().Calls)
		if i < 2 {
			p.watch(t, hybrid.PerHour(1000))
			var err error
			if p.counted, err = p.metrics.Count(p.Limiter, tally.Options{}); err != nil {
				t.Fatal(err)
			}
			wantValues(t, reg, map[string]float64{"hybrid_redis_calls_total": calls, "hybrid_keys": 0, "hybrid_held_tokens": 0})
		}
	}
	p.metrics.Watch(p.Limiter) // the same: nothing is counted twice
	wantValues(t, reg, map[string]float64{
		"hybrid_redis_calls_total": calls,
		"hybrid_decisions_total{limiter=api,origin=remote,outcome=allowed}": 9,
	})
}

func TestBeforeWatch(t *testing.T) {
	m, err := promlimit.New(promlimit.Options{Name: "api"})
	if err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(m); n != 1 {
		t.Errorf("%d series, want the histogram alone", n)
	}
}

func TestBadInput(t *testing.T) {
	if m, err := promlimit.New(promlimit.Options{}); m != nil || !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("without a name: %v, %v", m, err)
	}
	m, err := promlimit.New(promlimit.Options{Name: "api"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Watch(nil); !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("Watch(nil): %v", err)
	}
	if l, err := m.Count(nil, tally.Options{}); l != nil || !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("Count(nil): %v, %v", l, err)
	}
	other, _ := promlimit.New(promlimit.Options{Name: "api"})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	if reg.Register(other) == nil {
		t.Error("two of one name were registered")
	}
}

func TestNativeHistogram(t *testing.T) {
	m, err := promlimit.New(promlimit.Options{Name: "api"})
	if err != nil {
		t.Fatal(err)
	}
	m.Called(70*time.Microsecond, nil)
	m.Called(100*time.Millisecond, errors.New("no answer"))
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	h := families[0].Metric[0].Histogram
	if h.GetSampleCount() != 2 || h.Schema == nil || len(h.PositiveDelta) != 2 || len(h.Bucket) != len(figures.CallTimeBounds) {
		t.Errorf("%v", h)
	}
}

// TestScrapeUnderLoad scrapes by HTTP while requests are made: no count goes down, and in the end they add up.
func TestScrapeUnderLoad(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p := newProcess(t, reg, "api", hybrid.PerSecond(20_000), tally.Options{Class: func(key string) string { return "class-" + key }})
	server := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	scrape := func() map[string]float64 {
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return values(families)
	}

	const workers, each = 4, 20_000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			key := strconv.Itoa(w % 2)
			for range each {
				if _, err := p.counted.Allow(context.Background(), key); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	last := map[string]float64{}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		now := scrape()
		for series, v := range last {
			if got, ok := now[series]; !ok || got < v && strings.Contains(series, "_total") {
				t.Fatalf("%s was %v and is %v", series, v, got)
			}
		}
		last = now
	}
	if err := p.Close(t.Context()); err != nil { // now nothing changes any more
		t.Error(err)
	}
	last = scrape()
	sum := func(parts ...string) (total float64) {
		for _, series := range slices.Sorted(maps.Keys(last)) {
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(series, p) }) {
				total += last[series]
			}
		}
		return total
	}
	if n := sum("hybrid_decisions_total"); n != workers*each {
		t.Errorf("%v decisions, want %d", n, workers*each)
	}
	for _, class := range []string{"class=class-0", "class=class-1"} {
		if n := sum("hybrid_decisions_total", class); n != workers*each/2 {
			t.Errorf("%v decisions of %s, want %d", n, class, workers*each/2)
		}
	}
	// Each token that was leased was spent by a decision from memory, or is accounted for.
	spent := sum("hybrid_leased_tokens_total") - sum("hybrid_held_tokens") - sum("hybrid_returned_tokens_total") - sum("hybrid_expired_tokens_total")
	if local := sum("hybrid_decisions_total", "origin=local", "outcome=allowed"); local != spent || local == 0 {
		t.Errorf("%v decided by leased tokens, of which %v were spent", local, spent)
	}
	// What Close gives back is a call that no Observer is told of.
	if calls, told := sum("hybrid_redis_calls_total"), sum("hybrid_redis_call_duration_seconds"); told == 0 || calls < told || calls > told+2 {
		t.Errorf("%v calls, of which the histogram has %v", calls, told)
	}
	if leases := sum("hybrid_leases_total"); leases < 1 || leases > sum("hybrid_redis_calls_total") {
		t.Errorf("%v leases", leases)
	}
}
