package remote_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// refused makes sure that a limit does not pass the constructor, and that its error says what is wrong.
func refused(t *testing.T, m mode, lim limit.Limit, word string) {
	t.Helper()
	l, err := m.make(unreachable(), lim, remote.Options{})
	if !errors.Is(err, limit.ErrInvalid) || l != nil {
		t.Errorf("%s %+v: %v, %v; want nil, ErrInvalid", m.name, lim, l, err)
	} else if !strings.Contains(err.Error(), word) {
		t.Errorf("%s %+v: %q does not name %s", m.name, lim, err, word)
	}
}

func TestRATE01_RATE02_RATE03_Refused(t *testing.T) {
	for _, m := range allModes {
		refused(t, m, limit.Limit{}, "Limit")
		refused(t, m, per(0, 1), "Rate")
		refused(t, m, per(-1, 1), "Rate")
		refused(t, m, limit.Limit{Rate: 0, Period: time.Second, Burst: 1}, "Rate")
		refused(t, m, per(1, 0), "Period")
		refused(t, m, per(1, -1), "Period")
		refused(t, m, limit.Limit{Rate: 1, Period: 1500, Burst: 1}, "Period")
		refused(t, m, limit.PerSecond(1).WithBurst(0), "Burst")
		refused(t, m, limit.PerSecond(1).WithBurst(-1), "Burst")
	}
	for _, m := range windows {
		refused(t, m, limit.PerSecond(5).WithBurst(4), "Burst")
		refused(t, m, limit.Every(1500*time.Microsecond), "Period")
	}
	refused(t, slidingLog, limit.PerDay(remote.MaxLog+1), "Rate")
	refused(t, slidingCounter, limit.PerDay(math.MaxInt32), "Rate") // weighted in units beyond 2^53
	refused(t, gcra, limit.PerHour(7).WithBurst(10_000_000), "Burst")
}

func TestRATE03_Options(t *testing.T) {
	for _, m := range allModes {
		for _, opts := range []remote.Options{{Prefix: "a{b"}, {Prefix: "}"}, {Timeout: -1}} {
			if l, err := m.make(unreachable(), per(1, 1), opts); !errors.Is(err, limit.ErrInvalid) || l != nil {
				t.Errorf("%s %+v: %v, %v; want nil, ErrInvalid", m.name, opts, l, err)
			}
		}
	}
}

func TestRATE04_TinyRates(t *testing.T) {
	each(t, buckets, limit.Every(140*years), func(r *rig) {
		r.ask(1)
		for _, passed := range []time.Duration{0, 100 * years, 39 * years} {
			if got := r.pass(passed).ask(1); got.Allowed || got.RetryAfter <= 0 || got.RetryAfter > 140*years {
				r.t.Errorf("after %v more: %+v, want denied with a wait of at most 140 years", passed, got)
			}
		}
		if got := r.pass(years).ask(1); !got.Allowed {
			r.t.Errorf("after 140 years: %+v, want allowed", got)
		}
	})
	for _, m := range buckets {
		refused(t, m, limit.Every(math.MaxInt64/1000*1000), "")
		refused(t, m, limit.PerHour(1).WithBurst(math.MaxInt32), "Burst")
	}
}

func TestRATE05_Unlimited(t *testing.T) {
	for _, m := range allModes {
		l, err := m.make(unreachable(), limit.Unlimited(), remote.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 1000, math.MaxInt} {
			got, err := l.AllowN(ctx, "k", n)
			want := limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Local}, Remaining: math.MaxInt}
			if got != want || err != nil {
				t.Errorf("%s n=%d: %+v, %v; want %+v", m.name, n, got, err, want)
			}
		}
	}
}

