package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/chart"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

const (
	maxPoints = 240 // of a line; more samples than that are joined
	maxAreas  = 8   // of instances; what the others hold is one area
	maxName   = 24  // bytes of a name that stands in a legend
)

// Charts draws recs, in an order that is always the same. What is one line of a run is in one chart for all of them; what
// is a stack of areas is in a chart for each, on the same scale.
func Charts(recs []fleet.Recording) []chart.Chart {
	runs := make([]run, len(recs))
	names := names(recs)
	for i, rec := range recs {
		runs[i] = run{Recording: rec, samples: joined(rec.Samples)}
		if len(recs) > 1 {
			runs[i].letter, runs[i].name = Letter(i), names[i]
		}
	}
	charts := []chart.Chart{admitted(runs), calls(runs)}
	charts = append(charts, held(runs)...)
	charts = append(charts, denials(runs)...)
	return append(charts, latency(runs))
}

// Letter names the run at i: A, B and so on.
func Letter(i int) string { return string(rune('A' + i%26)) }

// names returns how runs are called beside each other: by their own names, if these are short and tell them apart, else by
// their letters.
func names(recs []fleet.Recording) []string {
	var own, letters []string
	for i, rec := range recs {
		letters = append(letters, Letter(i))
		if name := rec.Scenario.Name; name != "" && len(name) <= maxName && !slices.Contains(own, name) {
			own = append(own, name)
		}
	}
	if len(own) == len(recs) {
		return own
	}
	return letters
}

// run is a recording that is drawn.
type run struct {
	fleet.Recording
	letter  string // "" for the only one
	name    string // likewise
	samples []fleet.Sample
}

// of puts the name of the run before what is shown of it.
func (r run) of(what string) string {
	if r.name == "" {
		return what
	}
	return r.name + ": " + what
}

// id is name for the only run, or name and the run.
func (r run) id(name string) string {
	if r.letter == "" {
		return name
	}
	return name + "-" + r.letter
}

// or is the name of the run, or what if it is the only one: for a chart with one line of each.
func (r run) or(what string) string {
	if r.name == "" {
		return what
	}
	return r.name
}

// points returns a value of each sample at its time.
func (r run) points(value func(s fleet.Sample) float64) []chart.Point {
	points := make([]chart.Point, len(r.samples))
	for i, s := range r.samples {
		points[i] = chart.Point{X: s.At, Y: value(s)}
	}
	return points
}

// rate returns a count of each sample, for a second.
func (r run) rate(count func(s fleet.Sample) int64) []chart.Point {
	points := make([]chart.Point, 0, len(r.samples))
	before := 0.0
	for _, s := range r.samples {
		if s.At > before {
			points = append(points, chart.Point{X: s.At, Y: float64(count(s)) / (s.At - before)})
			before = s.At
		}
	}
	return points
}

// spans returns what went wrong in the run, and when.
func (r run) spans() []chart.Span {
	var spans []chart.Span
	before := 0.0
	for _, s := range r.Samples {
		last := len(spans) - 1
		switch {
		case s.Fault == "":
		case last >= 0 && spans[last].Label == s.Fault && spans[last].To == before:
			spans[last].To = s.At
		default:
			spans = append(spans, chart.Span{From: before, To: s.At, Label: s.Fault})
		}
		before = s.At
	}
	return spans
}

// end is how long the longest run takes, in seconds.
func end(runs []run) float64 {
	longest := 0.0
	for _, r := range runs {
		if !r.Done {
			longest = max(longest, seconds(r.Scenario.For))
		}
	}
	return longest
}

// overlaid returns a chart of all runs, with what was wrong in each of them; what was wrong in all alike is said once.
func overlaid(runs []run, c chart.Chart, lines func(r run, color int) []chart.Series) chart.Chart {
	c.End = end(runs)
	said := map[string]bool{}
	for i, r := range runs {
		c.Series = append(c.Series, lines(r, i)...)
		for _, s := range r.spans() {
			key := fmt.Sprintf("%s %.0f %.0f", s.Label, s.From, s.To)
			if said[key] {
				continue
			}
			said[key] = true
			c.Spans = append(c.Spans, s)
		}
	}
	return c
}

func admitted(runs []run) chart.Chart {
	same := !slices.ContainsFunc(runs, func(r run) bool { return !asksTheSame(r.Scenario, runs[0].Scenario) })
	return overlaid(runs, chart.Chart{
		Name: "admitted", Title: "Admitted, against one ideal bucket", Unit: "tokens/s",
		About: "Tokens admitted per second by all instances together, and by one ideal bucket that is asked the same.",
	}, func(r run, color int) []chart.Series {
		did := chart.Series{Name: r.or("admitted"), Color: color, Points: r.rate(func(s fleet.Sample) int64 { return s.Admitted })}
		ideal := chart.Series{Name: r.of("ideal"), Color: color, Dashed: true, Points: r.rate(func(s fleet.Sample) int64 { return s.Ideal })}
		if !same {
			return []chart.Series{ideal, did}
		}
		if color > 0 { // the ideal of the first is that of all
			return []chart.Series{did}
		}
		ideal.Name, ideal.Color = "ideal", chart.Colors-1
		return []chart.Series{ideal, did}
	})
}

// asksTheSame reports whether one ideal bucket would decide alike in a and b, but for chance and for what dies.
func asksTheSame(a, b scenario.Scenario) bool {
	return a.Limit == b.Limit && a.Instances == b.Instances && a.Demand == b.Demand && a.For == b.For && faults(a.Faults) == faults(b.Faults)
}

