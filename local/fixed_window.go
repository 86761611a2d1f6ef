package local

import (
	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

// FixedWindow counts at most Rate in each window of length Period, windows starting at multiples of Period since 1970.
// Around the edge of two windows it lets twice the Rate through. Use it for quotas that are told in such windows, as
// "1,000 per day". It must be made by NewFixedWindow.
type FixedWindow struct{ *table[window] }

// NewFixedWindow returns an error that wraps limit.ErrInvalid if limit.Limit.ValidateWindow or opts.MaxKeys is bad.
func NewFixedWindow(lim limit.Limit, opts Options) (*FixedWindow, error) {
	t, err := newTable(lim, opts, limit.Limit.ValidateWindow, newFixedWindow)
	if err != nil {
		return nil, err
	}
	return &FixedWindow{t}, nil
}

type fixedWindow struct {
	limit  int64
	period int64 // microseconds
}

func newFixedWindow(lim limit.Limit) algorithm[window] {
	return fixedWindow{int64(lim.Rate), lim.Period.Microseconds()}
}

// window is the number of tokens taken in the window that starts at start.
type window struct {
	start int64
	count int64
}

func (a fixedWindow) fresh(now int64) window {
	return window{start: windowStart(now, a.period)}
}

func (a fixedWindow) step(s window, now, n int64) (window, limit.Result) {
	now = heed(s.start, now)
	start := windowStart(now, a.period)
	if start > s.start {
		s.count = 0
	}
	s.start = start
	r := limit.Result{Verdict: limit.Verdict{Allowed: n == 0 || n <= a.limit-s.count, Origin: limit.Local}}
	r.ResetAfter = limit.Micros(start + a.period - now)
	if r.Allowed {
		s.count += n
	} else {
		r.RetryAfter = r.ResetAfter
	}
	r.Remaining = int(max(0, a.limit-s.count))
	return s, r
}

func (a fixedWindow) adopt(s window, now int64) window {
	return window{windowStart(now, a.period), s.count}
}

// windowStart is the last multiple of period that is not after now.
func windowStart(now, period int64) int64 {
	into := now % period
	if into < 0 {
		into += period
	}
	return now - into
}

// heed is the time that counts for a state last changed at last when the clock reads now: the rule of bucket.Clock.
// The answer is before last only if the clock was set back.
func heed(last, now int64) int64 {
	c := bucket.Clock(last)
	c.Advance(now)
	return int64(c)
}
