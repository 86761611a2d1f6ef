package remote_test

import (
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

func TestUNDER01_PartsOfTokensAreKept(t *testing.T) {
	each(t, buckets, limit.PerSecond(20).WithBurst(1200), func(r *rig) {
		r.ask(1200)
		got := 0
		calls := r.many(1000)
		for i := 1; i <= calls; i++ {
			got += r.at(0.01 * float64(i)).admitted(1)
		}
		if got != calls/5 {
			r.t.Errorf("%d of %d admitted, want every fifth", got, calls)
		}
	})
}

func TestUNDER02_FastRates(t *testing.T) {
	for _, rate := range []int{65_535, 999_983, 1_000_000_007} {
		each(t, buckets, limit.PerSecond(rate), func(r *rig) {
			for i := range 20 {
				if got := r.at(0.1 * float64(i)).ask(1).Remaining; got != rate-1 {
					r.t.Errorf("%d/s: remaining %d, want %d", rate, got, rate-1)
				}
			}
		})
	}
}

func TestUNDER03_DenialsLeaveNoDebt(t *testing.T) {
	each(t, buckets, limit.PerSecond(10).WithBurst(1), func(r *rig) {
		r.ask(1)
		calls := r.many(1000)
		for i := range calls {
			if r.at(0.001 + 0.098*float64(i)/float64(calls)).ask(1).Allowed {
				r.t.Fatalf("call %d admitted", i)
			}
		}
		if !r.at(0.1).ask(1).Allowed {
			r.t.Error("denied at 0.1 s")
		}
		r.at(0.199)
		if got := crowd(r.t, 50, 20, func(int) (limit.Result, error) { return r.Allow(ctx, "k") }); got != 0 {
			r.t.Errorf("%d admitted at 0.199 s", got)
		}
		if !r.at(0.2).ask(1).Allowed {
			r.t.Error("denied at 0.2 s")
		}
	})
}

func TestUNDER04_TrimBeforeCounting(t *testing.T) {
	on(t, slidingLog, per(3, 10), func(r *rig) {
		r.run([]step{
			{0, 1, true, 2, 0},
			{1, 1, true, 1, 0},
			{2, 1, true, 0, 0},
			{9.999, 1, false, 0, 0.001},
			{10, 1, true, 0, 0},
			{10.001, 1, false, 0, 0.999},
		})
	})
}

func TestUNDER05_LongIdle(t *testing.T) {
	const day = 24 * time.Hour
	each(t, buckets, limit.PerSecond(1_000_000), func(r *rig) {
		for _, idle := range []time.Duration{0, 12 * time.Hour, 400 * day, 100 * 365 * day} {
			if got := r.pass(idle).ask(1); !got.Allowed || got.Remaining != 999_999 {
				r.t.Errorf("after %v: %+v, want allowed, remaining 999999", idle, got)
			}
		}
	})
	each(t, windows, per(1000, 1), func(r *rig) {
		for _, idle := range []time.Duration{0, 12 * time.Hour, 400 * day, 100 * 365 * day} {
			if got := r.pass(idle).ask(1); !got.Allowed || got.Remaining != 999 {
				r.t.Errorf("after %v: %+v, want allowed, remaining 999", idle, got)
			}
		}
	})
}

// A state that nothing has expired fills up over a hundred years without an overflow.
func TestUNDER05_KeptState(t *testing.T) {
	each(t, buckets, limit.PerSecond(1_000_000), func(r *rig) {
		switch r.mode.name {
		case tokenBucket.name:
			r.b.Client.HSet(ctx, r.stored(), "n", "-1000000", "f", "0", "t", "1", "L", "1 1 1000000", "e", "1")
		case gcra.name:
			r.b.Client.Set(ctx, r.stored(), "1 0", 0)
		}
		if got := r.pass(100 * 365 * 24 * time.Hour).ask(1); !got.Allowed || got.Remaining != 999_999 {
			r.t.Errorf("%+v, want allowed, remaining 999999", got)
		}
	})
}

func TestUNDER06_SlowRates(t *testing.T) {
	each(t, buckets, limit.PerHour(1), func(r *rig) {
		r.run([]step{
			{0, 1, true, 0, 0},
			{1800, 1, false, 0, 1800},
			{3599, 1, false, 0, 1},
			{3600, 1, true, 0, 0},
		})
	})
	each(t, buckets, limit.Every(2*time.Second), func(r *rig) {
		r.run([]step{
			{0, 1, true, 0, 0},
			{1, 1, false, 0, 1},
			{2, 1, true, 0, 0},
		})
	})
	on(t, fixedWindow, limit.PerHour(1), func(r *rig) {
		r.run([]step{
			{3599, 1, true, 0, 0},
			{3600, 1, true, 0, 0},
		})
	})
	each(t, buckets, limit.PerDay(100_000), func(r *rig) {
		r.run([]step{
			{0, 100_000, true, 0, 0},
			{0.863999, 1, false, 0, 0.000001},
			{0.864, 1, true, 0, 0},
			{86400.863999, 100_000, false, 99_999, 0.000001},
			{86400.864, 100_000, true, 0, 0},
		})
	})
}
