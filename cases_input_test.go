package hybrid_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
)

func TestRETRY02_APartOfATokenCounts(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		allowed(t, l, "k", 1)
		for _, at := range []time.Duration{200 * time.Millisecond, 999 * time.Millisecond} {
			sleepUntil(start, at)
			if r := denied(t, l, "k", 1); exact && r.RetryAfter != time.Second-at || r.RetryAfter < time.Second-at {
				t.Errorf("after %v: %+v", at, r)
			}
		}
	})
}

func TestCOST01_MoreThanTheBurstIsAnErrorOfItsOwn(t *testing.T) {
	inEachMode(t, hybrid.PerHour(300), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		if _, err := l.AllowN(t.Context(), "k", 301); !errors.Is(err, hybrid.ErrExceedsBurst) {
			t.Error(err)
		}
		if b.State("k").Exists {
			t.Error("it left a trace")
		}
		if r := allowed(t, l, "k", 1); r.Remaining != 299 {
			t.Errorf("%d remain, want 299", r.Remaining)
		}
	})
}

func TestCOST05_ARefusedRequestConsumesNothing(t *testing.T) {
	inEachMode(t, limit.Limit{Rate: 1, Period: 1000 * time.Second, Burst: 10}, func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for i, s := range []struct {
			n, remaining int
			ok           bool
		}{{8, 2, true}, {5, 2, false}, {1, 1, true}, {1, 0, true}, {1, 0, false}} {
			if r := ask(t, l, "k", s.n); r.Allowed != s.ok || r.Remaining != s.remaining {
				t.Errorf("step %d, n = %d: %+v, want %v with %d left", i+1, s.n, r, s.ok, s.remaining)
			}
			synctest.Wait() // while a lease comes in, what remains is an estimate
		}
	})
}

func TestCOST06_NoCostRoundsToNothing(t *testing.T) {
	for _, rate := range []int{1_000_000_001, 2_000_000_000} {
		inEachMode(t, hybrid.PerSecond(rate).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			if got := admitted(t, l, "k", 10); got != 1 {
				t.Errorf("%d/s: admitted %d, want 1", rate, got)
			}
		})
	}
}

func TestRATE04_WaitsThatNeverEnd(t *testing.T) {
	inEachMode(t, hybrid.Every(280*365*24*time.Hour), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 1)
		for range 3 {
			if r := denied(t, l, "k", 1); r.RetryAfter < 279*365*24*time.Hour {
				t.Errorf("%+v", r)
			}
			time.Sleep(time.Second)
		}
	})
	if _, err := hybrid.NewFrom(newBank(), limit.Limit{Rate: 1, Period: 24 * 365 * time.Hour, Burst: 1000}, hybrid.Options{}); !errors.Is(err, hybrid.ErrInvalid) {
		t.Errorf("a burst that takes 1000 years: %v", err)
	}
}

// Whatever rate, period and burst: refused by New, or it works and the key has a time to live.
func TestRATE10_AnyMixIsRefusedOrWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates, bursts := []int{1, 120, 1e6, 1e9}, []int{1, 1e9}
		works := 0
		for _, rate := range rates {
			for _, period := range []time.Duration{1, time.Microsecond, time.Second, 24 * time.Hour, 3650 * 24 * time.Hour} {
				for _, size := range bursts {
					lim := limit.Limit{Rate: rate, Period: period, Burst: size}
					for name, opts := range modes() {
						b := newBank()
						l, err := hybrid.NewFrom(b, lim, opts)
						if err != nil {
							if !errors.Is(err, hybrid.ErrInvalid) {
								t.Errorf("%v: %v", lim, err)
							}
							continue
						}
						works++
						what := fmt.Sprintf("%+v %s", lim, name)
						r := ask(t, l, "k", 1)
						s := b.State("k")
						if left := s.Deadline - b.Now(); !r.Allowed || left < 1000 || left > 300*365*24*time.Hour.Microseconds() {
							t.Errorf("%s: %+v, lives %dµs", what, r, left)
						}
						closeLimiter(t, l)
					}
				}
			}
		}
		if works < 100 {
			t.Errorf("%d mixes work", works)
		}
	})
}

func TestKEY05_RequestsDoNotMixKeys(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for i, s := range []struct {
			key string
			ok  bool
		}{{"A", true}, {"B", true}, {"A", false}, {"C", true}} {
			if r := ask(t, l, s.key, 1); r.Allowed != s.ok {
				t.Errorf("request %d for %s: %+v", i+1, s.key, r)
			}
		}
		var wg sync.WaitGroup
		var ok [50]atomic.Int64
		for i := range 50 * 4 {
			wg.Go(func() {
				if ask(t, l, "p"+strconv.Itoa(i%50), 1).Allowed {
					ok[i%50].Add(1)
				}
			})
		}
		wg.Wait()
		for i := range ok {
			if ok[i].Load() != 1 {
				t.Errorf("key p%d: admitted %d, want 1", i, ok[i].Load())
			}
		}
	})
}

func TestTTL03_KeysLiveUntilTheBucketIsFull(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(60), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		for n := range 60 {
			allowed(t, l, "k", 1)
			left := time.Duration(b.State("k").Deadline-b.Now()) * time.Microsecond
			if full := time.Duration(n+1) * time.Second; left < full || left > time.Minute+35*time.Second {
				t.Errorf("with %d tokens gone the key lives %v", n+1, left)
			}
		}
		time.Sleep(2 * time.Minute)
		if b.State("k").Exists {
			t.Error("the key is still there")
		}
	})
}

func TestTTL07_ManyKeysStayWithinMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		n := 30_000
		if underRace || testing.Short() {
			n = 5_000
		}
		l := newLimiter(t, b, hybrid.PerHour(100), hybrid.Options{MaxKeys: 500, LeaseSize: 5})
		for i := range n {
			allowed(t, l, strconv.Itoa(i), 1)
			if keys := l.Stats().Keys; keys > 500 {
				t.Fatalf("%d keys", keys)
			}
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		synctest.Wait()
		if held := l.Stats().Held; held > 500*5 {
			t.Errorf("holds %d tokens", held)
		}
		closeLimiter(t, l)
		conserved(t, l, 0)
	})
}
