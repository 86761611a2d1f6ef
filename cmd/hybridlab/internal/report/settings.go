package report

import (
	"fmt"
	"strings"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/chart"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// Setting is a field of the scenario of each run, in words.
type Setting struct {
	Name   string
	Values []string
	Differ bool // the runs are not alike in it
}

// Settings returns the scenarios of recs as a table.
func Settings(recs []fleet.Recording) []Setting {
	var table []Setting
	for i, f := range fields {
		table = append(table, Setting{Name: f.name})
		for _, rec := range recs {
			value := f.value(rec.Scenario)
			table[i].Differ = table[i].Differ || len(table[i].Values) > 0 && value != table[i].Values[0]
			table[i].Values = append(table[i].Values, value)
		}
	}
	return table
}

var fields = []struct {
	name  string
	value func(s scenario.Scenario) string
}{
	{"limit", func(s scenario.Scenario) string { return s.Limit.String() }},
	{"mode", func(s scenario.Scenario) string { return string(s.Mode) }},
	{"instances", func(s scenario.Scenario) string { return fmt.Sprint(s.Instances) }},
	{"lease size", func(s scenario.Scenario) string {
		return orDefault(s.LeaseSize, "adaptive", fmt.Sprint(s.LeaseSize)+" tokens")
	}},
	{"refresh", func(s scenario.Scenario) string { return orDefault(s.Refresh, byLimit, s.Refresh.String()) }},
	{"lease TTL", func(s scenario.Scenario) string { return orDefault(s.LeaseTTL, byLimit, s.LeaseTTL.String()) }},
	{"most leased", func(s scenario.Scenario) string {
		return orDefault(s.MaxLeased, byLimit, percent(s.MaxLeased)+" of the burst")
	}},
	{"slack", func(s scenario.Scenario) string { return orDefault(s.Slack, "none", percent(s.Slack)+" of the burst") }},
	{"when Redis is away", func(s scenario.Scenario) string {
		if !s.Mode.Hybrid() {
			return "calls fail"
		}
		return orDefault(s.OnFailure, "local", s.OnFailure)
	}},
	{"delay of Redis", func(s scenario.Scenario) string {
		return orDefault(s.Delay, "none", s.Delay.String()+" more per round trip")
	}},
	{"demand", func(s scenario.Scenario) string {
		return fmt.Sprintf("%s, %s requests/s of each instance", s.Demand.Pattern, chart.Number(s.Demand.PerInstance))
	}},
	{"cost of a request", func(s scenario.Scenario) string { return plural(max(1, s.Demand.Cost), "token") }},
	{"runs for", func(s scenario.Scenario) string { return s.For.String() }},
	{"faults", func(s scenario.Scenario) string { return faults(s.Faults) }},
}

// byLimit stands for options that the library derives.
const byLimit = "default"

// orDefault returns text, unless v is zero.
func orDefault[T comparable](v T, zero, text string) string {
	var none T
	if v == none {
		return zero
	}
	return text
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func faults(list []scenario.Fault) string {
	var said []string
	for _, f := range list {
		what := "Redis hangs"
		if f.Kind == scenario.Kill {
			what = fmt.Sprintf("instance %d dies", f.Instance)
		}
		said = append(said, fmt.Sprintf("%s at %s for %s", what, f.At, f.For))
	}
	return orDefault(strings.Join(said, "; "), "none", strings.Join(said, "; "))
}
