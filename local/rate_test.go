package local_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

func TestRATE01_RATE02_RATE03_Refused(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		for _, lim := range []limit.Limit{
			{},
			per(0, 1), per(-1, 1), per(1, 0), per(1, -1),
			limit.PerSecond(1).WithBurst(0), limit.PerSecond(1).WithBurst(-1),
		} {
			l, err := m.make(lim, options)
			if !errors.Is(err, limit.ErrInvalid) || l != nil {
				t.Errorf("%+v: %v, %v; want nil, ErrInvalid", lim, l, err)
			}
		}
	})
	each(t, windows, func(t *testing.T, m mode) {
		for _, lim := range []limit.Limit{
			limit.PerSecond(5).WithBurst(4),
			limit.Every(1500 * time.Microsecond),
		} {
			if l, err := m.make(lim, options); !errors.Is(err, limit.ErrInvalid) || l != nil {
				t.Errorf("%+v: %v, %v; want nil, ErrInvalid", lim, l, err)
			}
		}
	})
	// 2^31 - 1 a day is weighted in units beyond 2^53.
	if l, err := slidingCounter.make(limit.PerDay(math.MaxInt32), options); !errors.Is(err, limit.ErrInvalid) || l != nil {
		t.Errorf("%v, %v; want nil, ErrInvalid", l, err)
	}
}

func TestRATE04_TinyRates(t *testing.T) {
	const years = 365 * 24 * time.Hour
	r := start(t, tokenBucket, limit.Every(285*years))
	r.run([]step{{0, 1, true, 0, 0}})
	for _, passed := range []time.Duration{0, 100 * years, 184 * years} {
		if got := r.pass(passed).ask(1); got.Allowed || got.RetryAfter <= 0 || got.RetryAfter > 285*years {
			t.Errorf("after %v more: %+v, want denied with a wait of at most 285 years", passed, got)
		}
	}
	if got := r.pass(years).ask(1); !got.Allowed {
		t.Errorf("after 285 years: %+v, want allowed", got)
	}
	for _, lim := range []limit.Limit{
		limit.Every(math.MaxInt64 / 1000 * 1000),
		limit.PerHour(1).WithBurst(math.MaxInt32),
	} {
		if _, err := tokenBucket.make(lim, options); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("%v: %v, want ErrInvalid", lim, err)
		}
	}
}

func TestRATE05_Unlimited(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		l, err := m.make(limit.Unlimited(), options)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 1000, math.MaxInt} {
			got, err := l.AllowN(context.Background(), "k", n)
			want := limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Local}, Remaining: math.MaxInt}
			if got != want || err != nil {
				t.Errorf("n=%d: %+v, %v; want %+v", n, got, err, want)
			}
		}
		if got := l.Len(); got != 0 {
			t.Errorf("Len %d, want 0", got)
		}
	})
}

func TestBlocked(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, limit.Blocked())
		if got := r.ask(0); !got.Allowed || got.Remaining != 0 {
			t.Errorf("n=0: %+v, want allowed, remaining 0", got)
		}
		if got := r.ask(1); got.Allowed || got.RetryAfter != limit.Never {
			t.Errorf("n=1: %+v, want denied for ever", got)
		}
	})
}

func TestRATE06_LoweredLimitHoldsAtOnce(t *testing.T) {
	each(t, windows, func(t *testing.T, m mode) {
		r := start(t, m, per(10, 60))
		r.admitted(3)
		r.set(per(5, 60))
		if got := r.admitted(5); got != 2 {
			t.Errorf("%d of 5 admitted, want 2", got)
		}
	})
	r := start(t, tokenBucket, limit.PerSecond(10))
	r.ask(3)
	r.set(limit.PerSecond(10).WithBurst(5))
	if got := r.ask(0).Remaining; got != 5 {
		t.Errorf("token bucket: remaining %d, want 5", got)
	}
}

