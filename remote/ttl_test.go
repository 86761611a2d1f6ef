package remote_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

func TestTTL01_FastRates(t *testing.T) {
	for _, lim := range []limit.Limit{
		limit.PerSecond(5000).WithBurst(1),
		limit.PerSecond(5000).WithBurst(2),
		{Rate: math.MaxInt32, Period: time.Microsecond, Burst: 1},
		{Rate: math.MaxInt32, Period: time.Microsecond, Burst: math.MaxInt32},
	} {
		each(t, buckets, lim, func(r *rig) {
			if got := r.ask(1); !got.Allowed {
				r.t.Errorf("%v: %+v, want allowed", lim, got)
			}
			if got := r.ttl(); got < time.Millisecond || got > 2*time.Second {
				r.t.Errorf("%v: time to live %v, want 1ms to 2s", lim, got)
			}
			r.pass(time.Second)
			if got := r.left(); got != lim.Burst {
				r.t.Errorf("%v: remaining %d a second later, want the burst", lim, got)
			}
		})
	}
}

func TestTTL02_NoKeyWithoutTTL(t *testing.T) {
	each(t, allModes, per(3, 10), func(r *rig) {
		for i := range 12 {
			r.at(1.5 * float64(i)).ask(1)
			if got := r.ttl(); got <= 0 || got > 21*time.Second {
				r.t.Errorf("call %d: time to live %v", i, got)
			}
		}
	})
	// A state that has lost its time to live, and is full, does not block for ever.
	states := map[string]func(r *rig){
		"token bucket": func(r *rig) {
			r.b.Client.HSet(ctx, r.stored(), "n", 0, "f", 0, "t", r.b.Now().UnixMicro(), "L", "3 10000000 3", "e", 1)
		},
		"gcra": func(r *rig) {
			r.b.Client.Set(ctx, r.stored(), strconv.FormatInt(r.b.Now().UnixMicro()+10_000_000, 10)+" 0", 0)
		},
		"fixed window":    func(r *rig) { r.b.Client.HSet(ctx, r.stored(), "s", r.b.Now().UnixMicro(), "c", 3) },
		"sliding counter": func(r *rig) { r.b.Client.HSet(ctx, r.stored(), "s", r.b.Now().UnixMilli(), "c", 3, "b", 0) },
		"sliding log": func(r *rig) {
			for i := range 3 {
				r.b.Client.Do(ctx, "zadd", r.stored(), r.b.Now().UnixMicro(), strconv.FormatInt(1e15+int64(i), 10))
			}
		},
	}
	each(t, allModes, per(3, 10), func(r *rig) {
		states[r.mode.name](r)
		if got := r.ask(1); got.Allowed {
			r.t.Fatalf("%+v, want denied by the state", got)
		}
		if r.mode.name == fixedWindow.name {
			if got := r.ttl(); got <= 0 || got > 10*time.Second {
				r.t.Errorf("the denied call left the time to live %v", got)
			}
		}
		allowed := false
		for range 20 {
			if got := r.pass(time.Second).ask(1); got.Allowed {
				allowed = true
				break
			}
		}
		if !allowed {
			r.t.Error("denied for two windows")
		}
		if got := r.ttl(); got <= 0 || got > 21*time.Second {
			r.t.Errorf("time to live %v after it was admitted", got)
		}
	})
}

func TestTTL03_NotLongerThanNeeded(t *testing.T) {
	most := map[string]time.Duration{
		"token bucket": 61 * time.Second, "gcra": 61 * time.Second,
		"fixed window": 60 * time.Second, "sliding log": 60 * time.Second, "sliding counter": 120 * time.Second,
	}
	each(t, allModes, per(60, 60), func(r *rig) {
		for _, n := range []int{1, 59} {
			r.ask(n)
			if got := r.ttl(); got > most[r.mode.name] {
				r.t.Errorf("time to live %v, want at most %v", got, most[r.mode.name])
			}
		}
		if got := r.ttl(); r.mode.name == slidingCounter.name && got <= 60*time.Second {
			r.t.Errorf("time to live %v: the next window needs it", got)
		}
	})
}

func TestTTL04_SlowClientIsNeverDenied(t *testing.T) {
	each(t, allModes, per(5, 120), func(r *rig) {
		last := time.Duration(0)
		for i := range 41 {
			if !r.at(30 * float64(i)).ask(1).Allowed {
				r.t.Errorf("denied at %d s", 30*i)
			}
			if r.mode.name != fixedWindow.name {
				continue
			}
			if got := r.ttl(); i%4 != 0 && got >= last {
				r.t.Errorf("at %d s: a hit raised the time to live from %v to %v", 30*i, last, got)
			} else {
				last = got
			}
		}
	})
}

