package local_test

import (
	"math"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func TestCOST01_AboveTheBurst(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(300, 60))
		r.fails("k", 301, limit.ErrExceedsBurst)
		if got := r.Len(); got != 0 {
			t.Errorf("Len %d after a refusal, want 0", got)
		}
		if got := r.ask(1); !got.Allowed || got.Remaining != 299 {
			t.Errorf("n=1: %+v, want allowed, remaining 299", got)
		}
	})
}

func TestCOST02_WaitingCouldNeverHelp(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(20))
	r.fails("k", 200, limit.ErrExceedsBurst)
	r.fails("k", 21, limit.ErrExceedsBurst)
	r.run([]step{
		{0, 20, true, 0, 0},
		{0, 20, false, 0, 1},
		{1, 20, true, 0, 0},
	})
}

func TestCOST03_NegativeCost(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(5, 60))
		r.ask(5)
		for _, n := range []int{-1, -1000, math.MinInt} {
			r.fails("k", n, limit.ErrInvalidTokens)
		}
		if got := r.ask(1); got.Allowed {
			t.Errorf("n=1: %+v, want denied", got)
		}
	})
}

func TestCOST04_ZeroLooks(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(10, 60))
		if got := r.askKey("unknown", 0); !got.Allowed || got.Remaining != 10 || r.Len() != 0 {
			t.Errorf("unknown key: %+v, Len %d; want allowed, remaining 10, Len 0", got, r.Len())
		}
		r.admitted(4)
		for range 5 {
			if got := r.ask(0); !got.Allowed || got.Remaining != 6 {
				t.Errorf("n=0: %+v, want allowed, remaining 6", got)
			}
		}
		if got := r.ask(1); !got.Allowed || got.Remaining != 5 {
			t.Errorf("n=1: %+v, want allowed, remaining 5", got)
		}
		r.admitted(10)
		for range 5 {
			if got := r.ask(0); !got.Allowed || got.Remaining != 0 {
				t.Errorf("n=0 on an exhausted key: %+v, want allowed, remaining 0", got)
			}
		}
	})
}

func TestCOST05_RefusalConsumesNothing(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		start(t, m, limit.Limit{Rate: 10, Period: 10_000 * time.Second, Burst: 10}).run([]step{
			{0, 8, true, 2, 0},
			{0, 5, false, 2, whatever},
			{0, 1, true, 1, 0},
			{0, 1, true, 0, 0},
			{0, 1, false, 0, whatever},
		})
	})
}

func TestCOST06_MoreThanATokenPerNanosecond(t *testing.T) {
	for _, rate := range []int64{1_000_000_001, 3_000_000_000} {
		if int64(int(rate)) != rate {
			continue // a 32-bit int
		}
		if got := start(t, tokenBucket, limit.PerSecond(int(rate)).WithBurst(1)).admitted(10); got != 1 {
			t.Errorf("%d/s: %d of 10 admitted, want 1", rate, got)
		}
	}
}

func TestREM01_FirstRequestCountsOnce(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(150, 60))
		if got := r.ask(1).Remaining; got != 149 {
			t.Errorf("first: remaining %d, want 149", got)
		}
		if got := r.admitted(150); got != 149 {
			t.Errorf("%d more admitted, want 149", got)
		}
		if got := r.at(120).ask(1).Remaining; got != 149 {
			t.Errorf("after the window: remaining %d, want 149", got)
		}
	})
}

func TestREM02_LastTokenIsHandedOut(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(10, 60))
		for i := range 10 {
			if got := r.ask(1); !got.Allowed || got.Remaining != 9-i {
				t.Errorf("request %d: %+v, want allowed, remaining %d", i+1, got, 9-i)
			}
		}
		if got := r.ask(1); got.Allowed {
			t.Errorf("the eleventh: %+v, want denied", got)
		}
	})
}

