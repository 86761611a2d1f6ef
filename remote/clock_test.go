package remote_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// hours in seconds.
const hours = 3600.0

func TestCLOCK01_ClockSetBackByHours(t *testing.T) {
	const back = -8 * hours
	on(t, tokenBucket, limit.PerSecond(10).WithBurst(1), func(r *rig) {
		r.run([]step{
			{0, 1, true, 0, 0},
			{0.1, 1, true, 0, 0},
			{back + 0.1, 1, false, 0, 0.1},
			{back + 0.2, 1, true, 0, 0},
		})
	})
	// Whatever the mode: the step mints nothing, and the wait is no longer than without it.
	each(t, allModes, per(5, 10), func(r *rig) {
		r.at(3).admitted(5)
		got := r.at(back + 2).ask(1)
		if got.Allowed || got.RetryAfter > 20*time.Second || got.ResetAfter > 20*time.Second {
			r.t.Errorf("after the step: %+v, want denied, at most 20 s", got)
		}
		r.retry(1)
	})
}

// A bucket that only denies must not stand still until the old time comes round again.
func TestCLOCK01_DenialsDoNotFreezeTheClock(t *testing.T) {
	each(t, allModes, per(5, 10), func(r *rig) {
		r.at(3).admitted(5)
		allowed := false
		for s := 1.0; s <= 20 && !allowed; s++ {
			allowed = r.at(s - 8*hours).ask(1).Allowed
		}
		if !allowed {
			r.t.Error("denied for two windows after the clock was set back")
		}
	})
}

func TestCLOCK02_ToggledClock(t *testing.T) {
	on(t, tokenBucket, limit.PerSecond(1).WithBurst(3), func(r *rig) {
		for i, at := range []float64{0, 3 - 11, 6, 9 - 11} {
			if i > 0 && !r.at(at).ask(1).Allowed {
				r.t.Errorf("call %d denied", i)
			}
		}
		count := 0
		for range 30 {
			got := r.ask(1)
			if got.Allowed {
				count++
			}
			if got.RetryAfter > time.Second {
				r.t.Errorf("RetryAfter %v, want at most 1 s", got.RetryAfter)
			}
		}
		if count > 3 {
			r.t.Errorf("%d of 30 admitted, want at most 3", count)
		}
	})
}

func TestCLOCK02_ForwardJumpFillsOnce(t *testing.T) {
	each(t, allModes, per(3, 1), func(r *rig) {
		r.admitted(5)
		if got := r.at(1e6).admitted(10); got != 3 {
			r.t.Errorf("%d of 10 admitted after the jump, want 3", got)
		}
	})
}

// Two processes: nothing that a client's clock says can reach the script, so the server's window decides.
func TestCLOCK03_ServerTimeDecides(t *testing.T) {
	each(t, allModes, per(5, 10), func(r *rig) {
		other := r.with(per(5, 10))
		if got := r.at(9.5).admitted(5) + other.admitted(5); got != 5 {
			r.t.Errorf("%d admitted in all, want 5", got)
		}
		wait := other.ask(1).RetryAfter
		if got := r.pass(wait).ask(1); !got.Allowed {
			r.t.Errorf("after RetryAfter %v: %+v, want allowed", wait, got)
		}
	})
}

// A small step back is a correction, or another server after a failover: time stands still until it has caught up.
func TestSmallStepBack(t *testing.T) {
	each(t, allModes, per(5, 10), func(r *rig) {
		r.at(21).admitted(5)
		before := r.ask(1)
		for range 5 {
			got := r.at(18).ask(1)
			if want := before.RetryAfter + 3*time.Second; got.Allowed || got.RetryAfter > want {
				r.t.Fatalf("3 s back: %+v, want denied for at most %v", got, want)
			}
			if got := r.at(21).ask(1); got != before {
				r.t.Fatalf("back and forth: %+v, want %+v", got, before)
			}
		}
		r.at(18).retry(1)
	})
}

// What a key has been charged while time stands still outlives the lag: the time to live counts from the server's
// clock, not from the one that the bucket goes by.
func TestSmallStepBackKeepsTheKey(t *testing.T) {
	each(t, allModes, per(10, 10), func(r *rig) {
		r.at(20).ask(5)
		r.at(15.5).ask(5)
		full := false
		for s := 16.0; s <= 50; s += 0.5 {
			got := r.at(s).ask(0)
			full = full || got.Remaining == 10
			if !full {
				continue
			}
			if r.mode.name == tokenBucket.name && s < 30 || r.mode.name == gcra.name && s < 25 {
				r.t.Errorf("full at %v s", s)
			}
			break
		}
		if !full {
			r.t.Error("never full again")
		}
	})
}

// A step of the clock by itself leaves nobody with more than before, and RetryAfter stays exact after it.
func TestStepsBackMintNothing(t *testing.T) {
	for _, lim := range []limit.Limit{per(5, 10), per(60, 60), per(7, 0.5), per(3, 3600)} {
		each(t, allModes, lim, func(r *rig) {
			rnd := rand.New(rand.NewPCG(12, uint64(lim.Period)))
			period := lim.Period.Microseconds()
			for range r.many(40) {
				// Some traffic, at times spread over a window and its neighbours.
				for range 3 {
					r.pass(time.Duration(rnd.Int64N(period)) * time.Microsecond)
					r.ask(rnd.IntN(lim.Burst + 1))
				}
				before := r.left()
				back := time.Duration(1+rnd.Int64N(3*period)) * time.Microsecond
				switch rnd.IntN(3) {
				case 0:
					back = time.Duration(1 + rnd.Int64N(int64(5*time.Second)))
				case 1:
					back += time.Duration(rnd.IntN(30)) * time.Hour
				}
				if after := r.pass(-back).left(); after > before {
					r.t.Fatalf("%v: %d left, and %d after a step back by %v", lim, before, after, back)
				}
				if n := r.left() + 1; n <= lim.Burst {
					r.retry(n)
				}
			}
		})
	}
}
