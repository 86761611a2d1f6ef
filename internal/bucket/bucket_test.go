package bucket_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/hybridlimit/hybrid/internal/bucket"
)

const (
	second = 1_000_000
	day    = 86_400 * second
)

// cases are rates in the terms of their users, with a burst that fits.
var cases = []struct {
	tokens, micros, burst int64
}{
	{1, day, 1},
	{1, day, 104_250},
	{1_000_000, day, 1_000_000},
	{999_983, day, 999_983},
	{3, second, 3},
	{1_000_000_000, second, 1_000_000_000},
	{7, 3600 * second, 10_000_000},
	{1, 1, 1},
	{1 << 52, 1, 1 << 52},
	{1, 1 << 52, 1},
	{13, 7, 5},
	{1_000_003, 999_983, 20},
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// worth is a level as a number of tokens.
func worth(r bucket.Rate, l bucket.Level) *big.Rat {
	return new(big.Rat).Add(rat(l.N), big.NewRat(l.F, r.Micros))
}

// ceil is the least whole number of at least x, or 0 for a negative one; Forever when it is too large.
func ceil(x *big.Rat) int64 {
	if x.Sign() <= 0 {
		return 0
	}
	q, rest := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	if !q.IsInt64() {
		return bucket.Forever
	}
	return q.Int64()
}

// someLevel is a level from -burst to burst; the ends, no remainder and the largest one come up often.
func someLevel(rnd *rand.Rand, r bucket.Rate, burst int64) bucket.Level {
	l := bucket.Level{N: rnd.Int64N(2*burst+1) - burst, F: rnd.Int64N(r.Micros)}
	switch rnd.IntN(6) {
	case 0:
		l.N = -burst
	case 1:
		l.N = burst - 1
	case 2:
		l.N = 0
	}
	switch rnd.IntN(4) {
	case 0:
		l.F = 0
	case 1:
		l.F = r.Micros - 1
	}
	if l.N == burst {
		l.F = 0
	}
	return l
}

// someTime is a duration around those in which the level changes; also 0, the largest and a negative one.
func someTime(rnd *rand.Rand, full int64) int64 {
	switch rnd.IntN(8) {
	case 0:
		return 0
	case 1:
		return math.MaxInt64
	case 2:
		return -rnd.Int64()
	case 3:
		return rnd.Int64()
	case 4:
		return max(0, full+rnd.Int64N(3)-1)
	case 5:
		return 1 + rnd.Int64N(3)
	}
	return rnd.Int64N(2*full + 2)
}

// checkAfter compares a level with the sum in rational numbers.
func checkAfter(t *testing.T, r bucket.Rate, burst int64, l bucket.Level, micros int64) {
	t.Helper()
	got := l.After(r, burst, micros)
	want := worth(r, l)
	if micros > 0 {
		want.Add(want, new(big.Rat).Mul(rat(micros), big.NewRat(r.Tokens, r.Micros)))
		if want.Cmp(rat(burst)) > 0 {
			want = rat(burst)
		}
	}
	if worth(r, got).Cmp(want) != 0 || got.F < 0 || got.F >= r.Micros {
		t.Fatalf("%+v.After(%+v, %d, %d) = %+v, want %v", l, r, burst, micros, got, want)
	}
}

// checkWait compares a wait with the sum in rational numbers, and with After.
func checkWait(t *testing.T, r bucket.Rate, burst int64, l bucket.Level, cost int64) {
	t.Helper()
	got := l.Wait(r, cost)
	missing := new(big.Rat).Sub(rat(cost), worth(r, l))
	if want := ceil(missing.Mul(missing, big.NewRat(r.Micros, r.Tokens))); got != want {
		t.Fatalf("%+v.Wait(%+v, %d) = %d, want %d", l, r, cost, got, want)
	}
	if got == 0 || got == bucket.Forever || cost > burst {
		return
	}
	if at := l.After(r, burst, got); at.N < cost {
		t.Fatalf("%+v waits %d for %d and has %+v", l, got, cost, at)
	}
	if early := l.After(r, burst, got-1); early.N >= cost {
		t.Fatalf("%+v waits %d for %d and has %+v a microsecond before", l, got, cost, early)
	}
}

func TestAgainstRationalNumbers(t *testing.T) {
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d per %dµs burst %d", c.tokens, c.micros, c.burst), func(t *testing.T) {
			r := bucket.NewRate(c.tokens, c.micros)
			if !r.Fits(c.burst) {
				t.Fatalf("%+v does not fit %d", r, c.burst)
			}
			rnd := rand.New(rand.NewPCG(1, uint64(c.burst)))
			for range 2000 {
				l := someLevel(rnd, r, c.burst)
				checkAfter(t, r, c.burst, l, someTime(rnd, r.Span(2*c.burst)))
				checkWait(t, r, c.burst, l, rnd.Int64N(c.burst+1))
			}
		})
	}
}

