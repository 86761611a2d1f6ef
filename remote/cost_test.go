package remote_test

import (
	"math"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

func TestCOST01_AboveTheBurst(t *testing.T) {
	each(t, allModes, per(300, 60), func(r *rig) {
		r.fails(301, limit.ErrExceedsBurst)
		if got := r.b.Keys(); len(got) != 0 {
			r.t.Errorf("a refusal made %q", got)
		}
		if got := r.ask(1); !got.Allowed || got.Remaining != 299 {
			r.t.Errorf("n=1: %+v, want allowed, remaining 299", got)
		}
	})
}

func TestCOST02_WaitingCouldNeverHelp(t *testing.T) {
	each(t, buckets, limit.PerSecond(20), func(r *rig) {
		r.fails(200, limit.ErrExceedsBurst)
		r.fails(21, limit.ErrExceedsBurst)
		r.run([]step{
			{0, 20, true, 0, 0},
			{0, 20, false, 0, 1},
			{1, 20, true, 0, 0},
		})
	})
}

func TestCOST03_NegativeCost(t *testing.T) {
	each(t, allModes, per(5, 60), func(r *rig) {
		r.ask(5)
		before := dump(r)
		for _, n := range []int{-1, -1000, math.MinInt} {
			r.fails(n, limit.ErrInvalidTokens)
		}
		if got := dump(r); got != before {
			r.t.Errorf("the state changed from %s to %s", before, got)
		}
		if got := r.ask(1); got.Allowed {
			r.t.Errorf("n=1: %+v, want denied", got)
		}
	})
}

func TestCOST04_ZeroLooks(t *testing.T) {
	each(t, allModes, per(10, 60), func(r *rig) {
		if got := r.on("unknown").ask(0); !got.Allowed || got.Remaining != 10 || r.b.Exists(r.on("unknown").stored()) {
			r.t.Errorf("unknown key: %+v, keys %q; want allowed, remaining 10, no key", got, r.b.Keys())
		}
		r.admitted(4)
		for range 5 {
			r.run([]step{{0, 0, true, 6, 0}})
		}
		r.run([]step{{0, 1, true, 5, 0}})
		r.admitted(10)
		for range 5 {
			r.run([]step{{0, 0, true, 0, 0}})
		}
	})
}

func TestCOST05_RefusalConsumesNothing(t *testing.T) {
	each(t, allModes, limit.Limit{Rate: 10, Period: 10_000 * time.Second, Burst: 10}, func(r *rig) {
		r.run([]step{
			{0, 8, true, 2, 0},
			{0, 5, false, 2, whatever},
			{0, 1, true, 1, 0},
			{0, 1, true, 0, 0},
			{0, 1, false, 0, whatever},
		})
	})
}

func TestCOST06_MoreThanATokenPerNanosecond(t *testing.T) {
	for _, rate := range []int64{1_000_000_001, 3_000_000_000} {
		if int64(int(rate)) != rate {
			continue // a 32-bit int
		}
		each(t, buckets, limit.PerSecond(int(rate)).WithBurst(1), func(r *rig) {
			if got := r.admitted(10); got != 1 {
				r.t.Errorf("%d/s: %d of 10 admitted, want 1", rate, got)
			}
		})
	}
}
