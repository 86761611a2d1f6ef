package report

import (
	"strconv"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/chart"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
)

// Number is a figure of the verdict, of each run.
type Number struct {
	Name   string
	Help   string
	Values []string
}

// Numbers returns the verdicts of recs in figures. A run in which nothing was asked has a dash for each.
func Numbers(recs []fleet.Recording) []Number {
	numbers := make([]Number, len(figures))
	for i, f := range figures {
		numbers[i] = Number{Name: f.name, Help: f.help}
		for _, rec := range recs {
			value := "–"
			if rec.Verdict.Asked > 0 {
				value = f.value(rec.Verdict)
			}
			numbers[i].Values = append(numbers[i].Values, value)
		}
	}
	return numbers
}

var figures = []struct {
	name, help string
	value      func(v fleet.Verdict) string
}{
	{"of ideal", "tokens admitted, against one ideal bucket", func(v fleet.Verdict) string { return percent(v.OfIdeal) }},
	{"calls per decision", "requests to Redis for each decision", func(v fleet.Verdict) string { return chart.Number(v.CallsEach) }},
	{"calls per second", "requests to Redis, all instances", func(v fleet.Verdict) string { return chart.Number(v.CallsRate) }},
	{"worst excess", "tokens above Burst + Rate·W in the worst window", func(v fleet.Verdict) string { return chart.Number(v.Excess) }},
	{"p50", "half of the decisions took less", func(v fleet.Verdict) string { return chart.Micros(v.P50) }},
	{"p99", "99 of 100 decisions took less", func(v fleet.Verdict) string { return chart.Micros(v.P99) }},
	{"asked", "requests so far", func(v fleet.Verdict) string { return strconv.FormatInt(v.Asked, 10) }},
	{"admitted", "tokens so far", func(v fleet.Verdict) string { return strconv.FormatInt(v.Admitted, 10) }},
}

// percent writes a fraction with one decimal.
func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + " %" }