func TestTTL05_CostsAddUp(t *testing.T) {
	each(t, allModes, per(100, 10_000), func(r *rig) {
		r.run([]step{{0, 33, true, 67, 0}})
		if got := r.ttl(); got <= 0 {
			r.t.Errorf("time to live %v", got)
		}
		r.run([]step{
			{0, 60, true, 7, 0},
			{0, 8, false, 7, whatever},
		})
	})
}

func TestTTL06_NothingIsLeft(t *testing.T) {
	each(t, allModes, per(500, 3600), func(r *rig) {
		keys := r.many(250)
		for i := range keys {
			k := r.on(strconv.Itoa(i))
			for range 3 {
				k.ask(1)
			}
		}
		if got := len(r.b.Keys()); got != keys {
			r.t.Errorf("%d keys, want %d", got, keys)
		}
		after := 3601 * time.Second
		if r.mode.name == slidingCounter.name {
			after = 7201 * time.Second
		}
		if r.pass(after); len(r.b.Keys()) != 0 {
			r.t.Errorf("%d keys left after %v", len(r.b.Keys()), after)
		}
	})
	on(t, slidingLog, per(10, 3600), func(r *rig) {
		for range r.many(1000) {
			r.ask(1)
		}
		if got := r.b.Client.ZCard(ctx, r.stored()).Val(); got != 10 {
			r.t.Errorf("ZCARD %d after many denied calls, want 10", got)
		}
	})
}

func TestTTL07_ReadingCreatesNothing(t *testing.T) {
	each(t, allModes, per(10, 60), func(r *rig) {
		r.on("unknown").ask(0)
		if got := r.b.Keys(); len(got) != 0 {
			r.t.Errorf("a peek at an unknown key made %q", got)
		}
		r.ask(10)
		before := r.ttl()
		r.pass(2 * time.Second)
		r.ask(0)
		r.ask(10) // denied
		if got := r.ttl(); got != before-2*time.Second {
			r.t.Errorf("time to live %v after 2 s, a peek and a denial, want %v", got, before-2*time.Second)
		}
	})
}

// A denial and a peek do not write, not even what is there already: it would go to the replicas and the disk.
func TestDenialsWriteNothing(t *testing.T) {
	each(t, allModes, per(10, 60), func(r *rig) {
		r.ask(8)
		touched := func(n int) bool {
			err := r.b.Client.Watch(ctx, func(tx *redis.Tx) error {
				r.ask(n)
				_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Exists(ctx, r.stored()).Err() })
				return err
			}, r.stored())
			if err != nil && err != redis.TxFailedErr {
				r.t.Fatal(err)
			}
			return err != nil
		}
		if touched(0) || touched(3) || touched(10) {
			r.t.Error("a peek or a denial has written")
		}
		if !touched(1) {
			r.t.Error("an admission has not written, or this test does not see it")
		}
		before := dump(r)
		for i := range 20 {
			r.pass(100 * time.Millisecond)
			r.ask(0)
			if got := r.ask(8); got.Allowed {
				r.t.Fatalf("call %d: %+v, want denied", i, got)
			}
			if got := dump(r); got != before {
				r.t.Fatalf("the state changed from %s to %s", before, got)
			}
		}
	})
}

// dump is the whole state of the key.
func dump(r *rig) string {
	r.t.Helper()
	cmd := map[string][]any{
		"token bucket":    {"hmget", r.stored(), "n", "f", "t", "L"},
		"gcra":            {"get", r.stored()},
		"fixed window":    {"hmget", r.stored(), "s", "c"},
		"sliding log":     {"zrange", r.stored(), 0, -1, "withscores"},
		"sliding counter": {"hmget", r.stored(), "s", "c", "b"},
	}[r.mode.name]
	v, err := r.b.Client.Do(ctx, cmd...).Result()
	if err != nil {
		r.t.Fatalf("%v: %v", cmd, err)
	}
	return fmt.Sprint(v)
}

func TestRATE10_EveryMixHasATTL(t *testing.T) {
	const never = math.MaxInt64 / 1_000_000 * time.Millisecond
	for _, period := range []time.Duration{time.Nanosecond, time.Microsecond, time.Second, 24 * time.Hour, 3650 * 24 * time.Hour} {
		for _, rate := range []int{1, 120, 1e6, 1e9} {
			for _, burst := range []int{1, 1e9} {
				lim := limit.Limit{Rate: rate, Period: period, Burst: burst}
				for _, m := range buckets {
					if _, err := m.make(unreachable(), lim, remote.Options{}); err != nil {
						continue // unsupported mixes fail in the constructor: TestRATE03
					}
					on(t, m, lim, func(r *rig) {
						if got := r.ask(burst); !got.Allowed {
							r.t.Errorf("%v: %+v, want allowed", lim, got)
						}
						if got := r.ttl(); got < time.Millisecond || got > never {
							r.t.Errorf("%v: time to live %v", lim, got)
						}
					})
				}
			}
		}
	}
}
