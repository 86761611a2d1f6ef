package hybrid_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
)

func TestOVER03_ASteadyClientGetsTheRate(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(3), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		got := 0
		for range 101 {
			got += admitted(t, l, "k", 1)
			time.Sleep(100 * time.Millisecond)
		}
		few(t, "33 in ten seconds", got, 33, 3, exact)
	})
}

func TestOVER04_IdleTimeIsCreditedOnceAndUpToTheBurst(t *testing.T) {
	for _, size := range []int{1, 3} {
		inEachMode(t, hybrid.PerSecond(1).WithBurst(size), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			allowed(t, l, "k", 1)
			time.Sleep(30 * time.Second)
			if got := admitted(t, l, "k", 10); got != size {
				t.Errorf("admitted %d, want %d", got, size)
			}
			for range 3 {
				time.Sleep(time.Second)
				allowed(t, l, "k", 1)
			}
			time.Sleep(100 * time.Millisecond)
			if got := admitted(t, l, "k", 5); got != 0 {
				t.Errorf("admitted %d more", got)
			}
		})
	}
}

func TestOVER05_ConcurrentCallersShareTheLastTokens(t *testing.T) {
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			opts.Timeout = time.Minute
			l := newLimiter(t, newSlowSource(), limit.Limit{Rate: 1, Period: 1000 * time.Second, Burst: 10}, opts)
			var ok, no atomic.Int64
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for range 100 {
						r, err := l.Allow(t.Context(), "k")
						switch {
						case err != nil:
							t.Error(err)
						case r.Allowed:
							ok.Add(1)
						default:
							no.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if ok.Load() != 10 || no.Load() != 6390 {
				t.Errorf("%d admitted, %d denied, want 10 and 6390", ok.Load(), no.Load())
			}
			closeLimiter(t, l)
		})
	}
}

func TestOVER08_NoDoubleBurstAroundAnEdge(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(60), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		sleepUntil(start, 59*time.Second)
		if got := admitted(t, l, "k", 60); got != 60 {
			t.Errorf("admitted %d, want 60", got)
		}
		sleepUntil(start, 60*time.Second)
		few(t, "a second later", admitted(t, l, "k", 60), 1, 1, exact)
	})
}

func TestOVER09_BurstAndRateAddUp(t *testing.T) {
	inEachMode(t, hybrid.PerMinute(15), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		got := admitted(t, l, "k", 15)
		start := time.Now()
		for at := 50 * time.Millisecond; at < time.Minute; at += 50 * time.Millisecond {
			sleepUntil(start, at)
			got += admitted(t, l, "k", 1)
		}
		few(t, "in the first minute", got, 29, 1, exact)
	})
}

func TestOVER12_PrefixesKeepLimitersApart(t *testing.T) {
	_, rdb := redistest.NewMini(t, time.UnixMilli(1_800_000_000_000))
	short, err := hybrid.New(rdb, hybrid.PerSecond(10), hybrid.Options{Prefix: "s:", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	long, err := hybrid.New(rdb, hybrid.PerHour(30), hybrid.Options{Prefix: "h:", Timeout: time.Minute, Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		allowed(t, short, "u1", 1)
		if r := allowed(t, long, "u1", 1); r.Remaining != 29-i {
			t.Errorf("round %d: %d remain, want %d", i+1, r.Remaining, 29-i)
		}
	}
	closeLimiter(t, short)
	closeLimiter(t, long)
}

func TestOVER14_ASmallBurstIsKept(t *testing.T) {
	for _, rate := range []int{3, 1000} {
		inEachMode(t, hybrid.PerSecond(rate).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			if got := admitted(t, l, "k", 10); got != 1 {
				t.Errorf("admitted %d, want 1", got)
			}
			if s := b.State("k"); s.Deadline <= b.Now() {
				t.Errorf("the key is gone at once: %+v", s)
			}
			if rate == 3 {
				time.Sleep(333 * time.Millisecond)
				denied(t, l, "k", 1)
				time.Sleep(time.Millisecond)
				if exact {
					allowed(t, l, "k", 1)
				}
			}
		})
	}
}

func TestUNDER01_DenialsDoNotEatTheRefill(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(20).WithBurst(1200), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		if got := admitted(t, l, "k", 1300); got != 1200 {
			t.Fatalf("admitted %d, want 1200", got)
		}
		start, got := time.Now(), 0
		for i := range 1000 {
			sleepUntil(start, time.Duration(i+1)*10*time.Millisecond)
			got += admitted(t, l, "k", 1)
		}
		few(t, "in ten seconds", got, 200, 20, exact)
	})
}

func TestUNDER02_LargeRatesAreNotTruncated(t *testing.T) {
	for _, rate := range []int{65_535, 999_983, 1_000_000_007} {
		inEachMode(t, hybrid.PerSecond(rate), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
			for range 20 {
				if r := allowed(t, l, "k", 1); r.Remaining != rate-1 && exact || r.Remaining < rate-40 {
					t.Errorf("%d remain, want %d", r.Remaining, rate-1)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}

func TestUNDER03_RefusedRequestsLeaveNoDebt(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(10).WithBurst(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		allowed(t, l, "k", 1)
		for i := range 99 {
			sleepUntil(start, time.Duration(i+1)*time.Millisecond)
			if o := burst(t.Context(), l, "k", 10); o.allowed.Load() != 0 {
				t.Fatalf("%v after %v", o, time.Since(start))
			}
		}
		sleepUntil(start, 100*time.Millisecond)
		r := ask(t, l, "k", 1)
		if !r.Allowed {
			if exact {
				t.Errorf("%+v", r)
			}
			time.Sleep(r.RetryAfter)
			allowed(t, l, "k", 1)
		}
	})
}

func TestUNDER05_LongIdleTimes(t *testing.T) {
	inEachMode(t, hybrid.PerSecond(1_000_000), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		const day = 24 * time.Hour
		for _, idle := range []time.Duration{0, 12 * time.Hour, 400 * day, 100 * 365 * day} {
			time.Sleep(idle)
			if r := allowed(t, l, "k", 1); r.Remaining != 999_999 {
				t.Errorf("after %v: %d remain", idle, r.Remaining)
			}
		}
	})
}

func TestUNDER06_RatesBelowOnePerSecond(t *testing.T) {
	inEachMode(t, hybrid.PerHour(1), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		start := time.Now()
		allowed(t, l, "k", 1)
		for _, at := range []time.Duration{1800 * time.Second, 3599 * time.Second} {
			sleepUntil(start, at)
			if r := denied(t, l, "k", 1); r.RetryAfter != time.Hour-at {
				t.Errorf("after %v: %+v", at, r)
			}
		}
		sleepUntil(start, time.Hour)
		allowed(t, l, "k", 1)
	})
	inEachMode(t, hybrid.Every(2*time.Second), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 1)
		time.Sleep(time.Second)
		if r := denied(t, l, "k", 1); r.RetryAfter != time.Second {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Second)
		allowed(t, l, "k", 1)
	})
	inEachMode(t, hybrid.PerDay(100_000), func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool) {
		allowed(t, l, "k", 100_000)
		denied(t, l, "k", 1)
	})
}
