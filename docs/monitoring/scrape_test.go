package monitoring

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/promlimit"
	"github.com/hybridlimit/hybrid/tally"
)

var promQL = parser.NewParser(parser.Options{})

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// scraped are the names of the series that a limiter exports, each with the values of its labels. The value of a label
// that can have any is "".
type scraped map[string]map[string]map[string]bool

// scrape exports a limiter that has met all outcomes and origins.
func scrape(t *testing.T) scraped {
	t.Helper()
	m, err := promlimit.New(promlimit.Options{Name: "api"})
	if err != nil {
		t.Fatal(err)
	}
	src, ctx := leasetest.NewSource(), context.Background()
	l, err := hybrid.NewFrom(src, limit.PerHour(1000), hybrid.Options{Observer: m, LeaseSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx)
	if err := m.Watch(l); err != nil {
		t.Fatal(err)
	}
	counted, err := m.Count(l, tally.Options{Class: func(string) string { return "free" }})
	if err != nil {
		t.Fatal(err)
	}
	for range 1100 { // by Redis, from memory, and denied by either
		counted.Allow(ctx, "k")
	}
	counted.Allow(ctx, "") // failed
	src.Down(errors.New("pulled the plug"))
	for range 1100 {
		counted.Allow(ctx, "other")
	}
	src.Down(nil)

	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(scraped)
	add := func(name, label, value string) {
		if all[name] == nil {
			all[name] = make(map[string]map[string]bool)
		}
		if all[name][label] == nil {
			all[name][label] = make(map[string]bool)
		}
		all[name][label][value] = true
	}
	for _, f := range families {
		names := []string{f.GetName()}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			names = []string{f.GetName() + "_bucket", f.GetName() + "_sum", f.GetName() + "_count"}
			add(names[0], "le", "")
		}
		for _, name := range names {
			for _, series := range f.Metric {
				for _, l := range series.Label {
					value := l.GetValue()
					if l.GetName() == "limiter" || l.GetName() == "class" {
						value = ""
					}
					add(name, l.GetName(), value)
				}
			}
		}
	}
	return all
}

// check reports what an expression asks for that is not there.
func (s scraped) check(t *testing.T, where string, expr parser.Expr) (names []string) {
	t.Helper()
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			name := nameOf(n.LabelMatchers)
			names = append(names, name)
			if s[name] == nil {
				t.Errorf("%s: no metric %q", where, name)
			}
			for _, m := range n.LabelMatchers {
				values := s[name][m.Name]
				if m.Name != model.MetricNameLabel && (values == nil || m.Type == labels.MatchEqual && !values[""] && !values[m.Value]) {
					t.Errorf("%s: %s has no label %s", where, name, m)
				}
			}
		case *parser.AggregateExpr:
			for _, selector := range parser.ExtractSelectors(n.Expr) {
				for _, label := range n.Grouping {
					if name := nameOf(selector); s[name][label] == nil {
						t.Errorf("%s: %s has no label %q to go by", where, name, label)
					}
				}
			}
		}
		return nil
	})
	return names
}

// nameOf is the name of the metric that is selected.
func nameOf(selector []*labels.Matcher) string {
	for _, m := range selector {
		if m.Name == model.MetricNameLabel {
			return m.Value
		}
	}
	return ""
}