func TestSmallStepsLoseNothing(t *testing.T) {
	// A bucket that is asked again and again has as much as one that is asked once.
	for _, c := range cases {
		r := bucket.NewRate(c.tokens, c.micros)
		rnd := rand.New(rand.NewPCG(2, uint64(c.burst)))
		l, passed := bucket.Level{N: -c.burst}, int64(0)
		for range 1000 {
			d := rnd.Int64N(r.Span(c.burst)/700 + 2)
			l = l.After(r, c.burst, d)
			passed += d
		}
		if want := (bucket.Level{N: -c.burst}).After(r, c.burst, passed); l != want {
			t.Errorf("%+v: %+v after a thousand steps, want %+v", c, l, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for _, c := range cases {
		r := bucket.NewRate(c.tokens, c.micros)
		for _, n := range []int64{-1, 0, 1, 2, c.burst, math.MaxInt64} {
			want := ceil(new(big.Rat).Mul(rat(n), big.NewRat(c.micros, c.tokens)))
			if got := r.Span(n); got != want {
				t.Errorf("%+v.Span(%d) = %d, want %d", r, n, got, want)
			}
		}
	}
}

func TestLowestTerms(t *testing.T) {
	for _, tt := range []struct {
		tokens, micros int64
		want           bucket.Rate
	}{
		{100, second, bucket.Rate{Tokens: 1, Micros: 10_000}},
		{1_000_000_000, second, bucket.Rate{Tokens: 1000, Micros: 1}},
		{7, 5, bucket.Rate{Tokens: 7, Micros: 5}},
		{999_983, day, bucket.Rate{Tokens: 999_983, Micros: day}},
		{math.MaxInt64, math.MaxInt64, bucket.Rate{Tokens: 1, Micros: 1}},
	} {
		if got := bucket.NewRate(tt.tokens, tt.micros); got != tt.want {
			t.Errorf("NewRate(%d, %d) = %+v, want %+v", tt.tokens, tt.micros, got, tt.want)
		}
	}
}

func TestFits(t *testing.T) {
	const exact = 1 << 53
	for _, tt := range []struct {
		tokens, micros, burst int64
		want                  bool
	}{
		{1, day, 104_250, true}, // takes 745 s longer than 2^53 µs to fill
		{999_983, day, 999_983, true},
		{7, 3600 * second, 10_000_000, true},
		{7, 3600 * second, 17_934_334, true},
		{7, 3600 * second, 17_934_335, false},
		// One microsecond's addition: the remainder of at most Micros-1 and Tokens.
		{1, exact - 1, 1, false}, // no more than a unit is left for a step
		{1, exact, 1, false},
		{exact - 1, 1, exact - 1, true},
		{exact, 1, 1, false},
		{exact - 1, 2, 1, false},
		// The burst itself, and the time it takes to fill.
		{1, 1, exact - 1, true},
		{1, 1, exact, false},
		{1, 2, math.MaxInt64 / 2000, true},
		{1, 2, math.MaxInt64/2000 + 1, false},
		// 1,024 of the longest steps.
		{1025, 1 << 20, 1024 * (1<<33 - 1), true},
		{1025, 1 << 20, 1024*(1<<33-1) + 1, false},
		{second, second + 1, 1024 * (exact - second - 1) / (second + 1), true},
		{second, second + 1, 1024*(exact-second-1)/(second+1) + 1, false},
		{math.MaxInt64, math.MaxInt64 - 1, 1, false},
	} {
		r := bucket.NewRate(tt.tokens, tt.micros)
		if got := r.Fits(tt.burst); got != tt.want {
			t.Errorf("%+v.Fits(%d) = %v, want %v", r, tt.burst, got, tt.want)
		}
	}
}

func TestFitsIsMonotone(t *testing.T) {
	// What fits fits at every lower burst too, and the border is where the documented sums say.
	for _, c := range cases {
		r := bucket.NewRate(c.tokens, c.micros)
		lo, hi := int64(1), int64(math.MaxInt64)
		for lo+1 < hi {
			if mid := lo + (hi-lo)/2; r.Fits(mid) {
				lo = mid
			} else {
				hi = mid
			}
		}
		if !fits(r, lo) || fits(r, lo+1) {
			t.Errorf("%+v: the border is at %d; the sums say %v, %v there", r, lo, fits(r, lo), fits(r, lo+1))
		}
	}
}

// fits is Fits in large numbers.
func fits(r bucket.Rate, burst int64) bool {
	exact := big.NewInt(1 << 53)
	units := new(big.Int).Mul(big.NewInt(burst), big.NewInt(r.Micros))
	steps := new(big.Int).Mul(big.NewInt(1024), new(big.Int).Sub(exact, big.NewInt(r.Micros)))
	fill := ceil(new(big.Rat).SetFrac(units, big.NewInt(r.Tokens)))
	return big.NewInt(r.Tokens+r.Micros).Cmp(exact) <= 0 && big.NewInt(burst).Cmp(exact) < 0 &&
		units.Cmp(steps) <= 0 && fill <= math.MaxInt64/1000
}

func TestUnits(t *testing.T) {
	for _, c := range cases {
		r := bucket.NewRate(c.tokens, c.micros)
		rnd := rand.New(rand.NewPCG(3, uint64(c.burst)))
		for i := range 1000 {
			n := rnd.Int64N(c.burst + 1)
			if i < 2 {
				n = []int64{0, c.burst}[i]
			}
			micros, frac := r.Units(n)
			want := new(big.Rat).Mul(rat(n), big.NewRat(r.Micros, r.Tokens))
			if got := new(big.Rat).Add(rat(micros), big.NewRat(frac, r.Tokens)); got.Cmp(want) != 0 || frac < 0 || frac >= r.Tokens {
				t.Fatalf("%+v.Units(%d) = %d, %d; want %v", r, n, micros, frac, want)
			}
			if got := bucket.FromUnits(r, micros, frac); got != bucket.Full(n) {
				t.Fatalf("FromUnits(%+v, %d, %d) = %+v, want %d tokens", r, micros, frac, got, n)
			}
			micros, frac = rnd.Int64N(r.Span(c.burst)+1), rnd.Int64N(r.Tokens)
			level := new(big.Rat).Add(rat(micros), big.NewRat(frac, r.Tokens))
			level.Mul(level, big.NewRat(r.Tokens, r.Micros))
			got := bucket.FromUnits(r, micros, frac)
			// The rest of a microsecond is less than a unit of the level and is dropped.
			low := new(big.Rat).Sub(level, big.NewRat(1, r.Micros))
			if w := worth(r, got); w.Cmp(level) > 0 || w.Cmp(low) <= 0 {
				t.Fatalf("FromUnits(%+v, %d, %d) = %+v, want %v", r, micros, frac, got, level)
			}
		}
	}
}

func TestSaturation(t *testing.T) {
	for _, r := range []bucket.Rate{{Tokens: 3, Micros: 2}, {Tokens: 1 << 40, Micros: 3}} {
		if got := bucket.FromUnits(r, math.MaxInt64, 0); got.N != math.MaxInt64 {
			t.Errorf("%+v: %d tokens, want the most there are", r, got.N)
		}
	}
	for _, r := range []bucket.Rate{{Tokens: 2, Micros: 3}, {Tokens: 3, Micros: 1 << 40}} {
		if got, _ := r.Units(math.MaxInt64); got != bucket.Forever {
			t.Errorf("%+v: %d µs, want Forever", r, got)
		}
		if got := r.Span(math.MaxInt64); got != bucket.Forever {
			t.Errorf("%+v: %d µs, want Forever", r, got)
		}
	}
}

func TestClock(t *testing.T) {
	var c bucket.Clock
	for i, s := range []struct{ now, passed, clock int64 }{
		{100, 100, 100},
		{100, 0, 100},
		{250, 150, 250},
		{200, 0, 250}, // a late reader
		{300, 50, 300},
		{10 * second, 10*second - 300, 10 * second},
		{5 * second, 0, 10 * second},        // 5 s back is late
		{5*second - 1, 0, 5*second - 1},     // more is a clock that was set back
		{5 * second, 1, 5 * second},         // and time goes on from there
		{-3600 * second, 0, -3600 * second}, // before 1970 too
		{0, 3600 * second, 0},
	} {
		if got := c.Advance(s.now); got != s.passed || int64(c) != s.clock {
			t.Errorf("step %d, Advance(%d): %d passed, clock %d; want %d, %d", i+1, s.now, got, c, s.passed, s.clock)
		}
	}
}

func FuzzLevel(f *testing.F) {
	for _, c := range cases {
		f.Add(c.tokens, c.micros, c.burst, -c.burst, int64(0), int64(math.MaxInt64), c.burst)
		f.Add(c.tokens, c.micros, c.burst, c.burst-1, c.micros-1, int64(1), int64(1))
	}
	f.Fuzz(func(t *testing.T, tokens, micros, burst, n, frac, passed, cost int64) {
		if tokens < 1 || micros < 1 || burst < 1 {
			return
		}
		r := bucket.NewRate(tokens, micros)
		if !r.Fits(burst) || n < -burst || n >= burst || frac < 0 || frac >= r.Micros {
			return
		}
		l := bucket.Level{N: n, F: frac}
		checkAfter(t, r, burst, l, passed)
		if cost >= 0 && cost <= burst {
			checkWait(t, r, burst, l, cost)
		}
	})
}
