package remote_test

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// decide is a batch at one instant.
func (r *rig) decide(costs []lease.Run) []limit.Result {
	r.t.Helper()
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	results, err := r.limiter.(interface {
		Decide(context.Context, string, []lease.Run) ([]limit.Result, error)
	}).Decide(bounded, r.key, costs)
	if err != nil {
		r.t.Fatalf("%v: %v", costs, err)
	}
	return results
}

// now is the server's time in microseconds.
func (r *rig) now() int64 { return r.b.Now().UnixMicro() }

// model is a naive limiter.
type model interface {
	// left is what remains at a time.
	left(now int64) *big.Rat
	take(now, n int64)
	// state is what must be stored right after a take.
	state(now int64) string
}

// rational is a bucket in fractions.
type rational struct {
	lim   limit.Limit
	rate  *big.Rat // tokens per microsecond
	level *big.Rat
	t     int64
}

func newRational(lim limit.Limit) *rational {
	return &rational{lim, big.NewRat(int64(lim.Rate), lim.Period.Microseconds()), big.NewRat(int64(lim.Burst), 1), 0}
}

func (m *rational) left(now int64) *big.Rat {
	burst := big.NewRat(int64(m.lim.Burst), 1)
	got := new(big.Rat).Mul(m.rate, big.NewRat(max(0, now-m.t), 1))
	if got.Add(got, m.level).Cmp(burst) > 0 {
		return burst
	}
	return got
}

func (m *rational) take(now, n int64) {
	m.level = m.left(now)
	m.level.Sub(m.level, big.NewRat(n, 1))
	m.t = max(m.t, now)
}

// credit gives n tokens back, or charges -n even into a debt of at most the burst.
func (m *rational) credit(now, n int64) {
	m.take(now, -n)
	if burst := big.NewRat(int64(m.lim.Burst), 1); m.level.Cmp(burst) > 0 {
		m.level = burst
	}
	// Whole tokens go down to the debt of a burst; the started one stays.
	if whole := floor(m.level); whole < -int64(m.lim.Burst) {
		m.level.Add(m.level, big.NewRat(-int64(m.lim.Burst)-whole, 1))
	}
}

func (m *rational) state(int64) string {
	whole := floor(m.level)
	p := new(big.Rat).Inv(m.rate).Num() // the period in lowest terms
	part := new(big.Rat).Sub(m.level, big.NewRat(whole, 1))
	part.Mul(part, new(big.Rat).SetInt(m.rate.Denom()))
	return fmt.Sprintf("[%d %s %d %d %s %d]", whole, part.RatString(), m.t, m.rate.Num(), p, m.lim.Burst)
}

// wait is the least time until n tokens are there.
func (m *rational) wait(now, n int64) time.Duration {
	missing := new(big.Rat).Sub(big.NewRat(n, 1), m.left(now))
	if missing.Sign() <= 0 {
		return 0
	}
	missing.Quo(missing, m.rate)
	return limit.Micros(-floor(missing.Neg(missing)))
}

func floor(r *big.Rat) int64 {
	return new(big.Int).Div(r.Num(), r.Denom()).Int64() // Euclidean; the denominator is positive
}

// arrival is a rational bucket that is stored as a GCRA does it.
type arrival struct{ *rational }

func (m arrival) state(int64) string {
	left := new(big.Rat).Sub(big.NewRat(int64(m.lim.Burst), 1), m.level)
	tat := new(big.Rat).Add(big.NewRat(m.t, 1), left.Quo(left, m.rate))
	us := floor(tat)
	part := tat.Sub(tat, big.NewRat(us, 1))
	part.Mul(part, new(big.Rat).SetInt(m.rate.Num()))
	return fmt.Sprintf("%d %s", us, part.RatString())
}

// past is every admission, for the models of the windows.
type past []struct{ at, n int64 }

// sum counts the tokens admitted at times for which in holds.
func (p past) sum(in func(at int64) bool) (sum int64) {
	for _, a := range p {
		if in(a.at) {
			sum += a.n
		}
	}
	return sum
}

func (p *past) take(now, n int64) { *p = append(*p, struct{ at, n int64 }{now, n}) }

type naiveFixed struct {
	past
	lim limit.Limit
}

func (m *naiveFixed) count(window int64) int64 {
	return m.sum(func(at int64) bool { return at/m.lim.Period.Microseconds() == window })
}

func (m *naiveFixed) left(now int64) *big.Rat {
	return big.NewRat(int64(m.lim.Rate)-m.count(now/m.lim.Period.Microseconds()), 1)
}

func (m *naiveFixed) state(now int64) string {
	period := m.lim.Period.Microseconds()
	return fmt.Sprintf("[%d %d]", now/period*period, m.count(now/period))
}

type naiveLog struct {
	past
	lim limit.Limit
}

func (m *naiveLog) left(now int64) *big.Rat {
	return big.NewRat(int64(m.lim.Rate)-m.sum(func(at int64) bool { return at > now-m.lim.Period.Microseconds() }), 1)
}

func (m *naiveLog) state(now int64) string {
	var scores []string
	for _, a := range m.past {
		for range a.n {
			if a.at > now-m.lim.Period.Microseconds() {
				scores = append(scores, strconv.FormatInt(a.at, 10))
			}
		}
	}
	return fmt.Sprint(scores)
}

type naiveCounter struct{ naiveFixed }

func (m *naiveCounter) left(now int64) *big.Rat {
	period := m.lim.Period.Microseconds()
	unit := m.lim.CounterUnit().Microseconds()
	x := now % period / unit * unit
	left := big.NewRat(int64(m.lim.Rate)-m.count(now/period), 1)
	return left.Sub(left, big.NewRat(m.count(now/period-1)*(period-x), period))
}

func (m *naiveCounter) state(now int64) string {
	period := m.lim.Period.Microseconds()
	unit := m.lim.CounterUnit().Microseconds()
	return fmt.Sprintf("[%d %d %d]", now/period*period/unit, m.count(now/period), m.count(now/period-1))
}

func modelOf(m mode, lim limit.Limit) model {
	switch m.name {
	case tokenBucket.name:
		return newRational(lim)
	case gcra.name:
		return arrival{newRational(lim)}
	case fixedWindow.name:
		return &naiveFixed{lim: lim}
	case slidingLog.name:
		return &naiveLog{lim: lim}
	}
	return &naiveCounter{naiveFixed{lim: lim}}
}

// state is dump in the form of the models.
func (r *rig) state() string {
	r.t.Helper()
	if r.mode.name != slidingLog.name {
		return dump(r)
	}
	var scores []string
	for _, z := range r.b.Client.ZRangeWithScores(ctx, r.stored(), 0, -1).Val() {
		scores = append(scores, strconv.FormatFloat(z.Score, 'f', -1, 64))
	}
	return fmt.Sprint(scores)
}

// Each mode against its naive model: random costs, peeks and batches at random times, with the whole state.
func TestRandomHistories(t *testing.T) {
	for _, m := range allModes {
		for _, lim := range limitsOf(m) {
			on(t, m, lim, func(r *rig) {
				rnd := rand.New(rand.NewPCG(1, uint64(lim.Period)))
				naive := modelOf(m, lim)
				for range r.many(80) {
					now := r.pass(gap(rnd, lim)).now()
					var costs []lease.Run
					for range 1 + rnd.IntN(4)*rnd.IntN(2) {
						costs = append(costs, lease.Run{Cost: rnd.IntN(min(lim.Burst, 8) + 1), Count: 1 + rnd.IntN(3)*rnd.IntN(2)})
					}
					taken := false
					var want, got []string
					for _, c := range costs {
						for range c.Count {
							left := naive.left(now)
							ok := left.Cmp(big.NewRat(int64(c.Cost), 1)) >= 0 || c.Cost == 0
							if ok && c.Cost > 0 {
								naive.take(now, int64(c.Cost))
								taken = true
							}
							want = append(want, fmt.Sprint(c.Cost, ok, floor(naive.left(now))))
						}
					}
					results := r.decide(costs)
					i := 0
					for _, c := range costs {
						for range c.Count {
							got = append(got, fmt.Sprint(c.Cost, results[i].Allowed, results[i].Remaining))
							i++
						}
					}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						r.t.Fatalf("%v: %v at %d: %v, want %v", lim, costs, now, got, want)
					}
					if taken {
						if got, want := r.state(), naive.state(now); got != want {
							r.t.Fatalf("%v: after %v at %d: state %s, want %s", lim, costs, now, got, want)
						}
					}
				}
			})
		}
	}
}

// What a user might set that no double can hold as a fraction.
var awkward = []limit.Limit{
	limit.PerDay(1),
	limit.PerDay(1).WithBurst(104_250),
	limit.PerDay(1_000_000),
	limit.PerDay(999_983),
	limit.PerSecond(3),
	limit.PerSecond(1_000_000_000),
	limit.PerHour(7).WithBurst(10_000_000),
}

const years = 365 * 24 * time.Hour

// jump is a time of any order of magnitude, from a microsecond to years.
func jump(rnd *rand.Rand) time.Duration {
	d := time.Microsecond
	for d < 4*years && rnd.IntN(48) > 0 {
		d *= 2
	}
	return min(4*years, d+time.Duration(rnd.Int64N(int64(d)))).Truncate(time.Microsecond)
}

// price is a cost near what is left, or any.
func price(rnd *rand.Rand, left int64, burst int) int {
	switch n := int(max(1, min(left, int64(burst)))); rnd.IntN(6) {
	case 0:
		return n
	case 1:
		return min(n+1, burst)
	case 2:
		return burst
	case 3:
		return 0
	default:
		return 1 + rnd.IntN(n)
	}
}

// A refill is exact against rational arithmetic, after any time and for any rate, out of debts as well.
func TestRefillIsExact(t *testing.T) {
	for _, m := range buckets {
		for _, lim := range awkward {
			if _, err := m.make(unreachable(), lim, remote.Options{}); err != nil {
				continue // a GCRA cannot hold the last one
			}
			on(t, m, lim, func(r *rig) {
				rnd := rand.New(rand.NewPCG(2, uint64(lim.Period)+uint64(lim.Burst)))
				source := remote.NewSource(r.b.Client, remote.Options{Timeout: patience})
				naive := newRational(lim)
				stored := model(naive)
				if m.name == gcra.name {
					stored = arrival{naive}
				}
				for i := range r.many(200) {
					if r.b.Now().Year() > 2200 {
						// Microseconds are exact until 2255. Start over, with another key.
						r.at(0)
						r.key = "k" + strconv.Itoa(i)
						*naive = *newRational(lim)
					}
					now := r.pass(jump(rnd)).now()
					left := floor(naive.left(now))
					changed := false
					if m.name == tokenBucket.name && rnd.IntN(4) == 0 {
						n := price(rnd, left, lim.Burst)
						if rnd.IntN(2) == 0 && (r.real() || lim.ResetAfter(0) < 100*years) { // miniredis cannot hold the time to live
							n = -n
						}
						naive.credit(now, int64(n))
						changed = floor(naive.left(now)) != left
						var g [1]lease.Grant
						source.Acquire(ctx, []lease.Request{{Key: r.key, Limit: lim, Credit: int64(n)}}, g[:])
						if want := floor(naive.left(now)); g[0].Err != nil || g[0].Level != want {
							r.t.Fatalf("%v: credit %d at %d: %+v, want level %d", lim, n, now, g[0], want)
						}
					} else {
						n := price(rnd, left, lim.Burst)
						ok := n == 0 || naive.left(now).Cmp(big.NewRat(int64(n), 1)) >= 0
						wait := time.Duration(0)
						if ok {
							naive.take(now, int64(n))
							changed = n > 0
						} else {
							wait = naive.wait(now, int64(n))
						}
						want := int(max(0, floor(naive.left(now))))
						if got := r.ask(n); got.Allowed != ok || got.Remaining != want || got.RetryAfter != wait {
							r.t.Fatalf("%v: n=%d at %d: %+v, want %v, remaining %d, wait %v", lim, n, now, got, ok, want, wait)
						}
					}
					if !changed {
						continue
					}
					if got, want := r.state(), stored.state(now); got != want {
						r.t.Fatalf("%v: at %d: state %s, want %s", lim, now, got, want)
					}
				}
			})
		}
	}
}
