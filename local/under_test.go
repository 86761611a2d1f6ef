package local_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

func TestUNDER01_PartsOfTokensAreKept(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(20).WithBurst(1200))
	if got := r.admitted(1200); got != 1200 {
		t.Fatalf("%d admitted at once, want 1200", got)
	}
	got := 0
	for i := 1; i <= 1000; i++ {
		got += r.at(0.01 * float64(i)).admitted(1)
	}
	if got != 200 {
		t.Errorf("%d admitted in 10 s, want 200", got)
	}
}

func TestUNDER02_FastRates(t *testing.T) {
	for _, rate := range []int{65_535, 999_983, 1_000_000_007} {
		r := start(t, tokenBucket, limit.PerSecond(rate))
		for i := range 20 {
			if got := r.at(0.1 * float64(i)).ask(1).Remaining; got != rate-1 {
				t.Errorf("%d/s: remaining %d, want %d", rate, got, rate-1)
			}
		}
	}
}

func TestUNDER03_DenialsLeaveNoDebt(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(10).WithBurst(1))
	r.ask(1)
	for i := range 1000 {
		if r.at(0.001 + 0.098*float64(i)/999).ask(1).Allowed {
			t.Fatalf("call %d admitted", i)
		}
	}
	if !r.at(0.1).ask(1).Allowed {
		t.Error("denied at 0.1 s")
	}
	r.at(0.199)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				if got, err := r.Allow(context.Background(), "k"); err != nil || got.Allowed {
					t.Errorf("%+v, %v; want denied", got, err)
				}
			}
		})
	}
	wg.Wait()
	if !r.at(0.2).ask(1).Allowed {
		t.Error("denied at 0.2 s")
	}
}

func TestUNDER04_TrimBeforeCounting(t *testing.T) {
	start(t, slidingLog, per(3, 10)).run([]step{
		{0, 1, true, 2, 0},
		{1, 1, true, 1, 0},
		{2, 1, true, 0, 0},
		{9.999, 1, false, 0, 0.001},
		{10, 1, true, 0, 0},
		{10.001, 1, false, 0, 0.999},
	})
}

func TestUNDER05_LongIdle(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		const day = 24 * time.Hour
		r := start(t, m, limit.PerSecond(1_000_000))
		for _, idle := range []time.Duration{0, 12 * time.Hour, 400 * day, 100 * 365 * day} {
			if got := r.pass(idle).ask(1); !got.Allowed || got.Remaining != 999_999 {
				t.Errorf("after %v: %+v, want allowed, remaining 999999", idle, got)
			}
		}
	})
}

func TestUNDER06_SlowRates(t *testing.T) {
	start(t, tokenBucket, limit.PerHour(1)).run([]step{
		{0, 1, true, 0, 0},
		{1800, 1, false, 0, 1800},
		{3599, 1, false, 0, 1},
		{3600, 1, true, 0, 0},
	})
	start(t, tokenBucket, limit.Every(2*time.Second)).run([]step{
		{0, 1, true, 0, 0},
		{1, 1, false, 0, 1},
		{2, 1, true, 0, 0},
	})
	start(t, fixedWindow, limit.PerHour(1)).run([]step{
		{3599, 1, true, 0, 0},
		{3600, 1, true, 0, 0},
	})
	r := start(t, tokenBucket, limit.PerDay(100_000))
	r.run([]step{
		{0, 100_000, true, 0, 0},
		{0.863999, 1, false, 0, 0.000001},
		{0.864, 1, true, 0, 0},
		{86400.863999, 100_000, false, 99_999, 0.000001},
		{86400.864, 100_000, true, 0, 0},
	})
}

func TestCLOCK01_ClockSetBackByHours(t *testing.T) {
	const back = -8 * 3600
	start(t, tokenBucket, limit.PerSecond(10).WithBurst(1)).run([]step{
		{0, 1, true, 0, 0},
		{0.1, 1, true, 0, 0},
		{back + 0.1, 1, false, 0, 0.1},
		{back + 0.2, 1, true, 0, 0},
	})
	// Whatever the kind: nothing is minted by the step, nothing waits longer than after no step.
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(5, 10))
		r.at(3).admitted(5)
		got := r.at(back + 2).ask(1)
		if got.Allowed || got.RetryAfter > 20*time.Second || got.ResetAfter > 20*time.Second {
			t.Errorf("after the step: %+v, want denied, at most 20 s", got)
		}
		if got := r.at(back + 2).pass(got.RetryAfter - time.Microsecond).ask(1); got.Allowed {
			t.Errorf("a microsecond before RetryAfter: %+v, want denied", got)
		}
		if got := r.pass(time.Microsecond).ask(1); !got.Allowed {
			t.Errorf("at RetryAfter: %+v, want allowed", got)
		}
	})
}

func TestCLOCK01_LateReading(t *testing.T) {
	// Up to 5 s back is a late reader: no time has passed, and the state stays where it is.
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(5, 10))
		r.at(11).admitted(5)
		for range 100 {
			if got := r.at(7).ask(1); got.Allowed || got.RetryAfter > 19*time.Second {
				t.Fatalf("late reading: %+v, want denied", got)
			}
			if r.at(11).ask(1).Allowed {
				t.Fatal("admitted after a late reading")
			}
		}
		if got := r.at(31).admitted(10); got != 5 {
			t.Errorf("%d admitted at 31 s, want 5", got)
		}
	})
}

func TestCLOCK02_ToggledClock(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(1).WithBurst(3))
	for i, at := range []float64{0, 3 - 11, 6, 9 - 11} {
		if i > 0 && !r.at(at).ask(1).Allowed {
			t.Errorf("call %d denied", i)
		}
	}
	count := 0
	for range 30 {
		got := r.at(9 - 11).ask(1)
		if got.Allowed {
			count++
		}
		if got.RetryAfter > time.Second {
			t.Errorf("RetryAfter %v, want at most 1 s", got.RetryAfter)
		}
	}
	if count > 3 {
		t.Errorf("%d of 30 admitted, want at most 3", count)
	}
}

func TestCLOCK02_ForwardJumpFillsOnce(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(3, 1))
		r.admitted(5)
		if got := r.at(1e6).admitted(10); got != 3 {
			t.Errorf("%d of 10 admitted after the jump, want 3", got)
		}
	})
}

func TestTimeBefore1970(t *testing.T) {
	// A window starts at a multiple of its length, also where a remainder of Go is negative.
	r := start(t, fixedWindow, per(1, 60))
	r.run([]step{
		{-1_800_000_000 - 61, 1, true, 0, 0},
		{-1_800_000_000 - 60, 1, true, 0, 0},
		{-1_800_000_000 - 1, 1, false, 0, 1},
		{-1_800_000_000, 1, true, 0, 0},
	})
}
