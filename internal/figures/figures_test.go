package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/tally"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPrometheusNames(t *testing.T) {
	for want, m := range map[string]Metric{
		"hybrid_redis_calls_total":                   {"hybrid.redis.calls", "", "{call}", Counter},
		"hybrid_redis_outage_duration_seconds_total": {"hybrid.redis.outage.duration", "", "s", Counter},
		"hybrid_redis_round_trip_seconds":            {"hybrid.redis.round_trip", "", "s", Gauge},
		"hybrid_keys":                                {"hybrid.keys", "", "{key}", Gauge},
		"hybrid_redis_call_duration_seconds":         CallTime,
	} {
		if got := m.Prometheus(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestDocsTable requires that docs/metrics.md has a row for each metric, and no others.
func TestDocsTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[Kind]string{Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
	row := func(m Metric) string {
		return fmt.Sprintf("| `%s` | `%s` | %s | `%s` | %s |\n", m.Prometheus(), m.Name, kinds[m.Kind], m.Unit, m.Help)
	}
	want := []string{row(Decisions), row(CallTime)}
	for _, f := range Table {
		want = append(want, row(f.Metric))
	}
	var got []string
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `hybrid_") {
			got = append(got, line)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table of docs/metrics.md is not\n%s", strings.Join(want, ""))
	}
}

// TestAllOfStats requires that each field of Stats is in the figure that is meant for it, and in no other.
func TestAllOfStats(t *testing.T) {
	figures := map[string]string{
		"Terms": "", "Err": "", // are no numbers
		"Keys": "hybrid.keys", "Calls": "hybrid.redis.calls", "Failed": "hybrid.redis.call.failures",
		"Leased": "hybrid.leased_tokens", "Held": "hybrid.held_tokens", "Returned": "hybrid.returned_tokens",
		"Expired": "hybrid.expired_tokens", "Leases": "hybrid.leases", "Unavailable": "hybrid.redis.unavailable",
		"Fallbacks": "hybrid.fallback_decisions", "Shadowed": "hybrid.shadowed_decisions",
		"Instances": "hybrid.instances", "RoundTrip": "hybrid.redis.round_trip",
	}
	for field := range reflect.TypeFor[hybrid.Stats]().Fields() {
		var s hybrid.Stats
		switch v := reflect.ValueOf(&s).Elem().FieldByIndex(field.Index); v.Kind() {
		case reflect.Int, reflect.Int64:
			v.SetInt(int64(time.Second))
		case reflect.Bool:
			v.SetBool(true)
		}
		var in []string
		for _, f := range Table {
			if f.value(&s, &outages{}) != 0 {
				in = append(in, f.Name)
			}
		}
		if want, ok := figures[field.Name]; !ok || strings.Join(in, " ") != want {
			t.Errorf("Stats.%s is in %v, want %q", field.Name, in, want)
		}
	}
}

func TestCountersOfSeveralLimitersAddUp(t *testing.T) {
	var filled hybrid.Stats
	v := reflect.ValueOf(&filled).Elem()
	for _, field := range v.Fields() {
		if k := field.Kind(); k == reflect.Int || k == reflect.Int64 {
			field.SetInt(int64(time.Second))
		}
	}
	both := sum(filled, filled)
	for _, f := range Table {
		one := f.value(&filled, &outages{})
		want := one
		if f.Kind == Counter {
			want = 2 * one
		}
		if got := f.value(&both, &outages{}); got != want {
			t.Errorf("%s of two limiters is %v, want %v", f.Name, got, want)
		}
	}
}

// read is what a Source has, by name; decisions by their outcome and origin.
func read(s *Source) map[string]float64 {
	all := make(map[string]float64)
	s.Read(func(i int, v float64) { all[Table[i].Name] = v }, func(c tally.Count) {
		all[c.Class+" "+c.Outcome.String()+" "+c.Origin.String()] += float64(c.N)
	})
	return all
}

func TestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Source
		if got := read(&s); len(got) != 0 {
			t.Errorf("at first: %v", got)
		}
		if err := s.Watch(nil); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("Watch(nil): %v", err)
		}
		src := leasetest.NewSource()
		for range 2 {
			l, err := hybrid.NewFrom(src, limit.PerHour(10), hybrid.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Watch(l); err != nil {
				t.Error(err)
			}
			for range 2 { // two wrappers of one limiter
				counted, err := s.Count(l, tally.Options{})
				if err != nil {
					t.Fatal(err)
				}
				counted.Allow(context.Background(), "k")
			}
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		s.Began()
		s.Ended(time.Second)
		s.Ended(time.Second)
		got := read(&s)
		if got["hybrid.redis.calls"] != 4 || got[" allowed remote"] != 4 || got["hybrid.redis.outages"] != 1 || got["hybrid.redis.outage.duration"] != 2 {
			t.Errorf("%v", got)
		}
	})
}

func TestCheckName(t *testing.T) {
	if err := CheckName("api"); err != nil {
		t.Error(err)
	}
	if err := CheckName(""); !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := CheckName("a\xff"); !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("%v of a name that no scrape could have", err)
	}
}
