package local_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

var options local.Options

func (r *rig) set(lim limit.Limit) {
	r.t.Helper()
	if err := r.SetLimit(lim); err != nil {
		r.t.Errorf("SetLimit(%v): %v", lim, err)
	}
}

// retry asks for n tokens that are not there, and again a microsecond before RetryAfter is over and when it is.
func (r *rig) retry(n int) {
	r.t.Helper()
	got := r.ask(n)
	if got.Allowed {
		r.t.Fatalf("n=%d: %+v, want denied", n, got)
	}
	if early := r.pass(got.RetryAfter - time.Microsecond).ask(n); early.Allowed || early.RetryAfter != time.Microsecond {
		r.t.Errorf("n=%d, 1µs before RetryAfter %v: %+v, want denied for 1µs", n, got.RetryAfter, early)
	}
	if late := r.pass(time.Microsecond).ask(n); !late.Allowed {
		r.t.Errorf("n=%d at RetryAfter %v: %+v, want allowed", n, got.RetryAfter, late)
	}
}

// admission is a request that passed.
type admission struct {
	at time.Duration // since 1970
	n  int64
}

// model is a naive limiter: it looks at the whole history each time. It answers what is left before the request.
type model interface {
	left(lim limit.Limit, past []admission, now time.Duration) *big.Rat
}

type bucketModel struct{}

func (bucketModel) left(lim limit.Limit, past []admission, now time.Duration) *big.Rat {
	burst := big.NewRat(int64(lim.Burst), 1)
	level := new(big.Rat).Set(burst)
	last := time.Duration(0)
	flow := func(to time.Duration) {
		level.Add(level, new(big.Rat).Mul(big.NewRat(int64(lim.Rate), int64(lim.Period)), big.NewRat(int64(to-last), 1)))
		if level.Cmp(burst) > 0 {
			level.Set(burst)
		}
		last = to
	}
	for _, a := range past {
		flow(a.at)
		level.Sub(level, big.NewRat(a.n, 1))
	}
	flow(now)
	return level
}

type fixedModel struct{}

func (fixedModel) left(lim limit.Limit, past []admission, now time.Duration) *big.Rat {
	left := int64(lim.Rate)
	for _, a := range past {
		if a.at/lim.Period == now/lim.Period {
			left -= a.n
		}
	}
	return big.NewRat(left, 1)
}

type logModel struct{}

func (logModel) left(lim limit.Limit, past []admission, now time.Duration) *big.Rat {
	left := int64(lim.Rate)
	for _, a := range past {
		if a.at > now-lim.Period {
			left -= a.n
		}
	}
	return big.NewRat(left, 1)
}

type counterModel struct{}

func (counterModel) left(lim limit.Limit, past []admission, now time.Duration) *big.Rat {
	left := big.NewRat(int64(lim.Rate), 1)
	x := (now % lim.Period).Truncate(lim.CounterUnit())
	for _, a := range past {
		switch now/lim.Period - a.at/lim.Period {
		case 0:
			left.Sub(left, big.NewRat(a.n, 1))
		case 1:
			left.Sub(left, big.NewRat(a.n*int64(lim.Period-x), int64(lim.Period)))
		}
	}
	return left
}

func floor(r *big.Rat) int64 {
	q := new(big.Int).Div(r.Num(), r.Denom()) // Euclidean; the denominator is positive
	return q.Int64()
}

var models = []struct {
	mode
	model
	limits []limit.Limit
}{
	{tokenBucket, bucketModel{}, []limit.Limit{
		limit.PerSecond(3), limit.PerSecond(10).WithBurst(1), limit.PerHour(7).WithBurst(40), {Rate: 999_983, Period: 24 * time.Hour, Burst: 50}, limit.PerDay(1),
		{Rate: 13, Period: 7 * time.Microsecond, Burst: 5}, {Rate: 1_000_003, Period: 999_983 * time.Microsecond, Burst: 20},
	}},
	{fixedWindow, fixedModel{}, windowLimits},
	{slidingLog, logModel{}, windowLimits},
	{slidingCounter, counterModel{}, windowLimits},
}

var windowLimits = []limit.Limit{per(1, 1), per(5, 60), per(17, 0.007), per(40, 3600), per(9, 0.999), per(3, 0.001), per(11, 1.001)}