func TestBlocked(t *testing.T) {
	for _, m := range allModes {
		l, err := m.make(unreachable(), limit.Blocked(), remote.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.AllowN(ctx, "k", 0); !got.Allowed || got.Remaining != 0 || err != nil {
			t.Errorf("%s n=0: %+v, %v; want allowed, remaining 0", m.name, got, err)
		}
		if got, err := l.AllowN(ctx, "k", 1); got.Allowed || got.RetryAfter != limit.Never || err != nil {
			t.Errorf("%s n=1: %+v, %v; want denied for ever", m.name, got, err)
		}
	}
}

func TestRATE06_LoweredLimitHoldsAtOnce(t *testing.T) {
	each(t, windows, per(10, 60), func(r *rig) {
		r.admitted(3)
		if got := r.with(per(5, 60)).admitted(5); got != 2 {
			r.t.Errorf("%d of 5 admitted, want 2", got)
		}
	})
	each(t, buckets, limit.PerSecond(10), func(r *rig) {
		r.ask(3)
		want := map[string]int{"token bucket": 5, "gcra": 2} // a GCRA keeps the time to fill: 0.3 s of 0.5 s
		if got := r.with(limit.PerSecond(10).WithBurst(5)).left(); got != want[r.mode.name] {
			r.t.Errorf("remaining %d, want %d", got, want[r.mode.name])
		}
	})
}

func TestRATE06_BelowWhatIsUsed(t *testing.T) {
	each(t, windows, per(10, 60), func(r *rig) {
		r.admitted(8)
		low := r.with(per(5, 60))
		if got := low.ask(0); !got.Allowed || got.Remaining != 0 {
			r.t.Errorf("n=0: %+v, want allowed, remaining 0", got)
		}
		low.retry(1)
		low.retry(5)
	})
}

func TestRATE07_LoweredAndRaised(t *testing.T) {
	each(t, allModes, per(10, 60), func(r *rig) {
		r.admitted(5)
		low, high := r.with(per(2, 60)), r.with(per(7, 60))
		for i, s := range []*rig{low, low, low, high, high, high} {
			// Two windows apart, so that no counter weighs the one before.
			if got, want := s.at(120*float64(i+1)).admitted(20), s.LimitOf("k").Rate; got != want {
				r.t.Errorf("period %d: %d admitted, want %d", i, got, want)
			}
		}
	})
}

func TestRATE08_RaisedLimitHelpsAtOnce(t *testing.T) {
	each(t, windows, per(10, 3600), func(r *rig) {
		if got := r.admitted(50); got != 10 {
			r.t.Errorf("%d of 50 admitted, want 10", got)
		}
		if got := r.with(per(20, 3600)).admitted(15); got != 10 {
			r.t.Errorf("%d of 15 admitted, want 10", got)
		}
	})
	// A bucket keeps its tokens, and from now on fills as fast as the new limit says, also while it only denies.
	each(t, buckets, per(10, 3600), func(r *rig) {
		r.admitted(50)
		r.with(per(3600, 3600)).retry(1)
	})
}

// What has flowed in until the change is by the limit that was in force until then, whoever notices it.
func TestRATE06_OldLimitUntilTheChange(t *testing.T) {
	on(t, tokenBucket, per(10, 3600), func(r *rig) {
		r.admitted(10)
		fast, slow := r.with(per(3600, 3600)), r.with(per(1, 3600).WithBurst(3600))
		fast.run([]step{
			{1800, 0, true, 5, 0},
			{1800, 6, false, 5, 1},
			{1801, 6, true, 0, 0},
		})
		slow.run([]step{
			{1810, 10, false, 9, 3600},
			{1810 + 3600, 10, true, 0, 0},
		})
	})
}

// Two processes that bring different limits to one bucket, as in a rollout: what flows in is never more than by the
// faster one, and the answers of each hold.
func TestRATE08_TwoLimitsTakeTurns(t *testing.T) {
	on(t, tokenBucket, limit.PerSecond(10).WithBurst(20), func(r *rig) {
		slow := r.with(limit.PerSecond(1).WithBurst(20))
		got := r.admitted(30)
		for range 100 {
			got += r.pass(10 * time.Millisecond).admitted(1)
			got += slow.pass(10 * time.Millisecond).admitted(1)
		}
		if got < 20+2 || got > 20+20 {
			r.t.Errorf("%d admitted in 2 s, want 22 to 40", got)
		}
		for _, s := range []*rig{slow, r, slow} {
			s.admitted(30)
			s.retry(1)
			s.retry(3)
		}
	})
}
