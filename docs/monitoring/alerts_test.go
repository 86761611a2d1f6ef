package monitoring

import (
	"context"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("alerts.yml", false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Fatal(err)
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

var labelInText = regexp.MustCompile(`\$labels\.(\w+)`)

func TestAlertsAreOfMetricsThatExist(t *testing.T) {
	metrics := scrape(t)
	page := read(t, "../metrics.md")
	for _, r := range rules(t) {
		expr, err := promQL.ParseExpr(r.Expr)
		if err != nil {
			t.Errorf("%s: %v", r.Alert, err)
			continue
		}
		names := metrics.check(t, r.Alert, expr)
		if r.Labels["severity"] == "" || r.For == 0 {
			t.Errorf("%s has no severity, or fires at once", r.Alert)
		}
		for _, a := range []string{"summary", "description", "runbook_url"} {
			if r.Annotations[a] == "" {
				t.Errorf("%s has no %s", r.Alert, a)
			}
			for _, m := range labelInText.FindAllStringSubmatch(r.Annotations[a], -1) {
				if metrics[names[0]][m[1]] == nil {
					t.Errorf("%s: %s has no label %q for its %s", r.Alert, names[0], m[1], a)
				}
			}
		}
		where, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
		if where != "https://github.com/hybridlimit/hybrid/blob/main/docs/metrics.md" || anchor != strings.ToLower(r.Alert) || !strings.Contains(page, "### "+r.Alert+"\n") {
			t.Errorf("%s has no section in docs/metrics.md under %s", r.Alert, r.Annotations["runbook_url"])
		}
	}
}

// step is the time between two samples, length how long there are some.
const (
	step   = 15 * time.Second
	length = 2 * time.Hour
)

// healthy is a limiter with nothing wrong: 1,000 decisions per second, one in a hundred denied, leases of 67 tokens. Numbers
// are "start+increase x steps".
const healthy = `
hybrid_decisions_total{limiter="api",outcome="allowed",origin="local"} 0+14550x480
hybrid_decisions_total{limiter="api",outcome="allowed",origin="remote"} 0+300x480
hybrid_decisions_total{limiter="api",outcome="denied",origin="local"} 0+150x480
hybrid_redis_calls_total{limiter="api"} 0+300x480
hybrid_redis_call_failures_total{limiter="api"} 0x480
hybrid_redis_call_duration_seconds_bucket{limiter="api",le="0.0005"} 0+200x480
hybrid_redis_call_duration_seconds_bucket{limiter="api",le="0.01"} 0+298x480
hybrid_redis_call_duration_seconds_bucket{limiter="api",le="0.1"} 0+300x480
hybrid_redis_call_duration_seconds_bucket{limiter="api",le="+Inf"} 0+300x480
hybrid_leased_tokens_total{limiter="api"} 0+15000x480
hybrid_expired_tokens_total{limiter="api"} 0+150x480
hybrid_fallback_decisions_total{limiter="api"} 0x480
hybrid_redis_unavailable{limiter="api"} 0x480
hybrid_keys{limiter="api"} 5000x480
`

func TestAlertsFireWhenTheyShould(t *testing.T) {
	cases := []struct {
		name   string
		series string // in the place of those of the same name and labels, or besides
		fire   string // the alerts, sorted
	}{
		{"healthy", "", ""},
		{"Redis away", `hybrid_redis_unavailable{limiter="api"} 0x240 1x240`, "HybridRedisUnavailable"},
		{"Redis away for half a minute", `hybrid_redis_unavailable{limiter="api"} 0x240 1x2 0x238`, ""},
		{"one process away", `hybrid_redis_unavailable{limiter="api",instance="b"} 0x240 1x240`, "HybridRedisUnavailable"},
		{"decided without Redis", `hybrid_fallback_decisions_total{limiter="api"} 0x240 0+10x240`, "HybridFallbackDecisions"},
		{"decided without Redis for a moment", `hybrid_fallback_decisions_total{limiter="api"} 0x240 5000x240`, ""},
		{"calls fail", `hybrid_redis_call_failures_total{limiter="api"} 0x240 0+10x240`, "HybridCallsFail"},
		{"few calls fail", `hybrid_redis_call_failures_total{limiter="api"} 0x240 0+1x240`, ""},
		{"calls near the time-out", `
			hybrid_redis_call_duration_seconds_bucket{limiter="api",le="0.01"} 0+290x480`, "HybridCallsSlow"},
		{"denials jump", `
			hybrid_decisions_total{limiter="api",outcome="denied",origin="local"} 0+150x400 60000+1500x79`, "HybridDenialsJump"},
		{"first denials", `
			hybrid_decisions_total{limiter="api",outcome="denied",origin="local"} _x400 0+1500x79`, "HybridDenialsJump"},
		{"as many denials as ever", `
			hybrid_decisions_total{limiter="api",outcome="denied",origin="local"} 0+6000x480`, ""},
		{"few denials, three times as many", `
			hybrid_decisions_total{limiter="api",outcome="denied",origin="local"} 0+150x400 60000+600x79`, ""},
		{"every decision asks Redis", `
			hybrid_redis_calls_total{limiter="api"} 0+12000x480`, "HybridLeasesTooSmall"},
		{"every decision asks Redis, but few", `
			hybrid_decisions_total{limiter="api",outcome="allowed",origin="local"} 0x480
			hybrid_decisions_total{limiter="api",outcome="denied",origin="local"} 0x480`, ""},
		{"leases outlive their demand", `hybrid_expired_tokens_total{limiter="api"} 0+1500x480`, "HybridLeasesTooLarge"},
		{"keys at MaxKeys", `hybrid_keys{limiter="api"} 5000x240 65536x240`, "HybridKeysForgotten"},
	}
	fired := make(map[string]bool)
	for _, c := range cases {
		data := newSeries(t, healthy)
		maps.Copy(data, newSeries(t, c.series))
		var fire []string
		for _, r := range rules(t) {
			if fires(t, data, r) {
				fire = append(fire, r.Alert)
				fired[r.Alert] = true
			}
		}
		slices.Sort(fire)
		if got := strings.Join(fire, " "); got != c.fire {
			t.Errorf("%s: %q, want %q", c.name, got, c.fire)
		}
	}
	for _, r := range rules(t) {
		if !fired[r.Alert] {
			t.Errorf("nothing makes %s fire", r.Alert)
		}
	}
}

// TestSeriesExist requires of the series above that a limiter really has them.
func TestSeriesExist(t *testing.T) {
	metrics := scrape(t)
	for name := range newSeries(t, healthy) {
		expr, err := promQL.ParseExpr(name)
		if err != nil {
			t.Fatal(err)
		}
		metrics.check(t, name, expr)
	}
}

// series are samples by the name of the series.
type series map[string]storage.Series

func newSeries(t *testing.T, text string) series {
	t.Helper()
	all := make(series)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		lset, values, err := promQL.ParseSeriesDesc(line)
		if err != nil {
			t.Fatal(err)
		}
		var samples []chunks.Sample
		for i, v := range values {
			if !v.Omitted {
				samples = append(samples, sample{int64(i) * step.Milliseconds(), v.Value})
			}
		}
		all[lset.String()] = storage.NewListSeries(lset, samples)
	}
	return all
}

// Querier implements storage.Queryable.
func (s series) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &seriesSet{at: -1}
		for _, name := range slices.Sorted(maps.Keys(s)) {
			matches := func(m *labels.Matcher) bool { return m.Matches(s[name].Labels().Get(m.Name)) }
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !matches(m) }) {
				set.all = append(set.all, s[name])
			}
		}
		return set
	}}, nil
}

type seriesSet struct {
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *seriesSet) At() storage.Series                { return s.all[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// sample is a number at a time in milliseconds.
type sample struct {
	t int64
	f float64
}

func (s sample) T() int64                      { return s.t }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.f }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// fires evaluates a rule every step, as Prometheus does, and reports whether it was true for as long as it has to be.
func fires(t *testing.T, data series, r rulefmt.Rule) bool {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: promQL})
	defer engine.Close()
	q, err := engine.NewRangeQuery(context.Background(), data, nil, r.Expr, time.Unix(0, 0), time.Unix(0, 0).Add(length), step)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	res := q.Exec(context.Background())
	matrix, err := res.Matrix()
	if err != nil {
		t.Fatalf("%s: %v", r.Alert, err)
	}
	for _, s := range matrix {
		since := int64(-1) // when it became true
		last := int64(-1)
		for _, p := range s.Floats {
			if since < 0 || p.T-last > step.Milliseconds() {
				since = p.T
			}
			if last = p.T; p.T-since >= time.Duration(r.For).Milliseconds() {
				return true
			}
		}
	}
	return false
}
