package hybrid

import (
	"context"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// naiveShare is what a share is supposed to be, in fractions that cannot overflow.
type naiveShare struct {
	rate         *big.Rat // tokens in a microsecond
	burst        *big.Rat
	level, ideal *big.Rat
	at           int64 // whole microseconds since the share was made
}

func newNaiveShare(lim limit.Limit, n int, level int64) *naiveShare {
	whole := func(x int64) *big.Rat { return new(big.Rat).SetInt64(x) }
	s := &naiveShare{burst: whole(max(1, int64(lim.Burst)/int64(n)))}
	s.rate = new(big.Rat).Quo(whole(int64(lim.Rate)), whole(lim.Period.Microseconds()))
	s.rate.Quo(s.rate, whole(int64(n)))
	s.level = whole(max(0, level) / int64(n))
	if level >= int64(lim.Burst) || s.level.Cmp(s.burst) > 0 {
		s.level.Set(s.burst)
	}
	s.ideal = new(big.Rat).Set(s.level)
	return s
}

func (s *naiveShare) refill(micros int64) {
	more := new(big.Rat).Mul(s.rate, new(big.Rat).SetInt64(micros-s.at))
	s.at = micros
	for _, l := range []*big.Rat{s.level, s.ideal} {
		if l.Add(l, more); l.Cmp(s.burst) > 0 {
			l.Set(s.burst)
		}
	}
}

// take takes n tokens if they are there, else it says in how many microseconds they are: -1 for never.
func (s *naiveShare) take(n int64) (wait int64, ok bool) {
	cost := new(big.Rat).SetInt64(n)
	if cost.Cmp(s.level) <= 0 {
		s.level.Sub(s.level, cost)
		return 0, true
	}
	if cost.Cmp(s.burst) > 0 {
		return -1, false
	}
	missing := cost.Sub(cost, s.level)
	missing.Quo(missing, s.rate)
	up := new(big.Int).Sub(missing.Denom(), big.NewInt(1))
	up.Add(up, missing.Num()).Div(up, missing.Denom())
	if !up.IsInt64() {
		return math.MaxInt64, false
	}
	return up.Int64(), false
}

func floor(x *big.Rat) int64 { return new(big.Int).Div(x.Num(), x.Denom()).Int64() }

func TestShareIsExact(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	year := 365 * 24 * time.Hour
	var denials, admissions, capped int
	for range 400 {
		lim := limit.Limit{
			Rate:   1 + rnd.IntN(1000),
			Period: []time.Duration{7 * time.Microsecond, time.Second, time.Minute, 24 * time.Hour, year, 100 * year}[rnd.IntN(6)],
			Burst:  1 + rnd.IntN(1000),
		}
		if lim.Validate() != nil {
			continue
		}
		n := []int{1, 2, 3, 10, 64, 1000, 1460}[rnd.IntN(7)]
		level := int64(rnd.IntN(2*lim.Burst)) - int64(lim.Burst/2) // in debt, or above a burst that was lowered
		start := rnd.Int64N(int64(time.Hour))
		s, model := newShare(lim, n, level, start), newNaiveShare(lim, n, level)
		const longest = 100 * 365 * 24 * 3_600_000_000                                   // microseconds
		token := min(1+lim.Period.Microseconds()/int64(lim.Rate)*int64(n), longest/1000) // about what it takes to get one
		now := start
		for step := range 60 {
			// Mostly about as much time as a token needs, now and then none, or enough to fill it. Now and then the clock
			// is read late.
			switch rnd.IntN(6) {
			case 0:
			case 1:
				now += rnd.Int64N(1000)
			case 2:
				now += 1000 * rnd.Int64N(min(token*int64(lim.Burst), longest))
			default:
				now += rnd.Int64N(2000 * token)
			}
			if now > math.MaxInt64/2 { // the next step may be as long
				break
			}
			model.refill((now - start) / 1000)
			cost := 1 + rnd.Int64N(s.burst)
			if rnd.IntN(4) == 0 {
				cost = 1 + rnd.Int64N(int64(lim.Burst))
			}
			wait, ok := model.take(cost)
			late := now
			if step > 0 && rnd.IntN(4) == 0 {
				s.refill(now)
				late -= rnd.Int64N(int64(time.Second))
			}
			r := s.take(late, cost)
			want := limit.Micros(wait)
			if wait < 0 {
				want, capped = maxWait, capped+1
			}
			if r.Allowed != ok || r.Origin != limit.Fallback || r.RetryAfter != want || int64(r.Remaining) != floor(model.level) || r.ResetAfter < r.RetryAfter && !ok {
				t.Fatalf("%v shared by %d, level %d, step %d: take(%d) = %+v; want %v, wait %v, %d left; seed %d", lim, n, level, step, cost, r, ok, want, floor(model.level), seed)
			}
			if s.level.N < 0 || s.level.N > s.burst || s.burst != floor(model.burst) {
				t.Fatalf("%v shared by %d: level %d of %d, want a burst of %v; seed %d", lim, n, s.level.N, s.burst, model.burst, seed)
			}
			if owed := floor(model.ideal) - floor(model.level); s.spent(now) != owed || owed < 0 {
				t.Fatalf("%v shared by %d: spent %d, want %d; seed %d", lim, n, s.spent(now), owed, seed)
			}
			if s.full(now) != (model.level.Cmp(model.burst) == 0) {
				t.Fatalf("%v shared by %d: full %v with %v of %v; seed %d", lim, n, s.full(now), model.level, model.burst, seed)
			}
			if ok {
				admissions++
			} else {
				denials++
			}
			if rnd.IntN(10) == 0 { // charged
				s.ideal = s.level
				model.ideal.Set(model.level)
			}
		}
	}
	if denials < 5000 || admissions < 2000 || capped < 1000 {
		t.Errorf("%d denials, %d admissions, %d above the burst of the share: too few to tell", denials, admissions, capped)
	}
}

// Limits and numbers of processes as large as they come: nothing overflows, and nothing is minted.
func TestShareOfHugeNumbers(t *testing.T) {
	year := 365 * 24 * time.Hour
	for _, lim := range []limit.Limit{
		{Rate: 1, Period: 100 * year, Burst: 1},
		{Rate: 1, Period: 100 * year, Burst: 2},
		{Rate: 1, Period: time.Microsecond, Burst: math.MaxInt >> 23},
		{Rate: math.MaxInt >> 23, Period: time.Second, Burst: math.MaxInt >> 23},
		{Rate: 999_983, Period: 24 * time.Hour, Burst: 999_983},
	} {
		if err := lim.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 1460, 1_000_000, math.MaxInt} {
			for _, level := range []int64{math.MinInt64, -1, 0, 1, int64(lim.Burst), math.MaxInt64} {
				s := newShare(lim, n, level, 0)
				if s.rate.Micros <= 0 || s.rate.Tokens <= 0 || s.burst < 1 || s.burst > max(1, int64(lim.Burst)) {
					t.Fatalf("%v shared by %d: %+v", lim, n, s)
				}
				taken := int64(0)
				for _, now := range []int64{0, 1, int64(time.Second), int64(year), int64(200 * year), math.MaxInt64} {
					for s.take(now, s.burst).Allowed {
						taken += s.burst
					}
					r := s.take(now, s.burst)
					if r.Allowed || r.RetryAfter <= 0 || r.ResetAfter < r.RetryAfter || r.Remaining < 0 || s.spent(now) < 0 || s.spent(now) > s.burst {
						t.Fatalf("%v shared by %d at %v: %+v of %+v", lim, n, time.Duration(now), r, s)
					}
				}
				// As many processes as count: with more the rate of one would be too small to be a number.
				of := min(float64(n), math.MaxInt64/2/float64(lim.Period.Microseconds()))
				most := float64(s.burst) + float64(lim.Rate)/of*(math.MaxInt64/1000)/float64(lim.Period.Microseconds())
				if float64(taken) > most*(1+1e-9) {
					t.Errorf("%v shared by %d admits %d in 292 years, want at most %g", lim, n, taken, most)
				}
			}
		}
	}
}

