// Package limit is the vocabulary of rate limiting that every limiter of this module speaks: a [Limit] says what is
// allowed, a [Result] what was decided, a [Limiter] decides. It needs nothing but the standard library and does nothing
// itself, so code that only passes limits and results around need not depend on Redis.
package limit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
)

// Never is the RetryAfter of a request that no waiting will admit.
const Never time.Duration = math.MaxInt64

// Limit is a rate and a burst: Rate tokens are added every Period, and at most Burst are kept. In every window of
// length W a token bucket admits at most Burst + Rate*W/Period tokens.
//
// The zero Limit is invalid, so that a forgotten setting is an error and not an open door. Limits compare with ==.
type Limit struct {
	// Rate is the number of tokens added every Period.
	Rate int
	// Period is in whole microseconds, at least one; window limiters need whole milliseconds.
	Period time.Duration
	// Burst is the capacity of the bucket, the most that can be admitted at one instant. Window limiters, which
	// count at most Rate per Period, require it to be Rate.
	Burst int
}

// PerSecond is n per second with a burst of n.
func PerSecond(n int) Limit { return Limit{n, time.Second, n} }

// PerMinute is n per minute with a burst of n.
func PerMinute(n int) Limit { return Limit{n, time.Minute, n} }

// PerHour is n per hour with a burst of n.
func PerHour(n int) Limit { return Limit{n, time.Hour, n} }

// PerDay is n per 24 hours with a burst of n.
func PerDay(n int) Limit { return Limit{n, 24 * time.Hour, n} }

// Every is one token per d with a burst of 1: requests at least d apart.
func Every(d time.Duration) Limit { return Limit{1, d, 1} }

// Unlimited admits everything and never asks Redis.
func Unlimited() Limit { return Limit{0, 2, 0} }

// Blocked admits nothing and never asks Redis.
func Blocked() Limit { return Limit{0, 1, 0} }

// WithBurst returns l with a burst of n.
func (l Limit) WithBurst(n int) Limit {
	l.Burst = n
	return l
}

// Validate returns nil, or an error that wraps [ErrInvalid] and says what to change.
//
// Too large is what the buckets cannot compute exactly: with the rate in lowest terms as r tokens every p
// microseconds, r + p must be at most 2^53, Burst*p at most 1,024 * (2^53 - p), and the burst must refill within 292
// years.
func (l Limit) Validate() error {
	switch {
	case l == Unlimited() || l == Blocked():
		return nil
	case l == Limit{}:
		return fmt.Errorf("%w: it is the zero Limit; use Unlimited() or Blocked() if that is meant", ErrInvalid)
	case l.Rate < 1:
		return fmt.Errorf("%w: Rate %d must be at least 1 (for less than one per Period make the Period longer; to block use Blocked())", ErrInvalid, l.Rate)
	case l.Period < time.Microsecond:
		return fmt.Errorf("%w: Period %v must be at least 1µs", ErrInvalid, l.Period)
	case l.Period%time.Microsecond != 0:
		return fmt.Errorf("%w: Period %v must be whole microseconds", ErrInvalid, l.Period)
	case l.Burst < 1:
		return fmt.Errorf("%w: Burst %d must be at least 1", ErrInvalid, l.Burst)
	case !l.rate().Fits(int64(l.Burst)):
		return fmt.Errorf("%w: Burst %d is too large to be computed exactly at %d per %v: lower it, or use a rounder Rate and Period", ErrInvalid, l.Burst, l.Rate, l.Period)
	}
	return nil
}

// ValidateWindow is Validate for limiters that count in windows: they also need a Period of whole milliseconds and
// Burst == Rate.
func (l Limit) ValidateWindow() error {
	if err := l.Validate(); err != nil || l.Rate == 0 {
		return err
	}
	switch {
	case l.Period%time.Millisecond != 0:
		return fmt.Errorf("%w: Period %v must be whole milliseconds for a window", ErrInvalid, l.Period)
	case l.Burst != l.Rate:
		return fmt.Errorf("%w: Burst %d must equal Rate %d for a window", ErrInvalid, l.Burst, l.Rate)
	}
	return nil
}

// ValidateCounter is ValidateWindow for the sliding counter, which multiplies counts by times: Rate*Period in units of
// CounterUnit must be at most 2^53, up to which the doubles of Redis are exact.
func (l Limit) ValidateCounter() error {
	if err := l.ValidateWindow(); err != nil || l.Rate == 0 {
		return err
	}
	if int64(l.Rate) > (1<<53)/int64(l.Period/l.CounterUnit()) {
		return fmt.Errorf("%w: Rate %d is too large to be weighted exactly over a Period of %v: lower it or shorten the Period", ErrInvalid, l.Rate, l.Period)
	}
	return nil
}

