package local_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func TestOVER02_LateCallDoesNotRefillAgain(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(5))
	for _, s := range []struct {
		at          float64
		calls, want int
	}{{31, 5, 5}, {32, 4, 4}, {31, 1, 1}, {32, 4, 0}} {
		if got := r.at(s.at).admitted(s.calls); got != s.want {
			t.Errorf("%d calls at %v s: %d admitted, want %d", s.calls, s.at, got, s.want)
		}
	}
}

func TestOVER03_NoRefillOnTopOfTheFlow(t *testing.T) {
	r := start(t, tokenBucket, limit.PerSecond(3))
	got := 0
	for i := range 101 {
		got += r.at(0.1 * float64(i)).admitted(1)
	}
	if got != 33 {
		t.Errorf("%d admitted in 10 s, want 33", got)
	}
}

func TestOVER04_LongIdleIsCappedOnce(t *testing.T) {
	for _, burst := range []int{3, 1} {
		r := start(t, tokenBucket, limit.PerSecond(1).WithBurst(burst))
		r.ask(1)
		if got := r.at(30).admitted(10); got != burst {
			t.Errorf("burst %d: %d of 10 admitted after idling, want %d", burst, got, burst)
		}
		for _, at := range []float64{31, 32, 33} {
			if got := r.at(at).admitted(1); got != 1 {
				t.Errorf("burst %d: denied at %v s", burst, at)
			}
		}
		if got := r.at(33.1).admitted(5); got != 0 {
			t.Errorf("burst %d: %d of 5 admitted at 33.1 s, want 0", burst, got)
		}
	}
}

func TestOVER05_ManyGoroutines(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, limit.Limit{Rate: 10, Period: 10_000 * time.Second, Burst: 10})
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 100 {
					if got, err := r.Allow(context.Background(), "k"); err != nil {
						t.Error(err)
					} else if got.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if got := admitted.Load(); got != 10 {
			t.Errorf("%d admitted, want 10", got)
		}
	})
}

func TestOVER06_InterleavedLog(t *testing.T) {
	r := start(t, slidingLog, per(10, 60))
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				r.pass(time.Millisecond)
				if got, err := r.Allow(context.Background(), "k"); err == nil && got.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != 10 {
		t.Errorf("%d admitted, want 10", got)
	}
}

func TestOVER07_SameTickCounts(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := start(t, m, per(5, 10))
		if got := r.admitted(20); got != 5 {
			t.Errorf("%d of 20 admitted at one instant, want 5", got)
		}
		if got := r.askKey("fresh", 3); !got.Allowed || got.Remaining != 2 {
			t.Errorf("n=3: %+v, want allowed, remaining 2", got)
		}
		if got := r.askKey("fresh", 3); got.Allowed || got.Remaining != 2 {
			t.Errorf("n=3 again: %+v, want denied, remaining 2", got)
		}
	})
}

func TestOVER08_WindowEdge(t *testing.T) {
	for _, tt := range []struct {
		mode mode
		want int // of 60 at the edge, after 60 one second before it
	}{{fixedWindow, 60}, {slidingLog, 0}, {slidingCounter, 0}, {tokenBucket, 1}} {
		r := start(t, tt.mode, per(60, 60))
		if got := r.at(59).admitted(60); got != 60 {
			t.Errorf("%s: %d admitted before the edge, want 60", tt.mode.name, got)
		}
		if got := r.at(60).admitted(60); got != tt.want {
			t.Errorf("%s: %d admitted at the edge, want %d", tt.mode.name, got, tt.want)
		}
	}
}

func TestOVER09_BucketGivesCapacityPlusFlow(t *testing.T) {
	r := start(t, tokenBucket, per(15, 60))
	got := r.admitted(15)
	for i := 1; i < 1200; i++ {
		got += r.at(0.05 * float64(i)).admitted(1)
	}
	if got != 29 {
		t.Errorf("%d admitted before 60 s, want 29", got)
	}
	if !r.at(60).ask(1).Allowed {
		t.Error("the 30th denied at 60 s")
	}
	log := start(t, slidingLog, per(15, 60))
	got = log.admitted(15)
	for i := 1; i < 1200; i++ {
		got += log.at(0.05 * float64(i)).admitted(1)
	}
	if got != 15 {
		t.Errorf("the log admitted %d before 60 s, want 15", got)
	}
}

func TestOVER10_HistoryOutlivesItsWindow(t *testing.T) {
	for _, tt := range []struct {
		mode mode
		want int
	}{{slidingLog, 2}, {slidingCounter, 1}} {
		r := start(t, tt.mode, per(10, 3600))
		r.at(0).admitted(1)
		r.at(3540).admitted(8)
		if got := r.at(3660).admitted(10); got != tt.want {
			t.Errorf("%s: %d more admitted at 3660 s, want %d", tt.mode.name, got, tt.want)
		}
	}
}

func TestOVER11_ExhaustedKeyStaysExhausted(t *testing.T) {
	each(t, allModes, func(t *testing.T, m mode) {
		r := startWith(t, m, per(5, 60), local.Options{MaxKeys: 3})
		r.admitted(6)
		// It keeps asking, so two others that come and go do not push it out.
		for i := range 10 {
			r.askKey(string(rune('A'+i)), 1)
			r.askKey("other", 5)
			if r.at(float64(i)).ask(1).Allowed {
				t.Errorf("admitted at %d s", i)
			}
		}
		// It is forgotten when it is the one asked for least recently; a peek is not asking.
		r.askKey("x", 1)
		r.askKey("y", 1)
		if got := r.ask(0).Remaining; got != 0 {
			t.Errorf("remaining %d, want 0", got)
		}
		r.askKey("z", 1)
		if got := r.ask(0).Remaining; got != 5 {
			t.Errorf("remaining %d after it was forgotten, want 5", got)
		}
	})
}

func TestOVER12_TwoLimitersShareNothing(t *testing.T) {
	short := start(t, fixedWindow, per(10, 1))
	long := start(t, fixedWindow, per(30, 3600))
	for i := range 10 {
		if !short.at(0.25 * float64(i)).ask(1).Allowed {
			t.Errorf("round %d: the short one denies", i)
		}
		if got := long.at(0.25 * float64(i)).ask(1).Remaining; got != 29-i {
			t.Errorf("round %d: remaining %d, want %d", i, got, 29-i)
		}
	}
}

func TestOVER13_NotAMicrosecondEarly(t *testing.T) {
	r := start(t, tokenBucket, per(6, 60))
	r.admitted(6)
	r.run([]step{
		{4.999, 1, false, 0, 5.001},
		{5.001, 1, false, 0, 4.999},
		{9.999, 1, false, 0, 0.001},
		{10, 1, true, 0, 0},
	})
}

func TestOVER14_FastRates(t *testing.T) {
	for _, rate := range []int{3, 1000} {
		if got := start(t, tokenBucket, limit.PerSecond(rate).WithBurst(1)).admitted(10); got != 1 {
			t.Errorf("%d/s: %d of 10 admitted, want 1", rate, got)
		}
	}
	start(t, tokenBucket, limit.PerSecond(3).WithBurst(1)).run([]step{
		{0, 1, true, 0, 0},
		{0.333, 1, false, 0, 0.000334},
		{0.334, 1, true, 0, 0},
	})
}