// The accounts of an outage end: those of keys that were forgotten at once, the others when their shares are full.
func TestAccountsOfAnOutageEnd(t *testing.T) {
	const maxKeys = 1024
	synctest.Test(t, func(t *testing.T) {
		src := leasetest.NewSource()
		l, err := NewFrom(src, PerMinute(60), Options{MaxKeys: maxKeys})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(context.Background())
		live := func() int {
			l.janitor.mu.Lock()
			defer l.janitor.mu.Unlock()
			return len(l.janitor.live)
		}
		src.Down(errors.New("away"))
		for i := range 10_000 {
			if _, err := l.Allow(t.Context(), strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
			if i%10 == 0 {
				time.Sleep(4 * time.Millisecond)
			}
			// 2,500 keys a second, each of which is of use for one, and the janitor takes most of another to get round.
			if n := live(); n > maxKeys+5000 {
				t.Fatalf("%d accounts after %d keys", n, i)
			}
		}
		time.Sleep(2 * time.Second)
		if n, keys := live(), l.Stats().Keys; n > keys || keys > maxKeys || n < keys-100 {
			t.Errorf("2s later there are %d accounts for %d keys", n, keys)
		}
		time.Sleep(2 * time.Minute)
		if n := live(); n != 0 {
			t.Errorf("when all shares are full there are %d accounts", n)
		}
		if got := l.Stats().Keys; got < maxKeys*9/10 {
			t.Errorf("%d keys are remembered", got)
		}
	})
}

// A peek during an outage is told what the share is or would be, and leaves neither a share nor an account.
func TestPeeksOfAnOutageKeepNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := leasetest.NewSource()
		l, err := NewFrom(src, PerMinute(60), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(context.Background())
		time.Sleep(time.Millisecond)
		for _, key := range []string{"asked", "seen"} {
			if _, err := l.Allow(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		src.Down(errors.New("away"))
		for range 5 {
			l.AllowN(t.Context(), "asked", 1)
		}
		if r, err := l.AllowN(t.Context(), "seen", 0); err != nil || r.Remaining != 59 || r.Origin != limit.Fallback {
			t.Errorf("%+v, %v", r, err)
		}
		if e, ok := l.keys.Get("seen"); !ok || e.account.Load() == nil || e.account.Load().share != nil {
			t.Error("a peek has made a share")
		}
		time.Sleep(2 * time.Minute) // nothing is known any more
		for i := range 100 {
			for _, key := range []string{"asked", "seen", strconv.Itoa(i)} {
				if r, err := l.AllowN(t.Context(), key, 0); err != nil || !r.Allowed || r.Remaining != 60 || r.Origin != limit.Fallback {
					t.Fatalf("%+v, %v", r, err)
				}
			}
		}
		accounts := func() int {
			l.janitor.mu.Lock()
			defer l.janitor.mu.Unlock()
			return len(l.janitor.live)
		}
		synctest.Wait()
		if n := accounts(); n > 1 { // one of them made a probe
			t.Errorf("%d accounts", n)
		}
		time.Sleep(3 * slowPace)
		if n := accounts(); n != 0 {
			t.Errorf("%d accounts later", n)
		}
	})
}