func TestSetLimitMintsNothing(t *testing.T) {
	// What is left of a bucket stays, and its whole tokens only: a part of one at the old rate is none at the new.
	r := start(t, tokenBucket, limit.PerSecond(10))
	r.ask(8)
	r.at(0.05).set(limit.PerMinute(20))
	r.run([]step{
		{0.05, 0, true, 2, 0},
		{0.05, 3, false, 2, 3},
		{0.05, 2, true, 0, 0},
	})
	// A limit that counts nothing in between does not help either.
	each(t, allModes, func(t *testing.T, m mode) {
		for _, between := range []limit.Limit{limit.Blocked(), limit.Unlimited()} {
			r := start(t, m, per(5, 60))
			r.ask(5)
			r.set(between)
			r.set(per(5, 60))
			if got := r.ask(1); got.Allowed {
				t.Errorf("after %v: %+v, want denied", between, got)
			}
		}
	})
}

func TestRATE06_BelowWhatIsUsed(t *testing.T) {
	each(t, windows, func(t *testing.T, m mode) {
		r := start(t, m, per(10, 60))
		r.admitted(8)
		r.set(per(5, 60))
		if got := r.ask(0); !got.Allowed || got.Remaining != 0 {
			t.Errorf("n=0: %+v, want allowed, remaining 0", got)
		}
		r.retry(1)
		r.retry(5)
	})
}

func TestRATE07_LoweredAndRaised(t *testing.T) {
	each(t, []mode{tokenBucket, fixedWindow, slidingLog}, func(t *testing.T, m mode) {
		r := start(t, m, per(10, 60))
		r.admitted(5)
		r.set(per(2, 60))
		at := 60.0
		for range 3 {
			if got := r.at(at).admitted(20); got != 2 {
				t.Errorf("at %v s: %d admitted, want 2", at, got)
			}
			at += 60
		}
		r.set(per(7, 60))
		for range 3 {
			if got := r.at(at).admitted(20); got != 7 {
				t.Errorf("at %v s: %d admitted, want 7", at, got)
			}
			at += 60
		}
	})
}

func TestRATE08_RaisedLimitHelpsAtOnce(t *testing.T) {
	each(t, windows, func(t *testing.T, m mode) {
		r := start(t, m, per(10, 3600))
		if got := r.admitted(50); got != 10 {
			t.Errorf("%d of 50 admitted, want 10", got)
		}
		r.set(per(20, 3600))
		if got := r.admitted(15); got != 10 {
			t.Errorf("%d of 15 admitted, want 10", got)
		}
	})
}

func TestRATE09_BlockedAndBack(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, limit.PerSecond(30))
		if got := r.at(9).admitted(200); got != 30 {
			t.Errorf("%d admitted at 9 s, want 30", got)
		}
		r.at(10).set(limit.Blocked())
		if got := r.at(15).admitted(200); got != 0 {
			t.Errorf("%d admitted while blocked, want 0", got)
		}
		r.at(20).set(limit.PerSecond(150))
		if got := r.LimitOf("k"); got != limit.PerSecond(150) {
			t.Errorf("LimitOf %v, want 150/s", got)
		}
		if got := r.at(22).admitted(200); got != 150 {
			t.Errorf("%d admitted at 22 s, want 150", got)
		}
	})
}

func TestSetLimitRefusesAndRepeats(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(3, 1))
		r.admitted(3)
		if err := r.SetLimit(limit.Limit{}); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("the zero Limit: %v, want ErrInvalid", err)
		}
		if got := r.LimitOf("k"); got != per(3, 1) {
			t.Errorf("LimitOf %v, want the limit before", got)
		}
	})
	// Setting the same limit every 100 ms does not take the part of a token that has come.
	r := start(t, tokenBucket, limit.PerSecond(1))
	r.ask(1)
	for i := range 10 {
		r.at(0.1 * float64(i)).set(limit.PerSecond(1))
	}
	if !r.at(1).ask(1).Allowed {
		t.Error("denied after 1 s of setting the same limit")
	}
}

