package hybrid

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/lease/leasetest"
)

// A machine that was suspended comes back with leases that look alive: their clock stood still.
func TestSuspendedMachineSpendsNoOldLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := leasetest.NewSource()
		l, err := NewFrom(src, PerSecond(100).WithBurst(1000), Options{LeaseSize: 50, LeaseTTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var slept atomic.Int64 // by the wall clock alone
		l.janitor.wall = func() int64 { return time.Now().UnixNano() + slept.Load() }
		defer l.Close(context.Background())

		for _, step := range []struct {
			slept time.Duration
			held  int64
		}{
			{50 * time.Millisecond, 49}, // a small correction
			{time.Hour, 0},
		} {
			if _, err := l.Allow(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
			slept.Add(int64(step.slept))
			time.Sleep(20 * time.Millisecond)
			if held := l.Stats().Held; held > step.held || step.held > 0 && held == 0 {
				t.Errorf("after a step of %v: %d tokens held, want %d", step.slept, held, step.held)
			}
		}
		calls := l.Stats().Calls
		if r, err := l.Allow(t.Context(), "k"); err != nil || !r.Allowed || l.Stats().Calls == calls {
			t.Errorf("after the suspension: %+v, %v; want a new lease", r, err)
		}
	})
}
