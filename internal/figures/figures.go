// Package figures says which metrics of a limiter there are: their names, what they mean, and how each is read. Packages
// promlimit and otellimit only put them into the form of their systems.
//
// A name is that of OpenTelemetry, such as "hybrid.redis.calls". That of Prometheus follows from it by the rules by which
// the two are translated: see Prometheus.
package figures

import (
	"strings"

	"github.com/hybridlimit/hybrid"
)

// Kind is how a metric behaves.
type Kind int

// The kinds.
const (
	Counter   Kind = iota // only grows
	Gauge                 // goes up and down
	Histogram             // of durations in seconds
)

// Metric is the description of a metric.
type Metric struct {
	Name string
	Help string
	Unit string // in UCUM: "s", or what is counted, in braces
	Kind Kind
}

// Prometheus is the name of the metric there.
func (m Metric) Prometheus() string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	if m.Unit == "s" {
		name += "_seconds"
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

// The metrics that are not figures: they have more than one series for a limiter, or are not read but told.
var (
	Decisions = Metric{"hybrid.decisions", "Requests that were counted, by what became of them and where that was decided.", "{decision}", Counter}
	CallTime  = Metric{"hybrid.redis.call.duration", "How long requests to Redis took, also those that got no answer.", "s", Histogram}
)

// CallTimeBounds are those of the buckets of CallTime, in seconds: 50 microseconds to 1 s, three for a factor of ten and
// one at each of the usual timeouts.
var CallTimeBounds = []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1}

// The labels of Prometheus. Those of OpenTelemetry are "hybrid." and the same.
const (
	LimiterLabel = "limiter"
	OutcomeLabel = "outcome"
	OriginLabel  = "origin"
	ClassLabel   = "class" // "" where there are none
)

// Figure is a metric with one value for a limiter.
type Figure struct {
	Metric
	value func(*hybrid.Stats, *outages) float64
}

// Table has the figures.
var Table = []Figure{
	{Metric{"hybrid.fallback_decisions", "Requests decided by FailLocal or FailOpen, because Redis did not answer.", "{decision}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Fallbacks) }},
	{Metric{"hybrid.shadowed_decisions", "Requests allowed only because of Options.Shadow.", "{decision}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Shadowed) }},
	{Metric{"hybrid.redis.calls", "Requests sent to Redis, several of which may have shared a round trip.", "{call}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Calls) }},
	{Metric{"hybrid.redis.call.failures", "Requests to Redis that got no answer, or were refused.", "{call}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Failed) }},
	{Metric{"hybrid.redis.round_trip", "A round trip to Redis that few exceed, as leases are sized by it; 0 before the first.", "s", Gauge},
		func(s *hybrid.Stats, _ *outages) float64 { return s.RoundTrip.Seconds() }},
	{Metric{"hybrid.redis.unavailable", "1 while Redis, or a server of it, is not asked but for probes, because it does not answer; else 0.", "{outage}", Gauge},
		func(s *hybrid.Stats, _ *outages) float64 {
			if s.Unavailable {
				return 1
			}
			return 0
		}},
	{Metric{"hybrid.redis.outages", "Outages that have begun. In a cluster each server has its own.", "{outage}", Counter},
		func(_ *hybrid.Stats, o *outages) float64 { return float64(o.begun) }},
	{Metric{"hybrid.redis.outage.duration", "How long outages lasted that have ended, in all.", "s", Counter},
		func(_ *hybrid.Stats, o *outages) float64 { return o.lasted.Seconds() }},
	{Metric{"hybrid.leases", "Answers of Redis that brought tokens.", "{lease}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Leases) }},
	{Metric{"hybrid.leased_tokens", "Tokens leased from Redis.", "{token}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Leased) }},
	{Metric{"hybrid.returned_tokens", "Leased tokens given back unspent before their lease ended.", "{token}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Returned) }},
	{Metric{"hybrid.expired_tokens", "Leased tokens that were unspent when their lease ended.", "{token}", Counter},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Expired) }},
	{Metric{"hybrid.held_tokens", "Leased tokens in the memory of this process.", "{token}", Gauge},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Held) }},
	{Metric{"hybrid.keys", "Keys that this process remembers.", "{key}", Gauge},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Keys) }},
	{Metric{"hybrid.instances", "Processes that are taken to share a key.", "{process}", Gauge},
		func(s *hybrid.Stats, _ *outages) float64 { return float64(s.Instances) }},
}
