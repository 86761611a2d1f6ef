package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
)

// row is something that is measured in one go; it may be several lines of the table.
type row struct {
	name    string // what -row selects
	redis   bool   // says little without a real one
	lines   []line
	measure func(l *lab) ([]result, error) // one for each line
}

// line is one number to reach.
type line struct {
	what        string
	goal, floor float64 // NaN: only for comparison
	atLeast     bool    // else at most
}

// result is what a line came to in one run.
type result struct {
	values []float64 // of the rounds
	counts string    // what else tells whether the right thing was measured
	void   string    // why the values are not what the line says; empty if they are
	// unjudged is why they are right but say nothing about the goal; empty if they do.
	unjudged string
}

var none = math.NaN()

// rows are the table of numbers to reach.
func rows() []row {
	rs := []row{
		{name: "handle", measure: (*lab).handle, lines: []line{
			{what: "handle, a lease that lasts / x/time/rate", goal: 0.12, floor: 0.20}}},
		{name: "hot-key", measure: (*lab).hotKey, lines: []line{
			{what: "handle, 64 goroutines on 2 CPUs / x/time/rate", goal: 0.10, floor: 0.20}}},
		{name: "denial", measure: (*lab).denial, lines: []line{
			{what: "denial from memory / denial of x/time/rate", goal: 0.05, floor: 0.10}}},
		{name: "by-key", measure: (*lab).byKey, lines: []line{
			{what: "by key, 10 000 keys, Zipf 1.1 / sync.Map of x/time/rate", goal: 0.25, floor: 0.35},
			{what: "the same / golang-lru of x/time/rate", goal: none, floor: none}}},
		{name: "allocations", measure: (*lab).allocations, lines: []line{
			{what: "objects per decision, handle"},
			{what: "objects per decision, by key"},
			{what: "objects per decision, denial"}}},
		{name: "memory", measure: (*lab).idleKeys, lines: []line{
			{what: "bytes per idle key of 1 000 000, without its text", goal: 256, floor: 320}}},
	}
	hits := row{name: "hit-ratio", measure: (*lab).hitRatio}
	for _, c := range capacities {
		hits.lines = append(hits.lines, line{
			what: fmt.Sprintf("hits of a table of %s / of a true LRU, Zipf 1.1 over 1 000 000 keys", measure.Thousands(float64(c))),
			goal: 0.995, floor: 0.97, atLeast: true})
	}
	leases := row{name: "fixed-lease", redis: true, measure: (*lab).fixedLeases}
	for _, n := range leaseSizes {
		leases.lines = append(leases.lines, line{what: fmt.Sprintf("Redis calls per %d decisions, leases of %[1]d", n), goal: 1.1, floor: 1.5})
	}
	busy := row{name: "busy-key", redis: true, measure: (*lab).busyKeys}
	for _, r := range busyRates {
		busy.lines = append(busy.lines, line{
			what: fmt.Sprintf("Redis calls/s of a busy key, %s/s, burst of 0.35 s", measure.Thousands(float64(r))), goal: 60, floor: 100})
	}
	dry := row{name: "dry-key", redis: true, measure: (*lab).dryKeys}
	for _, r := range dryRates {
		dry.lines = append(dry.lines, line{
			what: fmt.Sprintf("Redis calls/s of a dry key, flooded, %s/s, burst of 0.5 s", measure.Thousands(float64(r))), goal: 25, floor: 50})
	}
	exact := row{name: "exact", redis: true, measure: (*lab).exact}
	for i, g := range groups {
		goal, floor := []float64{1, 8, 25}[i], []float64{0.8, 3, 8}[i]
		for _, what := range []string{"Exact", "remote.TokenBucket"} {
			exact.lines = append(exact.lines, line{
				what: fmt.Sprintf("decisions/s, %s, goroutines: %d / redis_rate", what, g), goal: goal, floor: floor, atLeast: true})
		}
	}
	return append(rs, hits, leases, busy, dry,
		row{name: "throughput", redis: true, measure: (*lab).throughput, lines: []line{
			{what: "decisions/s, leases of 1000, 64 goroutines / redis_rate", goal: 100, floor: 50, atLeast: true}}},
		exact,
		row{name: "p999", redis: true, measure: (*lab).tail, lines: []line{
			{what: "p999 at 10 000/s, open loop / redis_rate", goal: 0.02, floor: 0.10}}},
		row{name: "bound", redis: true, measure: (*lab).overAdmission, lines: []line{
			{what: "tokens above Burst + Rate*W in the worst window"}}},
		row{name: "shortfall", redis: true, measure: (*lab).shortfall, lines: []line{
			{what: "admitted / an ideal bucket over 60 s, 10 processes, the worst of 5 loads", goal: 0.995, floor: 0.99, atLeast: true},
			{what: "tokens behind it beyond 0.1 %, in Rate*max(tau, 50 ms)", goal: 3, floor: 3}}},
	)
}

// verdict says whether x is good enough.
func (l line) verdict(x float64) string {
	reached := func(mark float64) bool {
		if l.atLeast {
			return x >= mark
		}
		return x <= mark
	}
	switch {
	case math.IsNaN(l.goal):
		return "-"
	case reached(l.goal):
		return "goal"
	case reached(l.floor):
		return "floor"
	}
	return "missed"
}

// measured is a line with its results, one of each run.
type measured struct {
	row
	line
	results []result
}

// value is the median over the runs, each of which is a median over its rounds.
func (m *measured) value() float64 {
	var xs []float64
	for _, r := range m.results {
		xs = append(xs, measure.Median(slices.Clone(r.values)))
	}
	return measure.Median(xs)
}

// spread is the middle half of the rounds of all runs: lower and upper quartile.
func (m *measured) spread() (low, high float64) {
	var xs []float64
	for _, r := range m.results {
		xs = append(xs, r.values...)
	}
	slices.Sort(xs)
	return xs[(len(xs)-1)/4], xs[len(xs)-1-(len(xs)-1)/4]
}

func (m *measured) verdict(realRedis bool) string {
	for _, r := range m.results {
		if r.void != "" {
			return "void: " + r.void
		}
		if r.unjudged != "" {
			return "- (" + r.unjudged + ")"
		}
	}
	if m.redis && !realRedis {
		return "- (no real Redis)"
	}
	return m.line.verdict(m.value())
}

// write writes the table. Counts are those of the last run.
func write(w io.Writer, ms []*measured, realRedis bool) {
	fmt.Fprintln(w, "| row | what | goal | floor | measured | spread | verdict | counts |")
	fmt.Fprintln(w, "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |")
	for _, m := range ms {
		low, high := m.spread()
		sign := "≤ "
		if m.atLeast {
			sign = "≥ "
		}
		cells := []string{m.name, m.what, sign + number(m.goal), sign + number(m.floor), number(m.value()),
			number(low) + " to " + number(high), m.verdict(realRedis), m.results[len(m.results)-1].counts}
		if math.IsNaN(m.goal) {
			cells[2], cells[3] = "", ""
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
}

// number shows as many digits as decide about a goal.
func number(x float64) string {
	switch {
	case x >= 999.5:
		return measure.Thousands(x)
	case x >= 99.5:
		return fmt.Sprintf("%.0f", x)
	case x >= 9.95:
		return fmt.Sprintf("%.3g", x)
	case x >= 0.1:
		return trimmed(fmt.Sprintf("%.3f", x))
	case x >= 0.001:
		return fmt.Sprintf("%.2g", x)
	case x > 0:
		return fmt.Sprintf("%.0e", x)
	}
	return "0"
}

func trimmed(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }
