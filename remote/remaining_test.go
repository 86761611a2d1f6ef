package remote_test

import (
	"testing"

	"github.com/hybridlimit/hybrid/limit"
)

func TestREM01_FirstRequestCountsOnce(t *testing.T) {
	each(t, allModes, per(150, 60), func(r *rig) {
		r.run([]step{{0, 1, true, 149, 0}})
		if got := r.admitted(152); got != 149 {
			r.t.Errorf("%d more admitted, want 149", got)
		}
		r.run([]step{{120, 1, true, 149, 0}})
	})
}

func TestREM02_LastTokenIsHandedOut(t *testing.T) {
	each(t, allModes, per(10, 60), func(r *rig) {
		for i := range 10 {
			r.run([]step{{0, 1, true, 9 - i, 0}})
		}
		r.run([]step{{0, 1, false, 0, whatever}})
	})
}

func TestREM03_PeekIsUpToDate(t *testing.T) {
	each(t, buckets, limit.PerSecond(1).WithBurst(10), func(r *rig) {
		r.run([]step{
			{0, 10, true, 0, 0},
			{3, 0, true, 3, 0},
			{3.5, 0, true, 3, 0},
			{20, 0, true, 10, 0},
			{20, 1, true, 9, 0},
		})
	})
}