func calls(runs []run) chart.Chart {
	return overlaid(runs, chart.Chart{
		Name: "calls", Title: "Calls to Redis", Unit: "calls/s",
		About: "Calls to Redis per second, of all instances together, also those that it did not answer.",
	}, func(r run, color int) []chart.Series {
		return []chart.Series{{Name: r.or("calls"), Color: color, Step: true, Points: r.rate(func(s fleet.Sample) int64 { return s.Calls })}}
	})
}

func latency(runs []run) chart.Chart {
	return overlaid(runs, chart.Chart{
		Name: "latency", Title: "How long a decision takes", Unit: "time, log scale", Label: chart.Micros, Log: true,
		About: "Half of the decisions took less than p50, all but one in a hundred less than p99.",
	}, func(r run, color int) []chart.Series {
		p50 := chart.Series{Name: r.of("p50"), Color: color, Dashed: r.name != "", Points: r.points(func(s fleet.Sample) float64 { return s.P50 })}
		p99 := chart.Series{Name: r.of("p99"), Color: color, Points: r.points(func(s fleet.Sample) float64 { return s.P99 })}
		if r.name == "" {
			p99.Color = 1
		}
		return []chart.Series{p50, p99}
	})
}

// held returns a chart for each run: what each instance holds, and so what all of them do.
func held(runs []run) []chart.Chart {
	charts := make([]chart.Chart, len(runs))
	for i, r := range runs {
		c := chart.Chart{
			Name: r.id("held"), Title: r.of("Tokens out on lease"), Unit: "tokens", Stacked: true, End: end(runs), Spans: r.spans(),
			About: "Tokens that each instance holds, on top of each other.",
		}
		if r.Scenario.Mode != scenario.Leased {
			c.Empty = fmt.Sprintf("the mode %s leases nothing", r.Scenario.Mode)
		} else {
			c.Series = holders(r)
		}
		charts[i] = c
	}
	return sameScale(charts)
}

func holders(r run) []chart.Series {
	instances := 0
	for _, s := range r.samples {
		instances = max(instances, len(s.Held))
	}
	single := instances // shown one by one
	if instances > maxAreas {
		single = maxAreas - 1
	}
	var areas []chart.Series
	for i := range single {
		areas = append(areas, chart.Series{Name: fmt.Sprintf("instance %d", i), Color: i, Points: r.points(func(s fleet.Sample) float64 {
			return sum(s.Held, i, i+1)
		})})
	}
	if single < instances {
		areas = append(areas, chart.Series{Name: fmt.Sprintf("%d others", instances-single), Color: single, Points: r.points(func(s fleet.Sample) float64 {
			return sum(s.Held, single, instances)
		})})
	}
	return areas
}

// sum adds those of counts from one index up to another, as far as they are there.
func sum(counts []int64, from, to int) float64 {
	total := int64(0)
	for i := from; i < min(to, len(counts)); i++ {
		total += counts[i]
	}
	return float64(total)
}

// denials returns a chart for each run: what was denied, by what decided.
func denials(runs []run) []chart.Chart {
	charts := make([]chart.Chart, len(runs))
	for i, r := range runs {
		c := chart.Chart{
			Name: r.id("denials"), Title: r.of("Denials, by what decided"), Unit: "requests/s", Stacked: true, End: end(runs), Spans: r.spans(),
			About: "Requests denied per second, on top of each other by what decided. Errors are requests that nothing decided.",
			Top:   10,
		}
		for k, cause := range []struct {
			name  string
			count func(s fleet.Sample) int64
		}{
			{"memory", func(s fleet.Sample) int64 { return s.DeniedLocal }},
			{"Redis", func(s fleet.Sample) int64 { return s.DeniedRemote }},
			{"failure policy", func(s fleet.Sample) int64 { return s.DeniedFallback }},
			{"errors", func(s fleet.Sample) int64 { return s.Failed }},
		} {
			c.Series = append(c.Series, chart.Series{Name: cause.name, Color: []int{0, 3, 1, 5}[k], Step: true, Points: r.rate(cause.count)})
		}
		charts[i] = c
	}
	return sameScale(charts)
}

// sameScale makes charts that are compared reach as high as the highest of them.
func sameScale(charts []chart.Chart) []chart.Chart {
	top, last := 0.0, 0.0
	for _, c := range charts {
		high, end := c.Reach()
		top, last = max(top, high), max(last, end)
	}
	for i := range charts {
		charts[i].Top, charts[i].End = top, last
	}
	return charts
}

// joined returns samples, or as many of them together that no more than maxPoints are left. Counts add up; of durations
// the longest stays, so that a spike is not lost; of what is at the end of a sample the last.
func joined(samples []fleet.Sample) []fleet.Sample {
	by := (len(samples) + maxPoints - 1) / maxPoints
	if by <= 1 {
		return samples
	}
	var out []fleet.Sample
	for i, s := range samples {
		if i%by == 0 {
			out = append(out, s)
			continue
		}
		j := &out[len(out)-1]
		j.At, j.Held, j.Excess = s.At, s.Held, s.Excess
		j.Asked += s.Asked
		j.Admitted += s.Admitted
		j.Ideal += s.Ideal
		j.Calls += s.Calls
		j.DeniedLocal += s.DeniedLocal
		j.DeniedRemote += s.DeniedRemote
		j.DeniedFallback += s.DeniedFallback
		j.Failed += s.Failed
		j.P50, j.P99 = max(j.P50, s.P50), max(j.P99, s.P99)
	}
	return out
}

func seconds(d scenario.Duration) float64 { return math.Round(float64(d)/1e6) / 1e3 }
