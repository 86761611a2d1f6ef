package local

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

const second = 1_000_000

func TestOVER01_LateReader(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func() int
	}{
		{"token bucket", func() int { return lateReaders(newTokenBucket(limit.PerSecond(10).WithBurst(1))) }},
		{"fixed window", func() int { return lateReaders(newFixedWindow(limit.Every(100 * time.Millisecond))) }},
		{"sliding log", func() int { return lateReaders(newSlidingLog(limit.Every(100 * time.Millisecond))) }},
		{"sliding counter", func() int { return lateReaders(newSlidingCounter(limit.Every(100*time.Millisecond))) - lateCounter }},
	} {
		if got := tt.run(); got != 2 {
			t.Errorf("%s: %d admitted, want 2", tt.name, got)
		}
	}
}

// lateCounter is how many fewer a sliding counter admits here: the request at 0 still has its whole weight at 0.1 s.
const lateCounter = -1

// lateReaders counts the admissions at 0, at 0.1 s, and at a thousand pairs of both.
func lateReaders[S any](a algorithm[S]) int {
	s := a.fresh(0)
	admitted := 0
	for i := range 2002 {
		var r limit.Result
		if s, r = a.step(s, int64(i%2)*second/10, 1); r.Allowed {
			admitted++
		}
	}
	return admitted
}

func TestTTL06_LogHoldsAtMostItsLimit(t *testing.T) {
	a := newSlidingLog(limit.PerHour(500))
	s := a.fresh(0)
	most := 0
	for i := range int64(100_000) {
		s, _ = a.step(s, i*second/10, 1)
		most = max(most, len(s.entries))
	}
	if most != 500 {
		t.Errorf("at most %d entries, want 500", most)
	}
	if got := cap(s.entries); got > 1000 {
		t.Errorf("capacity %d, want at most 1000", got)
	}
	if s, _ = a.step(s, 20_000*second, 0); len(s.entries) != 0 {
		t.Errorf("%d entries after an hour, want 0", len(s.entries))
	}
}

func TestDenialsAndPeeksTakeNothing(t *testing.T) {
	t.Run("token bucket", func(t *testing.T) { takeNothing(t, newTokenBucket(limit.PerSecond(5))) })
	t.Run("fixed window", func(t *testing.T) { takeNothing(t, newFixedWindow(limit.PerSecond(5))) })
	t.Run("sliding log", func(t *testing.T) { takeNothing(t, newSlidingLog(limit.PerSecond(5))) })
	t.Run("sliding counter", func(t *testing.T) { takeNothing(t, newSlidingCounter(limit.PerSecond(5))) })
}

func takeNothing[S any](t *testing.T, a algorithm[S]) {
	s, _ := a.step(a.fresh(0), 0, 3)
	peeked, r := a.step(s, 0, 0)
	if !reflect.DeepEqual(s, peeked) || !r.Allowed {
		t.Errorf("n=0: %+v, %v; want %+v, allowed", peeked, r, s)
	}
	denied, r := a.step(s, 0, 3)
	if !reflect.DeepEqual(s, denied) || r.Allowed {
		t.Errorf("n=3: %+v, %v; want %+v, denied", denied, r, s)
	}
}

func TestStepBack(t *testing.T) {
	const base = 1_800_000_000 * second
	window := newFixedWindow(limit.PerMinute(5))
	w, _ := window.step(window.fresh(base), base, 3)
	if got, _ := window.step(w, base-5*second, 0); got != w {
		t.Errorf("fixed window, 5 s back: %+v, want %+v", got, w)
	}
	if got, _ := window.step(w, base-5*second-1, 0); got.start != base-60*second || got.count != 3 {
		t.Errorf("fixed window, more than 5 s back: %+v, want the same count in the window before", got)
	}

	counter := newSlidingCounter(limit.PerMinute(5))
	c, _ := counter.step(counter.fresh(base-1), base-1, 2)
	c, _ = counter.step(c, base, 3)
	if got, _ := counter.step(c, base-5*second, 0); got != c {
		t.Errorf("sliding counter, 5 s back: %+v, want %+v", got, c)
	}
	if got, _ := counter.step(c, base-5*second-1, 0); got != (counts{base - 60*second, 2, 3}) {
		t.Errorf("sliding counter, more than 5 s back: %+v, want the same counts in the window before", got)
	}

	log := newSlidingLog(limit.PerMinute(5))
	h, _ := log.step(log.fresh(base), base, 3)
	if got, _ := log.step(h, base-5*second, 0); got.skew != 0 {
		t.Errorf("sliding log, 5 s back: skew %d, want 0", got.skew)
	}
	got, _ := log.step(h, base-10*second, 1)
	if got.skew != 10*second || len(got.entries) != 2 || got.entries[1].at != base {
		t.Errorf("sliding log, 10 s back: %+v, want it to go on from there", got)
	}
	if _, r := log.step(got, base+50*second, 5); !r.Allowed {
		t.Errorf("sliding log, a minute later: %+v, want allowed", r)
	}
}

func TestCounterStaysExact(t *testing.T) {
	// The largest that is admitted, on every machine: 2^31 - 1 in a window of 4,194,304 ms.
	a := newSlidingCounter(limit.Limit{Rate: math.MaxInt32, Period: 4194304 * time.Millisecond, Burst: math.MaxInt32})
	const width = 4194304 * 1000
	s, r := a.step(a.fresh(0), 0, math.MaxInt32)
	if !r.Allowed || r.Remaining != 0 {
		t.Errorf("all at once: %+v, want allowed", r)
	}
	// A millisecond takes 511.99 of the weight, of which 511 are whole.
	s, r = a.step(s, width+1000, 511)
	if !r.Allowed || r.Remaining != 0 {
		t.Errorf("511 a millisecond into the next window: %+v, want allowed, remaining 0", r)
	}
	if _, r = a.step(s, width+1000, 1); r.Allowed || r.RetryAfter != time.Millisecond {
		t.Errorf("one more: %+v, want denied for 1ms", r)
	}
}

func TestHeedIsTheRuleOfTheBucket(t *testing.T) {
	for _, now := range []int64{0, 1, 5 * second, 5*second + 1, 10 * second} {
		c := bucket.Clock(5*second + 1)
		c.Advance(now)
		if got := heed(5*second+1, now); got != int64(c) {
			t.Errorf("heed %d, want %d", got, c)
		}
	}
}
