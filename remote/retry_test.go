package remote_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

func TestRETRY01_NotCutToSeconds(t *testing.T) {
	each(t, buckets, limit.Limit{Rate: 2, Period: 3 * time.Second, Burst: 1}, func(r *rig) {
		r.run([]step{
			{0, 1, true, 0, 0},
			{0.2, 1, false, 0, 1.3},
			{1.499, 1, false, 0, 0.001},
			{1.5, 1, true, 0, 0},
		})
	})
}

func TestRETRY02_CountsThePartOfAToken(t *testing.T) {
	each(t, buckets, limit.PerSecond(1), func(r *rig) {
		r.run([]step{
			{0, 1, true, 0, 0},
			{0.2, 1, false, 0, 0.8},
			{0.999, 1, false, 0, 0.001},
		})
	})
}

func TestRETRY03_CounterTellsWhenTheEstimateFalls(t *testing.T) {
	on(t, slidingCounter, per(60, 60), func(r *rig) {
		r.run([]step{
			{0, 60, true, 0, 0},
			{72, 12, true, 0, 0},
			{72, 1, false, 0, 1},
			{72, 5, false, 0, 5},
			{72, 60, false, 0, 108}, // the 12 have slid out at 180 s
		})
	})
}

func TestRETRY04_LogTellsWhenEnoughHasLeft(t *testing.T) {
	on(t, slidingLog, per(3, 60), func(r *rig) {
		r.run([]step{
			{0, 1, true, 2, 0},
			{10, 1, true, 1, 0},
			{20, 1, true, 0, 0},
			{30, 1, false, 0, 30},
			{30, 2, false, 0, 40},
			{30, 3, false, 0, 50},
			{60, 1, true, 0, 0},
			{60, 1, false, 0, 10},
		})
	})
}

func TestRETRY05_BurstToleranceIsTakenOff(t *testing.T) {
	each(t, buckets, limit.PerSecond(1).WithBurst(5), func(r *rig) {
		r.admitted(5)
		if got := r.ask(1); got.Allowed || got.RetryAfter != time.Second || got.ResetAfter != 5*time.Second {
			r.t.Errorf("%+v, want denied for 1 s, reset after 5 s", got)
		}
		if got := r.at(1).admitted(3); got != 1 {
			r.t.Errorf("%d admitted after 1 s, want 1", got)
		}
	})
}

func TestRETRY07_PastArrivalTime(t *testing.T) {
	on(t, gcra, limit.PerSecond(1).WithBurst(5), func(r *rig) {
		r.b.Client.Set(ctx, r.stored(), "1799999900000000 0", 0) // 100 s ago
		r.fails(6, limit.ErrExceedsBurst)
		got := r.ask(5)
		if reset := r.LimitOf("k").ResetAfter(got.Remaining); !got.Allowed || reset != 5*time.Second {
			r.t.Errorf("%+v, reset after %v; want allowed, 5 s", got, reset)
		}
	})
}

// limitsOf are the limits that random histories run with.
func limitsOf(m mode) []limit.Limit {
	if m.name == tokenBucket.name || m.name == gcra.name {
		return []limit.Limit{
			limit.PerSecond(3), limit.PerSecond(10).WithBurst(1), limit.PerHour(7).WithBurst(40), limit.PerDay(1),
			{Rate: 999_983, Period: 24 * time.Hour, Burst: 50}, {Rate: 13, Period: 7 * time.Microsecond, Burst: 5},
			{Rate: 1_000_003, Period: 999_983 * time.Microsecond, Burst: 20},
		}
	}
	return []limit.Limit{per(1, 1), per(5, 60), per(17, 0.007), per(40, 3600), per(9, 0.999), per(3, 0.001), per(11, 1.001)}
}

// gap is a time between requests: none, about what a token takes, sometimes longer than everything.
func gap(rnd *rand.Rand, lim limit.Limit) time.Duration {
	token := int64(lim.Period) / int64(lim.Rate)
	var d int64
	switch rnd.IntN(12) {
	case 0:
	case 1:
		d = rnd.Int64N(int64(3 * lim.Period))
	case 2:
		d = int64(lim.Period)
	default:
		d = rnd.Int64N(8*token + 2)
	}
	return time.Duration(d).Truncate(time.Microsecond)
}

func TestRETRY06_RetryAfterIsExact(t *testing.T) {
	for _, m := range allModes {
		for _, lim := range limitsOf(m) {
			on(t, m, lim, func(r *rig) {
				rnd := rand.New(rand.NewPCG(3, uint64(lim.Period)))
				denied := 0
				for range r.many(80) {
					n := 1 + rnd.IntN(lim.Burst)
					got := r.pass(gap(rnd, lim)).ask(n)
					if got.Allowed {
						continue
					}
					denied++
					if got.RetryAfter <= 0 {
						r.t.Fatalf("%v: %+v, want a wait", lim, got)
					}
					r.retry(n)
				}
				if denied < r.many(80)/8 {
					r.t.Errorf("%v: only %d denials, want more to look at", lim, denied)
				}
			})
		}
	}
}

// After ResetAfter with no traffic everything is there again, and a microsecond before it is not.
func TestRETRY06_ResetAfterIsExact(t *testing.T) {
	for _, m := range allModes {
		for _, lim := range limitsOf(m) {
			on(t, m, lim, func(r *rig) {
				rnd := rand.New(rand.NewPCG(4, uint64(lim.Period)))
				for range r.many(25) {
					var got limit.Result
					for range 1 + rnd.IntN(4) {
						r.pass(gap(rnd, lim))
						got = r.ask(1 + rnd.IntN(lim.Burst))
					}
					reset, exact := got.ResetAfter, true
					if reset == 0 { // an admission in a bucket: from Remaining alone, which is rounded down
						reset, exact = lim.ResetAfter(got.Remaining), false
					}
					if reset <= 0 {
						r.t.Fatalf("%v: %+v, want a time until all is there", lim, got)
					}
					if left := r.pass(reset - time.Microsecond).left(); exact && left >= lim.Burst {
						r.t.Fatalf("%v: %+v, but all is there 1µs before ResetAfter", lim, got)
					}
					if left := r.pass(time.Microsecond).left(); left != lim.Burst {
						r.t.Fatalf("%v: %+v, but %d left after ResetAfter", lim, got, left)
					}
				}
			})
		}
	}
}