// CounterUnit is the unit in which a sliding counter measures its position in the window: a millisecond if Period is a
// second or more, else a microsecond.
func (l Limit) CounterUnit() time.Duration {
	if l.Period >= time.Second {
		return time.Millisecond
	}
	return time.Microsecond
}

// rate is the rate in lowest terms; l must have a positive Rate and Period.
func (l Limit) rate() bucket.Rate { return bucket.NewRate(int64(l.Rate), l.Period.Microseconds()) }

// ResetAfter is how long it takes, with no traffic, until a bucket that holds remaining tokens is full again. For
// Unlimited and Blocked it is 0.
func (l Limit) ResetAfter(remaining int) time.Duration {
	if l.Rate < 1 || l.Period < time.Microsecond || remaining >= l.Burst {
		return 0
	}
	return Micros(l.rate().Span(int64(l.Burst) - int64(remaining)))
}

// Micros turns microseconds into a Duration that saturates at [Never].
func Micros(us int64) time.Duration {
	if us > math.MaxInt64/1000 {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}

// units are the period units of the text form, longest first.
var units = []struct {
	name string
	d    time.Duration
}{
	{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond},
}

// Parse reads the text form of a limit: "100/s", "5/10m burst 20", "unlimited" or "blocked". The units are d, h, m,
// s, ms and us; Burst is Rate unless given. It is the inverse of String. An error wraps [ErrInvalid].
func Parse(s string) (Limit, error) {
	switch s {
	case "unlimited":
		return Unlimited(), nil
	case "blocked":
		return Blocked(), nil
	}
	bad := func(what string) (Limit, error) {
		return Limit{}, fmt.Errorf("%w: %s in %.40q (want for example \"100/s\", \"5/10m burst 20\", \"unlimited\" or \"blocked\")", ErrInvalid, what, s)
	}
	head, burst, hasBurst := strings.Cut(s, " burst ")
	count, per, ok := strings.Cut(head, "/")
	if !ok {
		return bad("no \"/\"")
	}
	rate, ok := number(count, strconv.IntSize)
	if !ok {
		return bad("no whole number before \"/\"")
	}
	digits := len(per) - len(strings.TrimLeft(per, "0123456789"))
	times := int64(1)
	if digits > 0 {
		if times, ok = number(per[:digits], 64); !ok {
			return bad("no whole number after \"/\"")
		}
	}
	var unit time.Duration
	for _, u := range units {
		if per[digits:] == u.name {
			unit = u.d
		}
	}
	if unit == 0 {
		return bad("no unit of time")
	}
	if times > math.MaxInt64/int64(unit) {
		return bad("too long a period")
	}
	l := Limit{int(rate), time.Duration(times) * unit, int(rate)}
	if hasBurst {
		n, ok := number(burst, strconv.IntSize)
		if !ok {
			return bad("no whole number after \"burst\"")
		}
		l.Burst = int(n)
	}
	if err := l.Validate(); err != nil {
		return Limit{}, err
	}
	return l, nil
}

// number reads digits only: no sign, no space, nothing that strconv would let pass besides.
func number(s string, bits int) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, bits)
	return n, err == nil && strings.Trim(s, "0123456789") == ""
}

// String returns the shortest text that Parse reads as the same limit. The text of an invalid limit says that it is.
func (l Limit) String() string {
	switch {
	case l == Unlimited():
		return "unlimited"
	case l == Blocked():
		return "blocked"
	case l.Validate() != nil:
		return fmt.Sprintf("invalid limit (rate %d, period %v, burst %d)", l.Rate, l.Period, l.Burst)
	}
	b := strconv.AppendInt(nil, int64(l.Rate), 10)
	b = append(b, '/')
	for _, u := range units {
		if l.Period%u.d == 0 {
			if times := int64(l.Period / u.d); times > 1 {
				b = strconv.AppendInt(b, times, 10)
			}
			b = append(b, u.name...)
			break
		}
	}
	if l.Burst != l.Rate {
		b = strconv.AppendInt(append(b, " burst "...), int64(l.Burst), 10)
	}
	return string(b)
}

// MarshalText is String, and an error that wraps [ErrInvalid] for a limit that Parse would refuse.
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText is Parse; on an error l is unchanged.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}
