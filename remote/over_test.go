package remote_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

func TestOVER01_LateReadingPaysNothingAgain(t *testing.T) {
	each(t, buckets, limit.PerSecond(10).WithBurst(1), func(r *rig) {
		got := r.at(0).admitted(1) + r.at(0.1).admitted(1)
		for range r.many(1000) {
			got += r.at(0).admitted(1) + r.at(0.1).admitted(1)
		}
		if got != 2 {
			r.t.Errorf("%d admitted, want 2", got)
		}
	})
}

func TestOVER02_LateCallDoesNotRefillAgain(t *testing.T) {
	each(t, buckets, limit.PerSecond(5), func(r *rig) {
		total := 0
		for _, s := range []struct {
			at    float64
			calls int
		}{{31, 5}, {32, 4}, {31, 1}, {32, 4}} {
			total += r.at(s.at).admitted(s.calls)
		}
		if total != 10 {
			r.t.Errorf("%d admitted, want 10", total)
		}
	})
}

func TestOVER03_NoRefillOnTopOfTheFlow(t *testing.T) {
	each(t, buckets, limit.PerSecond(3), func(r *rig) {
		got := 0
		for i := range 101 {
			got += r.at(0.1 * float64(i)).admitted(1)
		}
		if got != 33 {
			r.t.Errorf("%d admitted in 10 s, want 33", got)
		}
	})
}

func TestOVER04_LongIdleIsCappedOnce(t *testing.T) {
	for _, burst := range []int{3, 1} {
		each(t, buckets, limit.PerSecond(1).WithBurst(burst), func(r *rig) {
			r.ask(1)
			if got := r.at(30).admitted(10); got != burst {
				r.t.Errorf("burst %d: %d of 10 admitted after idling, want %d", burst, got, burst)
			}
			for _, at := range []float64{31, 32, 33} {
				if got := r.at(at).admitted(1); got != 1 {
					r.t.Errorf("burst %d: denied at %v s", burst, at)
				}
			}
			if got := r.at(33.1).admitted(5); got != 0 {
				r.t.Errorf("burst %d: %d of 5 admitted at 33.1 s, want 0", burst, got)
			}
		})
	}
}

// Eight processes, each with a client and a limiter of its own.
func TestOVER05_ManyProcesses(t *testing.T) {
	each(t, allModes, limit.Limit{Rate: 10, Period: 10_000 * time.Second, Burst: 10}, func(r *rig) {
		var processes [8]limiter
		for i := range processes {
			rdb := r.b.NewClient(r.t)
			processes[i] = startWith(r.t, r.b, rdb, r.mode, r.LimitOf("k"), remote.Options{Timeout: patience})
		}
		got := crowd(r.t, 64, r.many(100), func(i int) (limit.Result, error) { return processes[i%8].Allow(ctx, "k") })
		if got != 10 {
			r.t.Errorf("%d admitted, want 10", got)
		}
	})
}

func TestOVER06_InterleavedLog(t *testing.T) {
	on(t, slidingLog, per(10, 60), func(r *rig) {
		var processes [4]limiter
		for i := range processes {
			rdb := r.b.NewClient(r.t)
			processes[i] = startWith(r.t, r.b, rdb, r.mode, per(10, 60), remote.Options{Timeout: patience})
		}
		got := crowd(r.t, 50, 20, func(i int) (limit.Result, error) {
			if i == 0 {
				r.b.Advance(40 * time.Millisecond)
			}
			return processes[i%4].Allow(ctx, "k")
		})
		if got != 10 {
			r.t.Errorf("%d admitted, want 10", got)
		}
		if got := r.b.Client.ZCard(ctx, r.stored()).Val(); got != 10 {
			r.t.Errorf("ZCARD %d, want 10: a denied call leaves nothing", got)
		}
	})
}

func TestOVER07_SameTickCounts(t *testing.T) {
	each(t, allModes, per(5, 10), func(r *rig) {
		if got := r.admitted(20); got != 5 {
			r.t.Errorf("%d of 20 admitted at one instant, want 5", got)
		}
		fresh := r.on("fresh")
		fresh.run([]step{{0, 3, true, 2, 0}, {0, 3, false, 2, whatever}})
		if r.mode.name != slidingLog.name {
			return
		}
		if got := r.b.Client.ZCard(ctx, r.stored()).Val(); got != 5 {
			r.t.Errorf("ZCARD %d, want 5: one member for each token", got)
		}
		if got := r.b.Client.ZCard(ctx, fresh.stored()).Val(); got != 3 {
			r.t.Errorf("ZCARD %d, want 3: one member for each token", got)
		}
	})
}

// The comparison of the modes at the edge of a window, as the docs have it.
func TestOVER08_WindowEdge(t *testing.T) {
	want := map[string]int{"token bucket": 1, "gcra": 1, "fixed window": 60, "sliding log": 0, "sliding counter": 0}
	each(t, allModes, per(60, 60), func(r *rig) {
		if got := r.at(59).admitted(60); got != 60 {
			r.t.Errorf("%d admitted before the edge, want 60", got)
		}
		if got := r.at(60).admitted(60); got != want[r.mode.name] {
			r.t.Errorf("%d admitted at the edge, want %d", got, want[r.mode.name])
		}
	})
}

