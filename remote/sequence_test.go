package remote_test

import (
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

func TestFixedWindowSequence(t *testing.T) {
	on(t, fixedWindow, per(5, 60), func(r *rig) {
		r.run([]step{
			{0.2, 1, true, 4, 0},
			{0.4, 1, true, 3, 0},
			{0.9, 1, true, 2, 0},
			{58.6, 1, true, 1, 0},
			{59.8, 1, true, 0, 0},
			{59.9, 1, false, 0, 0.1},
			{60.1, 1, true, 4, 0},
			{60.4, 1, true, 3, 0},
			{60.7, 1, true, 2, 0},
			{61.2, 1, true, 1, 0},
		})
	})
}

func TestSlidingLogSequence(t *testing.T) {
	on(t, slidingLog, per(5, 60), func(r *rig) {
		r.run([]step{
			{0.5, 1, true, 4, 0},
			{2, 1, true, 3, 0},
			{55, 1, true, 2, 0},
			{58.5, 1, true, 1, 0},
			{59, 1, true, 0, 0},
			{60.2, 1, false, 0, 0.3},
			{62, 1, true, 1, 0},
		})
	})
}

// The sixteenth request comes at exactly one token.
func TestBucketSequence(t *testing.T) {
	each(t, buckets, limit.PerSecond(2).WithBurst(10), func(r *rig) {
		const pass = "yyyyyyyyyyyyyyyy" + "nnyny" + "nnyny" + "nnyn"
		remaining := [30]int{9, 8, 7, 7, 6, 6, 5, 4, 4, 3, 3, 2, 1, 1}
		retry := map[byte][]float64{'n': {0.3, 0.1, 0, 0.2, 0}}
		for i := range len(pass) {
			s := step{0.2 * float64(i), 1, pass[i] == 'y', remaining[i], 0}
			if !s.ok {
				s.retry = retry['n'][(i-16)%5]
			}
			r.run([]step{s})
		}
	})
}

func TestSlidingWindowSequence(t *testing.T) {
	for _, tt := range []struct {
		mode mode
		pass string
	}{
		{slidingLog, "yyyyyyyyyynnyyy"},
		{slidingCounter, "yyyyyyyyyynnnny"},
	} {
		on(t, tt.mode, per(10, 60), func(r *rig) {
			for i := range len(tt.pass) {
				if got, want := r.at(5*float64(i)).ask(1).Allowed, tt.pass[i] == 'y'; got != want {
					r.t.Errorf("request %d: allowed %v, want %v", i+1, got, want)
				}
			}
		})
	}
}

// What the results of one key say, field by field.
func TestResults(t *testing.T) {
	result := func(ok bool, remaining int, retry, reset float64) limit.Result {
		return limit.Result{
			Verdict:    limit.Verdict{Allowed: ok, Origin: limit.Remote},
			Remaining:  remaining,
			RetryAfter: seconds(retry),
			ResetAfter: seconds(reset),
		}
	}
	type ask struct {
		at   float64
		n    int
		want limit.Result
	}
	for _, tt := range []struct {
		mode mode
		asks []ask
	}{
		{tokenBucket, []ask{{0, 0, result(true, 4, 0, 0)}, {0, 3, result(true, 1, 0, 0)}, {5, 2, result(false, 1, 10, 40)}, {5, 0, result(true, 1, 0, 0)}}},
		{gcra, []ask{{0, 0, result(true, 4, 0, 0)}, {0, 3, result(true, 1, 0, 0)}, {5, 2, result(false, 1, 10, 40)}, {5, 0, result(true, 1, 0, 0)}}},
		{fixedWindow, []ask{{0, 0, result(true, 4, 0, 60)}, {0, 3, result(true, 1, 0, 60)}, {5, 2, result(false, 1, 55, 55)}, {5, 0, result(true, 1, 0, 55)}}},
		{slidingLog, []ask{{0, 0, result(true, 4, 0, 0)}, {0, 3, result(true, 1, 0, 60)}, {5, 2, result(false, 1, 55, 55)}, {5, 0, result(true, 1, 0, 55)}}},
		{slidingCounter, []ask{
			{0, 0, result(true, 4, 0, 0)}, {0, 3, result(true, 1, 0, 120)}, {5, 2, result(false, 1, 75, 115)}, {5, 0, result(true, 1, 0, 115)},
			{60, 0, result(true, 1, 0, 60)}, {80, 0, result(true, 2, 0, 40)},
		}},
	} {
		on(t, tt.mode, limit.Limit{Rate: 4, Period: time.Minute, Burst: 4}, func(r *rig) {
			for _, a := range tt.asks {
				if got := r.at(a.at).ask(a.n); got != a.want {
					r.t.Errorf("n=%d at %v s: %+v, want %+v", a.n, a.at, got, a.want)
				}
			}
			if got := r.LimitOf("k"); got != per(4, 60) {
				r.t.Errorf("LimitOf %v", got)
			}
		})
	}
}
