// Package otellimit exports the metrics of a hybrid.Limiter through OpenTelemetry.
//
//	m, err := otellimit.New(otel.GetMeterProvider(), otellimit.Options{Name: "api"})
//	...
//	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{Observer: m})
//	...
//	m.Watch(lim)
//	counted, err := m.Count(lim, tally.Options{}) // for what makes the decisions, for example httplimit.New
//	...
//	m.Close() // after lim.Close
//
// The number of series of a limiter does not depend on its keys. What each metric means, and what to do about it, is in
// docs/metrics.md. It is a module of its own, so that nobody depends on OpenTelemetry unasked, and depends on its API only.
package otellimit

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/figures"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/tally"
)

// ScopeName is the name of the Meter.
const ScopeName = "github.com/hybridlimit/hybrid/otellimit"

// The attributes.
const (
	limiterKey = attribute.Key("hybrid." + figures.LimiterLabel)
	outcomeKey = attribute.Key("hybrid." + figures.OutcomeLabel)
	originKey  = attribute.Key("hybrid." + figures.OriginLabel)
	classKey   = attribute.Key("hybrid." + figures.ClassLabel)
)

// Options of Metrics.
type Options struct {
	// Name tells the limiter from others of this process: the value of the attribute "hybrid.limiter". It must not be
	// empty. The counts of two of the same name are mixed up.
	Name string
}

// Metrics are those of one limiter. It is a hybrid.Observer, to be given to the limiter. It is safe for concurrent use;
// make it with New and Close it when done.
type Metrics struct {
	source       figures.Source
	limiter      attribute.KeyValue
	all          metric.MeasurementOption // has the attribute limiter alone
	callTime     metric.Float64Histogram
	figures      []metric.Float64Observable // by their place in figures.Table
	decisions    metric.Float64Observable
	registration metric.Registration
}

var _ hybrid.Observer = (*Metrics)(nil)

// New returns the metrics of a limiter that is still to be made. Errors wrap limit.ErrInvalid, or are those of the Meter.
func New(provider metric.MeterProvider, opts Options) (*Metrics, error) {
	if v := reflect.ValueOf(provider); provider == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("%w: the meter provider is nil", limit.ErrInvalid)
	}
	if err := figures.CheckName(opts.Name); err != nil {
		return nil, err
	}
	m := &Metrics{limiter: limiterKey.String(opts.Name)}
	m.all = metric.WithAttributeSet(attribute.NewSet(m.limiter))
	if err := m.register(provider.Meter(ScopeName)); err != nil {
		return nil, fmt.Errorf("otellimit: %w", err)
	}
	return m, nil
}

// register makes the instruments, and has the Meter ask for those that are read.
func (m *Metrics) register(meter metric.Meter) error {
	var err error
	m.callTime, err = meter.Float64Histogram(figures.CallTime.Name, metric.WithDescription(figures.CallTime.Help),
		metric.WithUnit(figures.CallTime.Unit), metric.WithExplicitBucketBoundaries(figures.CallTimeBounds...))
	if err != nil {
		return err
	}
	if m.decisions, err = observable(meter, figures.Decisions); err != nil {
		return err
	}
	read := []metric.Observable{m.decisions}
	for _, f := range figures.Table {
		o, err := observable(meter, f.Metric)
		if err != nil {
			return err
		}
		m.figures = append(m.figures, o)
		read = append(read, o)
	}
	m.registration, err = meter.RegisterCallback(m.observe, read...)
	return err
}

func observable(meter metric.Meter, d figures.Metric) (metric.Float64Observable, error) {
	if d.Kind == figures.Gauge {
		return meter.Float64ObservableGauge(d.Name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
	}
	return meter.Float64ObservableCounter(d.Name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
}

// observe is the callback.
func (m *Metrics) observe(_ context.Context, o metric.Observer) error {
	m.source.Read(func(i int, value float64) {
		o.ObserveFloat64(m.figures[i], value, m.all)
	}, func(c tally.Count) {
		attrs := []attribute.KeyValue{m.limiter, outcomeKey.String(c.Outcome.String()), originKey.String(c.Origin.String())}
		if c.Class != "" {
			attrs = append(attrs, classKey.String(c.Class))
		}
		o.ObserveFloat64(m.decisions, float64(c.N), metric.WithAttributes(attrs...))
	})
	return nil
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

// Close ends the export; what was exported stays where it is. It does not close the limiter.
func (m *Metrics) Close() error { return m.registration.Unregister() }

// Called implements hybrid.Observer.
func (m *Metrics) Called(took time.Duration, _ error) {
	m.callTime.Record(context.Background(), took.Seconds(), m.all)
}

// Unavailable implements hybrid.Observer.
func (m *Metrics) Unavailable(error) { m.source.Began() }

// Available implements hybrid.Observer.
func (m *Metrics) Available(after time.Duration) { m.source.Ended(after) }
