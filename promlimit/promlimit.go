// Package promlimit exports the metrics of a hybrid.Limiter to Prometheus.
//
//	m, err := promlimit.New(promlimit.Options{Name: "api"})
//	...
//	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{Observer: m})
//	...
//	m.Watch(lim)
//	counted, err := m.Count(lim, tally.Options{}) // for what makes the decisions, for example httplimit.New
//	...
//	prometheus.MustRegister(m)
//
// The number of series of a limiter does not depend on its keys. What each metric means, and what to do about it, is in
// docs/metrics.md. It is a module of its own, so that nobody depends on Prometheus unasked.
package promlimit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/figures"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/tally"
)

// Options of Metrics.
type Options struct {
	// Name tells the limiter from others of this process: the value of the label "limiter". It must not be empty.
	Name string
}

// Metrics are those of one limiter. It is a hybrid.Observer, to be given to the limiter, and a prometheus.Collector, to be
// registered; two with the same name cannot be registered together. It is safe for concurrent use; make it with New.
type Metrics struct {
	source    figures.Source
	callTime  prometheus.Histogram
	figures   []*prometheus.Desc // by their place in figures.Table
	decisions *prometheus.Desc
}

var (
	_ hybrid.Observer      = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// New returns the metrics of a limiter that is still to be made. Errors wrap limit.ErrInvalid.
func New(opts Options) (*Metrics, error) {
	if err := figures.CheckName(opts.Name); err != nil {
		return nil, err
	}
	labels := prometheus.Labels{figures.LimiterLabel: opts.Name}
	m := &Metrics{
		callTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: figures.CallTime.Prometheus(), Help: figures.CallTime.Help, ConstLabels: labels,
			Buckets: figures.CallTimeBounds,
			// A server that asks for native histograms gets one as well, with up to 100 buckets 10 % apart.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}),
		decisions: prometheus.NewDesc(figures.Decisions.Prometheus(), figures.Decisions.Help,
			[]string{figures.OutcomeLabel, figures.OriginLabel, figures.ClassLabel}, labels),
	}
	for _, f := range figures.Table {
		m.figures = append(m.figures, prometheus.NewDesc(f.Prometheus(), f.Help, nil, labels))
	}
	return m, nil
}

// Watch makes l the limiter whose Stats are exported. Before that there are only the calls and the decisions. When a
// limiter is replaced by another, close it and then watch the new one: the counts go on from where they are. The error for
// nil wraps limit.ErrInvalid.
func (m *Metrics) Watch(l *hybrid.Limiter) error { return m.source.Watch(l) }

// Count wraps l, which may be any limiter, so that what it decides is exported; call it once for each limiter. Errors wrap
// limit.ErrInvalid.
func (m *Metrics) Count(l limit.Limiter, opts tally.Options) (*tally.Limiter, error) {
	return m.source.Count(l, opts)
}

// Called implements hybrid.Observer.
func (m *Metrics) Called(took time.Duration, _ error) { m.callTime.Observe(took.Seconds()) }

// Unavailable implements hybrid.Observer.
func (m *Metrics) Unavailable(error) { m.source.Began() }

// Available implements hybrid.Observer.
func (m *Metrics) Available(after time.Duration) { m.source.Ended(after) }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.callTime.Describe(ch)
	ch <- m.decisions
	for _, d := range m.figures {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.callTime.Collect(ch)
	m.source.Read(func(i int, value float64) {
		kind := prometheus.CounterValue
		if figures.Table[i].Kind == figures.Gauge {
			kind = prometheus.GaugeValue
		}
		ch <- prometheus.MustNewConstMetric(m.figures[i], kind, value)
	}, func(c tally.Count) {
		ch <- prometheus.MustNewConstMetric(m.decisions, prometheus.CounterValue, float64(c.N), c.Outcome.String(), c.Origin.String(), c.Class)
	})
}