func TestSetLimitOtherPeriod(t *testing.T) {
	// Counts move into the window of the new length that is open, and from there to the next.
	r := start(t, fixedWindow, per(10, 3600))
	r.at(1830).ask(8)
	r.set(per(10, 60))
	r.run([]step{{1859, 3, false, 2, 1}, {1860, 10, true, 0, 0}})
	r.set(per(10, 3600))
	r.run([]step{{1900, 1, false, 0, 1700}})

	r = start(t, slidingLog, per(10, 60))
	r.ask(8)
	r.at(30).set(per(10, 3600))
	r.run([]step{{90, 3, false, 2, 3510}})
	r.set(per(10, 60))
	r.run([]step{{90, 10, true, 0, 0}})

	// A count that the new window could not multiply is held to what it can, which is still above its limit.
	// Without that the product would be 3/4 of 2^64 and look like a lot of room.
	r = start(t, slidingCounter, per(1_500_000, 1))
	r.ask(1_500_000)
	r.set(per(5, 285*365*24*3600))
	if got := r.ask(1); got.Allowed {
		t.Errorf("sliding counter: %+v, want denied", got)
	}
}

func TestRETRY01_NotCutToSeconds(t *testing.T) {
	start(t, tokenBucket, limit.Limit{Rate: 2, Period: 3 * time.Second, Burst: 1}).run([]step{
		{0, 1, true, 0, 0},
		{0.2, 1, false, 0, 1.3},
		{1.499, 1, false, 0, 0.001},
		{1.5, 1, true, 0, 0},
	})
}

func TestRETRY02_CountsThePartOfAToken(t *testing.T) {
	start(t, tokenBucket, limit.PerSecond(1)).run([]step{
		{0, 1, true, 0, 0},
		{0.2, 1, false, 0, 0.8},
		{0.999, 1, false, 0, 0.001},
	})
}

func TestRETRY03_CounterTellsWhenTheEstimateFalls(t *testing.T) {
	start(t, slidingCounter, per(60, 60)).run([]step{
		{0, 60, true, 0, 0},
		{72, 12, true, 0, 0},
		{72, 1, false, 0, 1},
		{72, 5, false, 0, 5},
		{72, 60, false, 0, 108}, // the 12 have slid out at 180 s
	})
}

func TestRETRY04_LogTellsWhenEnoughHasLeft(t *testing.T) {
	start(t, slidingLog, per(3, 60)).run([]step{
		{0, 1, true, 2, 0},
		{10, 1, true, 1, 0},
		{20, 1, true, 0, 0},
		{30, 1, false, 0, 30},
		{30, 2, false, 0, 40},
		{30, 3, false, 0, 50},
		{60, 1, true, 0, 0},
		{60, 1, false, 0, 10},
	})
}

func TestRETRY05_ResetIsNotRetry(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(1).WithBurst(5))
	r.admitted(5)
	if got := r.ask(1); got.RetryAfter != time.Second || got.ResetAfter != 5*time.Second {
		t.Errorf("%+v, want RetryAfter 1s, ResetAfter 5s", got)
	}
	if got := r.at(1).admitted(5); got != 1 {
		t.Errorf("%d admitted after 1 s, want 1", got)
	}
}

func TestRETRY07_LongIdleBucketIsFull(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(1).WithBurst(5))
	r.ask(1)
	r.at(100).fails("k", 6, limit.ErrExceedsBurst)
	got := r.ask(5)
	if !got.Allowed || got.Remaining != 0 {
		t.Errorf("n=5: %+v, want allowed, remaining 0", got)
	}
	if reset := r.LimitOf("k").ResetAfter(got.Remaining); reset != 5*time.Second {
		t.Errorf("ResetAfter %v, want 5s", reset)
	}
}
