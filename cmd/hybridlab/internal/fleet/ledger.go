package fleet

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
)

// ledger writes down what is asked and decided, and makes the recording of it. It is safe for concurrent use.
//
// Its time is the wall clock in microseconds, by which a Redis on this machine decides too.
type ledger struct {
	start int64

	mu     sync.Mutex
	last   int64 // newest time that was seen: what is written down is in order even when the clock is set back
	ideal  *ideal
	excess *excess
	rec    Recording
	sum    Sample // since the last sample
	total  Sample // until the last sample
	took   histogram
	all    histogram // until the last sample
}

func newLedger(s scenario.Scenario) (*ledger, error) {
	i, err := newIdeal(s.Mode, s.Limit)
	if err != nil {
		return nil, err
	}
	now := wall()
	l := &ledger{start: now, last: now, ideal: i, excess: newExcess(s.Mode, s.Limit)}
	l.rec = Recording{Scenario: s, Every: every.Seconds(), Samples: []Sample{}}
	l.rec.Verdict = l.verdict()
	return l, nil
}

func wall() int64 { return time.Now().UnixMicro() }

// now is the time, which never falls. The ledger has to be locked.
func (l *ledger) now() int64 {
	l.last = max(l.last, wall())
	return l.last
}

// ask notes that n requests are made now.
func (l *ledger) ask(n, cost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum.Asked += int64(n)
	l.sum.Ideal += int64(cost * l.ideal.ask(l.now(), n, cost))
}

// decided notes how a request went that was begun at from and took so long.
func (l *ledger) decided(from time.Time, took time.Duration, cost int, r limit.Result, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took.add(took)
	switch {
	case err != nil:
		l.sum.Failed++
	case r.Allowed:
		l.sum.Admitted += int64(cost)
		l.excess.admit((from.UnixMicro()-l.start)/1000, cost)
	case r.Origin == limit.Local:
		l.sum.DeniedLocal++
	case r.Origin == limit.Fallback:
		l.sum.DeniedFallback++
	default:
		l.sum.DeniedRemote++
	}
}

// turnedAway notes that n requests were asked for and not made.
func (l *ledger) turnedAway(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum.Failed += int64(n)
}

// advance lets the time of the excess go on.
func (l *ledger) advance() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.excess.advance((l.now()-l.start)/1000 + 1) // rounded up
}

// cut ends a sample that lasted until at.
func (l *ledger) cut(at time.Duration, calls int64, held []int64, fault string) {
	l.advance()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.sum
	s.At, s.Calls, s.Held, s.Fault = at.Seconds(), calls, held, fault
	s.P50, s.P99 = l.took.quantile(0.5), l.took.quantile(0.99)
	s.Excess = l.excess.tokensAbove()
	l.rec.Samples = append(l.rec.Samples, *s)
	l.total.At, l.total.Excess = s.At, s.Excess
	l.total.Asked += s.Asked
	l.total.Admitted += s.Admitted
	l.total.Ideal += s.Ideal
	l.total.Calls += s.Calls
	for i, n := range l.took.counts {
		l.all.counts[i] += n
	}
	l.all.total += l.took.total
	l.sum, l.took = Sample{}, histogram{}
	l.rec.Verdict = l.verdict()
}

// recording is a copy of all so far.
func (l *ledger) recording() Recording {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec := l.rec
	rec.Samples = slices.Clone(rec.Samples)
	return rec
}

// end is that nothing more will be written.
func (l *ledger) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rec.Done = true
}

// verdict sums up what total and all hold.
func (l *ledger) verdict() Verdict {
	v := Verdict{
		OfIdeal: 1, Excess: l.total.Excess, Asked: l.total.Asked, Admitted: l.total.Admitted,
		P50: l.all.quantile(0.5), P99: l.all.quantile(0.99),
	}
	if l.total.Ideal > 0 {
		v.OfIdeal = float64(v.Admitted) / float64(l.total.Ideal)
	}
	if v.Asked > 0 {
		v.CallsEach = float64(l.total.Calls) / float64(v.Asked)
	}
	if l.total.At > 0 {
		v.CallsRate = float64(l.total.Calls) / l.total.At
	}
	v.Text = fmt.Sprintf("%.1f %% of ideal, %s calls per decision, worst excess %s, p99 %s",
		100*v.OfIdeal, figures(v.CallsEach), figures(v.Excess), micros(v.P99))
	return v
}

// figures is x with two figures that matter, or as a whole number.
func figures(x float64) string {
	if x == 0 || x >= 10 {
		return fmt.Sprintf("%.0f", x)
	}
	decimals := max(0, 1-int(math.Floor(math.Log10(x))))
	return fmt.Sprintf("%.*f", min(decimals, 6), x)
}

// micros is a duration in microseconds in words.
func micros(us float64) string {
	switch {
	case us < 1:
		return fmt.Sprintf("%.0f ns", us*1000)
	case us < 1000:
		return figures(us) + " µs"
	case us < 1e6:
		return figures(us/1000) + " ms"
	}
	return figures(us/1e6) + " s"
}
