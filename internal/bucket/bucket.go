// Package bucket is the arithmetic of a token bucket, exact and pure: no lock, no clock, no rounding.
//
// A rate of r tokens per p microseconds, in lowest terms, makes every quantity an integer: a level is n whole
// tokens and a remainder f in units of 1/p token, 0 <= f < p. A microsecond adds r units. Nothing is ever rounded
// away, so a bucket that is asked a million times a second for a token a day still hands one out each day, and not
// a microsecond early. The Lua scripts of package remote do the same sums in the same units.
package bucket

import (
	"math"
	"math/bits"
)

// Forever is the answer to "how long?" when no time is long enough.
const Forever = math.MaxInt64

// exact is the largest integer up to which every integer is a float64, the only number Lua has.
const exact = 1 << 53

// maxSteps bounds how many additions a refill from empty to full may take in a Lua script (see Rate.Fits).
const maxSteps = 1024

// maxSpan is the longest time that a time.Duration can hold, in microseconds.
const maxSpan = math.MaxInt64 / 1000

// Rate is Tokens per Micros microseconds. Values made by NewRate are in lowest terms.
type Rate struct {
	Tokens int64
	Micros int64
}

// NewRate reduces tokens per micros to lowest terms. Both must be positive.
func NewRate(tokens, micros int64) Rate {
	g := gcd(tokens, micros)
	return Rate{tokens / g, micros / g}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Fits reports whether a bucket of this rate and burst can be computed exactly in doubles: one microsecond's
// addition must stay below 2^53, and a refill from empty to full must not take more than 1,024 of the longest
// steps that do. It must also be over within the 292 years that a time.Duration can tell.
func (r Rate) Fits(burst int64) bool {
	if r.Tokens > exact-r.Micros || burst >= exact {
		return false
	}
	hi, lo := bits.Mul64(uint64(burst), uint64(r.Micros))
	limHi, limLo := bits.Mul64(maxSteps, uint64(exact-r.Micros))
	if hi > limHi || hi == limHi && lo > limLo {
		return false
	}
	return r.Span(burst) <= maxSpan
}

// Span is the time in which the rate brings n tokens to a bucket without remainder, in microseconds, rounded up.
func (r Rate) Span(n int64) int64 { return r.until(n, 0, 0) }

// until is the least dt with level (n, f) + dt*rate >= target tokens, in microseconds; Forever when it overflows.
func (r Rate) until(target, n, f int64) int64 {
	if target <= n {
		return 0
	}
	hi, lo := bits.Mul64(uint64(target)-uint64(n), uint64(r.Micros))
	lo, borrow := bits.Sub64(lo, uint64(f), 0)
	hi -= borrow
	lo, carry := bits.Add64(lo, uint64(r.Tokens-1), 0)
	hi += carry
	if hi >= uint64(r.Tokens) {
		return Forever
	}
	q, _ := bits.Div64(hi, lo, uint64(r.Tokens))
	if q > math.MaxInt64 {
		return Forever
	}
	return int64(q)
}

// Level is what a bucket holds: N whole tokens and F units of 1/Micros token, 0 <= F < Micros. N may be negative:
// a debt.
type Level struct {
	N int64
	F int64
}

// Full is the level of a full bucket. What would be above the burst is lost, so its remainder is 0.
func Full(burst int64) Level { return Level{N: burst} }

// After is the level micros microseconds later, at most burst. A level that is above the burst already stays there.
func (l Level) After(r Rate, burst, micros int64) Level {
	if micros <= 0 {
		return l
	}
	if l.N >= burst || micros >= r.until(burst, l.N, l.F) {
		return Full(max(burst, l.N))
	}
	// Below the burst the sum is less than burst*p, which Fits keeps under 2^63 (times two for a debt).
	hi, lo := bits.Mul64(uint64(micros), uint64(r.Tokens))
	lo, carry := bits.Add64(lo, uint64(l.F), 0)
	q, f := bits.Div64(hi+carry, lo, uint64(r.Micros))
	return Level{l.N + int64(q), int64(f)}
}

// Wait is how many microseconds it takes until cost tokens are there: 0 if they are, and never a microsecond more
// than needed.
func (l Level) Wait(r Rate, cost int64) int64 { return r.until(cost, l.N, l.F) }

// FromUnits is the level of micros microseconds and frac/Tokens of a microsecond of refill: the form in which a GCRA
// knows what is left, turned into the form of a bucket.
func FromUnits(r Rate, micros, frac int64) Level {
	hi, lo := bits.Mul64(uint64(micros), uint64(r.Tokens))
	lo, carry := bits.Add64(lo, uint64(frac), 0)
	hi += carry
	if hi >= uint64(r.Micros) {
		return Level{N: math.MaxInt64}
	}
	q, f := bits.Div64(hi, lo, uint64(r.Micros))
	if q > math.MaxInt64 {
		return Level{N: math.MaxInt64}
	}
	return Level{int64(q), int64(f)}
}

// Units is the inverse of FromUnits for whole tokens: n tokens as microseconds and a remainder in units of
// 1/Tokens microsecond.
func (r Rate) Units(n int64) (micros, frac int64) {
	hi, lo := bits.Mul64(uint64(n), uint64(r.Micros))
	if hi >= uint64(r.Tokens) {
		return Forever, 0
	}
	q, f := bits.Div64(hi, lo, uint64(r.Tokens))
	if q > math.MaxInt64 {
		return Forever, 0
	}
	return int64(q), int64(f)
}

// maxStepBack is how far a clock may seem to run backwards before it counts as set back. Below it, a late reading
// (another goroutine, a small correction) just adds nothing; above it, time goes on from the new reading, so that a
// clock set back by hours does not stop the bucket for hours. Neither mints a token.
const maxStepBack = 5_000_000

// Clock is the last time a bucket has seen, in microseconds. It never runs backwards but for a step, see maxStepBack.
type Clock int64

// Advance moves the clock to now and returns the microseconds that have passed, never negative.
//
// The rule has two sides. A late reader must not rewind the clock, or the same interval is paid twice: A reads 0,
// B reads 100 and refills, A refills with 0 and stores it, the next B is paid for 100 again. And a clock that was set
// back must not freeze the bucket.
func (c *Clock) Advance(now int64) int64 {
	last := int64(*c)
	switch {
	case now >= last:
		*c = Clock(now)
		return now - last
	case last-now > maxStepBack:
		*c = Clock(now)
		return 0
	default:
		return 0
	}
}