func TestOVER09_BucketGivesCapacityPlusFlow(t *testing.T) {
	want := map[string]int{"token bucket": 29, "gcra": 29, "sliding log": 15}
	each(t, []mode{tokenBucket, gcra, slidingLog}, per(15, 60), func(r *rig) {
		got := r.admitted(15)
		every := 60 / float64(r.many(1200)) // 50 ms on a real server
		for s := every; s < 60-every/2; s += every {
			got += r.at(s).admitted(1)
		}
		if got != want[r.mode.name] {
			r.t.Errorf("%d admitted before 60 s, want %d", got, want[r.mode.name])
		}
		if !r.at(60).ask(1).Allowed {
			r.t.Error("denied at 60 s")
		}
	})
}

func TestOVER10_HistoryOutlivesItsWindow(t *testing.T) {
	want := map[string]int{"sliding log": 2, "sliding counter": 1}
	each(t, []mode{slidingLog, slidingCounter}, per(10, 3600), func(r *rig) {
		r.at(0).admitted(1)
		r.at(3540).admitted(8)
		if got := r.at(3660).admitted(10); got != want[r.mode.name] {
			r.t.Errorf("%d more admitted at 3660 s, want %d", got, want[r.mode.name])
		}
	})
}

func TestOVER12_PrefixesShareNothing(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		short := startWith(t, b, b.Client, fixedWindow, per(10, 1), remote.Options{Prefix: "s:", Timeout: patience})
		long := startWith(t, b, b.Client, fixedWindow, per(30, 3600), remote.Options{Prefix: "h:", Timeout: patience})
		for i := range 10 {
			if !short.at(0.25 * float64(i)).ask(1).Allowed {
				t.Errorf("round %d: the short one denies", i)
			}
			if got := long.ask(1).Remaining; got != 29-i {
				t.Errorf("round %d: remaining %d, want %d", i, got, 29-i)
			}
		}
		if got, want := fmt.Sprint(b.Keys()), "[h:{k}fw1:3600000 s:{k}fw1:1000]"; got != want {
			t.Errorf("keys %v, want %v", got, want)
		}
	})
}

// With the default prefix, too. This is so for windows only: the limit of a token bucket may change while it is in use,
// so two limits at once share the bucket (docs/guarantees.md says what holds then), and those of a GCRA its one number.
// To have two of them on one thing, use different prefixes or keys.
func TestOVER12_PeriodsShareNothing(t *testing.T) {
	each(t, windows, per(30, 3600), func(long *rig) {
		long.key = "u1"
		short := long.with(per(10, 1))
		for i := range 10 {
			if got := short.at(0.25 * float64(i)).ask(1); !got.Allowed {
				long.t.Errorf("round %d: the short one denies: %+v", i, got)
			}
			if got := long.ask(1); !got.Allowed || got.Remaining != 29-i {
				long.t.Errorf("round %d: %+v, want allowed, remaining %d", i, got, 29-i)
			}
		}
		for _, r := range []*rig{short, long} {
			if !r.b.Exists(r.stored()) {
				r.t.Errorf("no %s among the keys %q", r.stored(), r.b.Keys())
			}
		}
		if err := short.Reset(ctx, short.key); err != nil {
			long.t.Error(err)
		}
		if got := long.left(); got != 20 {
			long.t.Errorf("remaining %d after a reset of the short one, want 20", got)
		}
		// A load that uses up each second is held by the hour.
		got := 0
		for i := range 10 {
			short.at(3 + float64(i)).admitted(10)
			got += long.admitted(5)
		}
		if got != 20 {
			long.t.Errorf("%d more admitted, want 20", got)
		}
	})
}

func TestOVER13_NoRounding(t *testing.T) {
	each(t, buckets, per(6, 60), func(r *rig) {
		r.admitted(6)
		r.run([]step{
			{4.999, 1, false, 0, 5.001},
			{5.001, 1, false, 0, 4.999},
			{9.999, 1, false, 0, 0.001},
			{10, 1, true, 0, 0},
		})
	})
}

func TestOVER14_FastRates(t *testing.T) {
	for _, rate := range []int{3, 1000} {
		each(t, buckets, limit.PerSecond(rate).WithBurst(1), func(r *rig) {
			if got := r.admitted(10); got != 1 {
				r.t.Errorf("%d/s: %d of 10 admitted, want 1", rate, got)
			}
			if got := r.ttl(); got < time.Millisecond {
				r.t.Errorf("%d/s: time to live %v, want at least 1ms", rate, got)
			}
		})
	}
	each(t, buckets, limit.PerSecond(3).WithBurst(1), func(r *rig) {
		r.run([]step{
			{0, 1, true, 0, 0},
			{0.333, 1, false, 0, 0.000334},
			{0.334, 1, true, 0, 0},
		})
	})
}
