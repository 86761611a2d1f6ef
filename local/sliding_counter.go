package local

import "github.com/hybridlimit/hybrid/limit"

// SlidingCounter estimates what a SlidingLog counts from two numbers: it takes the requests of the previous fixed window
// as evenly spread, and so counts as many of them as the sliding window still covers. With prev and cur admitted in
// the previous and in this window, x of its length W gone, it admits n if prev*(W-x)/W + cur + n is at most Rate. x is
// counted in limit.Limit.CounterUnit, everything else exactly.
//
// Use it where a SlidingLog would need too much memory. Requests that came at the end of the previous window are
// forgotten too early and those from its beginning too late. The method was published by Cloudflare ("How we built
// rate limiting capable of scaling to millions of domains", 2017). It must be made by NewSlidingCounter.
type SlidingCounter struct{ *table[counts] }

// NewSlidingCounter returns an error that wraps limit.ErrInvalid if limit.Limit.ValidateCounter or opts.MaxKeys is bad.
func NewSlidingCounter(lim limit.Limit, opts Options) (*SlidingCounter, error) {
	t, err := newTable(lim, opts, limit.Limit.ValidateCounter, newSlidingCounter)
	if err != nil {
		return nil, err
	}
	return &SlidingCounter{t}, nil
}

type slidingCounter struct {
	limit  int64
	period int64 // microseconds
	unit   int64 // microseconds in which the position in a window is counted
	width  int64 // units in a window; limit*width is at most 2^53
}

func newSlidingCounter(lim limit.Limit) algorithm[counts] {
	unit := lim.CounterUnit()
	return slidingCounter{int64(lim.Rate), lim.Period.Microseconds(), unit.Microseconds(), int64(lim.Period / unit)}
}

// counts are the tokens taken in the window that starts at start and in the one before it.
type counts struct {
	start int64
	prev  int64
	cur   int64
}

func (a slidingCounter) fresh(now int64) counts {
	return counts{start: windowStart(now, a.period)}
}

func (a slidingCounter) step(s counts, now, n int64) (counts, limit.Result) {
	now = heed(s.start, now)
	start := windowStart(now, a.period)
	switch {
	case start == s.start+a.period:
		s.prev, s.cur = s.cur, 0
	case start > s.start:
		s.prev, s.cur = 0, 0
	}
	s.start = start

	// What is left, times width.
	x := (now - start) / a.unit
	room := (a.limit-s.cur)*a.width - s.prev*(a.width-x)
	r := limit.Result{Verdict: limit.Verdict{Allowed: n == 0 || n*a.width <= room, Origin: limit.Local}}
	if r.Allowed {
		s.cur += n
		room -= n * a.width
	} else {
		r.RetryAfter = limit.Micros(a.admits(s, n) - now)
	}
	r.Remaining = int(max(0, room) / a.width)
	switch {
	case s.cur > 0:
		r.ResetAfter = limit.Micros(start + 2*a.period - now)
	case s.prev > 0:
		r.ResetAfter = limit.Micros(start + a.period - now)
	}
	return s, r
}

// admits is the time at which a request of n tokens that was denied fits: the first x at which enough of the previous
// window has slid out, in this window or, where the current count alone is too much, in the next.
func (a slidingCounter) admits(s counts, n int64) int64 {
	left := a.limit - n
	if s.cur <= left {
		return s.start + a.unit*(a.width-(left-s.cur)*a.width/s.prev)
	}
	return s.start + a.unit*(2*a.width-left*a.width/s.cur)
}

// adopt holds counts that another limit left to what step can multiply; limit is still below that.
func (a slidingCounter) adopt(s counts, now int64) counts {
	most := (1 << 53) / a.width
	return counts{windowStart(now, a.period), min(s.prev, most), min(s.cur, most)}
}
