package local

import (
	"sort"

	"github.com/hybridlimit/hybrid/limit"
)

// SlidingLog admits at most Rate in every window of length Period, wherever it begins. It remembers when each request
// was admitted, up to Rate of them and 16 bytes each, and finds its way among them by bisection. A request counts for
// exactly Period: the window is (now-Period, now].
//
// Use it where no window whatever may exceed the limit and the Rate is small. It must be made by NewSlidingLog.
type SlidingLog struct{ *table[history] }

// NewSlidingLog returns an error that wraps limit.ErrInvalid if limit.Limit.ValidateWindow or opts.MaxKeys is bad.
func NewSlidingLog(lim limit.Limit, opts Options) (*SlidingLog, error) {
	t, err := newTable(lim, opts, limit.Limit.ValidateWindow, newSlidingLog)
	if err != nil {
		return nil, err
	}
	return &SlidingLog{t}, nil
}

type slidingLog struct {
	limit  int64
	period int64 // microseconds
}

func newSlidingLog(lim limit.Limit) algorithm[history] {
	return slidingLog{int64(lim.Rate), lim.Period.Microseconds()}
}

// history is what was admitted within the last Period, oldest first, in a time of its own.
type history struct {
	entries []entry
	gone    int64 // tokens of entries that have left
	skew    int64 // its time minus the clock: grows when the clock is set back, as if the entries moved back with it
}

// entry is an admitted request: its time, and the tokens of all requests up to it.
type entry struct {
	at    int64
	total int64
}

func (a slidingLog) fresh(int64) history { return history{} }

func (a slidingLog) step(s history, now, n int64) (history, limit.Result) {
	now += s.skew
	total, newest := s.gone, now
	if len(s.entries) > 0 {
		last := s.entries[len(s.entries)-1]
		total, newest = last.total, last.at
	}
	if now = heed(newest, now); now < newest {
		s.skew += newest - now
		now = newest
	}
	if left := s.until(func(e entry) bool { return e.at > now-a.period }); left > 0 {
		s.gone = s.entries[left-1].total
		s.entries = s.entries[left:]
	}
	r := limit.Result{Verdict: limit.Verdict{Allowed: n == 0 || n <= a.limit-(total-s.gone), Origin: limit.Local}}
	switch {
	case !r.Allowed:
		enough := s.until(func(e entry) bool { return n <= a.limit-(total-e.total) })
		r.RetryAfter = limit.Micros(s.entries[enough].at + a.period - now)
	case n > 0:
		total += n
		s.entries = append(s.entries, entry{now, total})
		newest = now
	}
	r.Remaining = int(max(0, a.limit-(total-s.gone)))
	if len(s.entries) > 0 {
		r.ResetAfter = limit.Micros(newest + a.period - now)
	}
	return s, r
}

// until is the number of entries before the first for which ok holds.
func (s history) until(ok func(entry) bool) int {
	return sort.Search(len(s.entries), func(i int) bool { return ok(s.entries[i]) })
}

func (a slidingLog) adopt(s history, _ int64) history { return s }
