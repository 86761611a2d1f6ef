package leasetest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

var _ lease.Source = (*leasetest.Source)(nil)

// ten is refilled so slowly that it does not matter.
var ten = limit.PerDay(10)

// acquire sends one request and returns its grant.
func acquire(t *testing.T, src *leasetest.Source, key string, costs ...lease.Run) lease.Grant {
	t.Helper()
	grants := make([]lease.Grant, 1)
	src.Acquire(t.Context(), []lease.Request{{Key: key, Limit: ten, Costs: costs}}, grants)
	return grants[0]
}

func TestSource_faults(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name        string
		fault       leasetest.Fault
		took        time.Duration
		fails       bool
		left, later int64 // in the bucket when the call is over, and 60 ms after that
	}{
		{"none", leasetest.Fault{}, 0, false, 7, 7},
		{"slow", leasetest.Fault{Delay: 20 * ms, Reply: 30 * ms}, 50 * ms, false, 7, 7},
		{"request lost", leasetest.Fault{LoseRequest: true}, 100 * ms, true, 10, 10},
		{"reply lost", leasetest.Fault{LoseReply: true}, 100 * ms, true, 7, 7},
		{"late", leasetest.Fault{Late: 30 * ms}, 100 * ms, true, 10, 7},
		{"the way is too long", leasetest.Fault{Delay: 150 * ms}, 100 * ms, true, 10, 7},
		{"the way back is too long", leasetest.Fault{Reply: 150 * ms}, 100 * ms, true, 7, 7},
		{"twice", leasetest.Fault{Again: 10 * ms}, 0, false, 7, 4},
		{"error", leasetest.Fault{Err: errors.New("broken")}, 0, true, 10, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := leasetest.NewSource()
				src.Next(tt.fault)
				start := time.Now()
				g := acquire(t, src, "k", lease.Run{Cost: 1, Count: 3})
				if took := time.Since(start); took != tt.took || (g.Err != nil) != tt.fails {
					t.Errorf("%+v after %v, want it after %v", g, took, tt.took)
				}
				if !tt.fails && !slices.Equal(g.Admitted, []int{3}) {
					t.Errorf("admitted %v, want 3", g.Admitted)
				}
				if tt.fails && tt.fault.Err == nil && !errors.Is(g.Err, limit.ErrUnavailable) {
					t.Errorf("error %v", g.Err)
				}
				for _, want := range []int64{tt.left, tt.later} {
					if got := acquire(t, src, "k").Level; got != want {
						t.Errorf("%d tokens are left, want %d", got, want)
					}
					time.Sleep(60 * ms)
				}
			})
		})
	}
}

func TestSource_calls(t *testing.T) {
	src := leasetest.NewSource()
	src.Always(func(req lease.Request) leasetest.Fault {
		if req.Key == "b" {
			return leasetest.Fault{Err: limit.ErrUnavailable}
		}
		return leasetest.Fault{}
	})
	one := []lease.Run{{Cost: 1, Count: 1}}
	reqs := []lease.Request{{Key: "a", Limit: ten, Costs: one}, {Key: "b", Limit: ten, Costs: one}, {Key: "a", Limit: ten, Costs: one}}
	grants := make([]lease.Grant, 3)
	src.Acquire(t.Context(), reqs, grants)
	if grants[0].Level != 9 || grants[2].Level != 8 || grants[0].Err != nil || grants[2].Err != nil {
		t.Errorf("grants %+v, want 9 and then 8 tokens left", grants)
	}
	if !errors.Is(grants[1].Err, limit.ErrUnavailable) {
		t.Errorf("error %v", grants[1].Err)
	}
	if src.Trips() != 1 || src.Calls() != 3 || src.Calls("a") != 2 || src.Calls("a", "b") != 3 || src.Calls("c") != 0 {
		t.Errorf("%d trips, %d, %d calls", src.Trips(), src.Calls(), src.Calls("a"))
	}
	if got := src.Keys(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("keys %v", got)
	}

	src.Always(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	src.Acquire(ctx, reqs[:1], grants)
	if !errors.Is(grants[0].Err, limit.ErrUnavailable) || acquire(t, src, "a").Level != 8 {
		t.Errorf("for a caller who has left: %+v", grants[0])
	}
	src.Acquire(t.Context(), []lease.Request{{Key: "a", Limit: limit.Blocked()}}, grants)
	if !errors.Is(grants[0].Err, limit.ErrInvalid) {
		t.Errorf("with a limit that has no rate: %+v", grants[0])
	}
}

func TestSource_down(t *testing.T) {
	src := leasetest.NewSource()
	acquire(t, src, "k", lease.Run{Cost: 4, Count: 1})
	broken := errors.New("broken")
	src.Down(broken)
	if err := acquire(t, src, "k").Err; !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if err := src.Reset(t.Context(), "k", ten); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	src.Down(nil)
	if g := acquire(t, src, "k"); g.Level != 6 || g.Err != nil {
		t.Errorf("%+v, want 6 tokens left", g)
	}
}

func TestSource_state(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := leasetest.NewSource()
		level := func(key string) int64 { return acquire(t, src, key).Level }
		take := func(key string, n int) { acquire(t, src, key, lease.Run{Cost: n, Count: 1}) }
		want := func(what string, a, b int64) {
			t.Helper()
			if level("a") != a || level("b") != b {
				t.Errorf("%s: %d, %d tokens, want %d, %d", what, level("a"), level("b"), a, b)
			}
		}
		take("a", 1)
		old := src.Snapshot()
		take("a", 2)
		take("b", 5)
		want("taken", 7, 5)
		src.Rollback(old)
		want("rolled back", 9, 10)
		take("a", 2)
		src.Rollback(old)
		want("rolled back once more", 9, 10)
		take("b", 5)
		src.Flush("a")
		want("one flushed", 10, 5)
		take("a", 5)
		if err := src.Reset(t.Context(), "a", ten); err != nil {
			t.Error(err)
		}
		want("one reset", 10, 5)
		src.Flush()
		want("all flushed", 10, 10)

		take("a", 5)
		now := src.Now()
		src.StepClock(-time.Hour)
		if got := src.Now(); got != now-time.Hour.Microseconds() {
			t.Errorf("the clock went from %d to %d", now, got)
		}
		want("clock back", 5, 10)
		src.StepClock(48 * time.Hour)
		want("clock forward", 10, 10)
		if s := src.State("a"); s.Exists {
			t.Errorf("full, but there is %+v", s)
		}
		time.Sleep(time.Second)
		take("a", 1)
		if s := src.State("a"); !s.Exists || s.Level != 9 || s.Burst != 10 || s.Time != src.Now() {
			t.Errorf("state %+v", s)
		}
	})
}

func TestSource_concurrent(t *testing.T) {
	src := leasetest.NewSource()
	src.Always(func(lease.Request) leasetest.Fault {
		return leasetest.Fault{Delay: time.Microsecond, Again: time.Microsecond}
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				acquire(t, src, "k", lease.Run{Cost: 1, Count: 1})
				src.Next(leasetest.Fault{})
				src.Snapshot()
				src.State("k")
			}
		})
	}
	wg.Wait()
	if src.Calls() != 400 {
		t.Errorf("%d calls, want 400", src.Calls())
	}
}