func TestRandomHistories(t *testing.T) {
	for _, m := range models {
		for _, lim := range m.limits {
			t.Run(fmt.Sprint(m.name, " ", lim), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(1, uint64(lim.Period)))
				r := start(t, m.mode, lim)
				var past []admission
				for range 250 {
					now := r.pass(gap(rnd, lim)).now.Sub(time.Unix(0, 0))
					n := rnd.IntN(min(lim.Burst, 8) + 1)
					left := m.left(lim, past, now)
					allowed := left.Cmp(big.NewRat(int64(n), 1)) >= 0
					want := floor(left)
					if allowed {
						want -= int64(n)
					}
					got := r.ask(n)
					if got.Allowed != allowed || int64(got.Remaining) != want {
						t.Fatalf("n=%d at %v: allowed %v, remaining %d; want %v, %d", n, now, got.Allowed, got.Remaining, allowed, want)
					}
					if allowed && n > 0 {
						past = append(past, admission{now, int64(n)})
					}
				}
				m.checkBounds(t, lim, past)
			})
		}
	}
}

// gap is a time between requests: none, about what a token takes, sometimes longer than everything.
func gap(rnd *rand.Rand, lim limit.Limit) time.Duration {
	token := int64(lim.Period) / int64(lim.Rate)
	var d int64
	switch rnd.IntN(12) {
	case 0:
	case 1:
		d = rnd.Int64N(int64(3 * lim.Period))
	case 2:
		d = int64(lim.Period)
	default:
		d = rnd.Int64N(8*token + 2)
	}
	return time.Duration(d).Truncate(time.Microsecond)
}

// checkBounds looks at every window between two admissions.
func (m mode) checkBounds(t *testing.T, lim limit.Limit, past []admission) {
	t.Helper()
	for i := range past {
		var sum int64
		for _, a := range past[i:] {
			span := a.at - past[i].at
			sum += a.n
			switch m.name {
			case tokenBucket.name:
				flow := new(big.Rat).Mul(big.NewRat(int64(lim.Rate), int64(lim.Period)), big.NewRat(int64(span), 1))
				if most := int64(lim.Burst) + floor(flow); sum > most {
					t.Fatalf("%d admitted within %v, want at most %d", sum, span, most)
				}
			case slidingLog.name:
				if span < lim.Period && sum > int64(lim.Rate) {
					t.Fatalf("%d admitted within %v, want at most %d", sum, span, lim.Rate)
				}
			default:
				if span < lim.Period && sum > 2*int64(lim.Rate) {
					t.Fatalf("%d admitted within %v, want at most %d", sum, span, 2*lim.Rate)
				}
			}
		}
	}
}

func TestWaitingAsToldGetsTheWholeRate(t *testing.T) {
	// Not below the ideal either: a client that always asks and waits for RetryAfter gets Burst + Rate*T of a token
	// bucket, to the token, and Rate per Period of a window.
	for _, m := range models {
		for _, lim := range m.limits {
			t.Run(fmt.Sprint(m.name, " ", lim), func(t *testing.T) {
				r := start(t, m.mode, lim)
				begin := r.now.Truncate(lim.Period)
				var got int64
				for range 1000 {
					for {
						a := r.ask(1)
						if !a.Allowed {
							r.pass(a.RetryAfter)
							break
						}
						if got++; got > 1_000_000 {
							t.Fatal("no denial in sight")
						}
					}
				}
				rate := int64(lim.Rate)
				passed := r.now.Sub(begin)
				if m.name == tokenBucket.name {
					passed = r.now.Sub(origin)
				}
				// The loop ends with a wait: all that is there now, but for one token, has been taken.
				flow := floor(new(big.Rat).Mul(big.NewRat(rate, int64(lim.Period)), big.NewRat(int64(passed), 1)))
				least, most := flow-rate, flow+rate
				switch m.name {
				case tokenBucket.name:
					least = int64(lim.Burst) + flow - int64(r.ask(0).Remaining)
					most = least
				case slidingCounter.name:
					// In the long run it holds back one token of each window, and with one per window every other window.
					least = flow*max(2*rate-2, 1)/(2*rate) - rate
				}
				if got < least || got > most {
					t.Errorf("%d admitted within %v, want %d to %d", got, passed, least, most)
				}
			})
		}
	}
}

func TestRETRY06_RetryAfterIsExact(t *testing.T) {
	for _, m := range models {
		for _, lim := range m.limits {
			t.Run(fmt.Sprint(m.name, " ", lim), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(3, uint64(lim.Period)))
				r := start(t, m.mode, lim)
				denied := 0
				for range 400 {
					n := 1 + rnd.IntN(lim.Burst)
					r.pass(gap(rnd, lim))
					left := r.ask(0).Remaining
					if left >= n {
						r.ask(n)
						continue
					}
					denied++
					r.retry(n)
				}
				if denied < 10 {
					t.Errorf("only %d denials, want more to look at", denied)
				}
			})
		}
	}
}