func TestREM03_PeekIsUpToDate(t *testing.T) {
	start(t, tokenBucket, limit.PerSecond(1).WithBurst(10)).run([]step{
		{0, 10, true, 0, 0},
		{3, 0, true, 3, 0},
		{3.5, 0, true, 3, 0},
		{20, 0, true, 10, 0},
		{20, 1, true, 9, 0},
	})
}

func TestKEY01_PartsStaySeparate(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(1, 60))
		for _, parts := range [][]string{
			{"user@a.co", "mtest"}, {"user@a.com", "test"}, {"a:b", "c"}, {"a", "b:c"},
			{"a", ""}, {"", "a"}, {"x:y", "z"}, {"x", "y:z"},
		} {
			if !r.askKey(limit.Join(parts...), 1).Allowed {
				t.Errorf("%q denied", parts)
			}
		}
	})
}

func TestKEY05_NothingIsKeptBetweenRequests(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(1, 60))
		for i, want := range []bool{true, true, false, true} {
			if got := r.askKey("ABAC"[i:i+1], 1).Allowed; got != want {
				t.Errorf("request %d: allowed %v, want %v", i+1, got, want)
			}
		}
	})
}

func TestInvalidKeys(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		for _, lim := range []limit.Limit{per(1, 60), limit.Unlimited(), limit.Blocked()} {
			r := start(t, m, lim)
			r.fails("", 1, limit.ErrInvalidKey)
			r.fails("", 0, limit.ErrInvalidKey)
			r.fails(string(make([]byte, limit.MaxKeyLen+1)), 1, limit.ErrInvalidKey)
			r.fails("k", -1, limit.ErrInvalidTokens)
			r.askKey(string(make([]byte, limit.MaxKeyLen)), 1)
		}
	})
}

func TestTTL04_SlowClientIsNeverDenied(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(5, 120))
		for i := range 41 {
			if !r.at(30 * float64(i)).ask(1).Allowed {
				t.Errorf("denied at %d s", 30*i)
			}
		}
	})
}

func TestTTL05_CostsAddUp(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		start(t, m, per(100, 10_000)).run([]step{
			{0, 33, true, 67, 0},
			{0, 60, true, 7, 0},
			{0, 8, false, 7, whatever},
		})
	})
}

func TestTTL01_ExtremeRates(t *testing.T) {
	start(t, tokenBucket, limit.PerSecond(5000).WithBurst(1)).run([]step{
		{0, 1, true, 0, 0},
		{0.000199, 1, false, 0, 0.000001},
		{0.0002, 1, true, 0, 0},
	})
	start(t, tokenBucket, limit.PerSecond(5000).WithBurst(2)).run([]step{
		{0, 1, true, 1, 0},
		{0.0002, 2, true, 0, 0},
	})
	// The largest rate an int holds on every machine, in the shortest period.
	r := start(t, tokenBucket, limit.Limit{Rate: math.MaxInt32, Period: time.Microsecond, Burst: math.MaxInt32})
	r.run([]step{
		{0, math.MaxInt32, true, 0, 0},
		{0, 1, false, 0, 0.000001},
		{0.000001, math.MaxInt32, true, 0, 0},
	})
}

func TestTTL07_KeysAreBounded(t *testing.T) {
	const maxKeys = 10_000
	each(t, allModes, func(t *testing.T, m mode) {
		r := startWith(t, m, per(5, 60), local.Options{MaxKeys: maxKeys})
		before := heap()
		for i := range 100_000 {
			r.askKey(strconv.Itoa(i), 1)
			if got := r.Len(); got > maxKeys {
				t.Fatalf("Len %d, want at most %d", got, maxKeys)
			}
		}
		grown := int64(heap()) - int64(before)
		t.Logf("%d bytes per key", grown/maxKeys)
		if grown > 512*maxKeys {
			t.Errorf("the heap has grown by %d bytes for %d keys, want at most 512 each", grown, maxKeys)
		}
		runtime.KeepAlive(r)
	})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
