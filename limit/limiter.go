package limit

import (
	"context"
	"math"
	"time"
)

// Origin is where a request was decided. The zero Origin is that of the zero Result, which decides nothing.
type Origin uint8

// The origins.
const (
	// Remote: Redis decided this request.
	Remote Origin = iota + 1
	// Local: decided from the memory of this process, by tokens that Redis had granted or by a denial it had given.
	Local
	// Fallback: decided by the failure policy, because Redis did not answer.
	Fallback
)

// String returns "remote", "local", "fallback" or "none".
func (o Origin) String() string {
	switch o {
	case Remote:
		return "remote"
	case Local:
		return "local"
	case Fallback:
		return "fallback"
	}
	return "none"
}

// Verdict is the decision itself.
type Verdict struct {
	Allowed bool
	Origin  Origin
}

// Result is what a limiter decided about one request. Together with an error it is the zero Result: then nothing was
// decided.
//
// It is 32 bytes in four fields so that it travels in registers: with five flat fields the whole call of a local
// decision took twice as long (BenchmarkResult keeps watch).
type Result struct {
	Verdict
	// Remaining is how many tokens were left after this request: at most Burst, never negative. With leases it is
	// the tokens of this process plus the level of the bucket at the last reply: an estimate.
	Remaining int
	// RetryAfter is 0 if Allowed. Otherwise the same request can succeed after this long, if nobody else takes the
	// tokens; Never if it cannot.
	RetryAfter time.Duration
	// ResetAfter is how long it takes with no traffic until everything is available again. Window limiters always
	// set it, the others on denials; where it is 0, Limit.ResetAfter(Remaining) gives it.
	ResetAfter time.Duration
}

// Limiter decides whether requests may happen.
type Limiter interface {
	// Allow is shorthand for AllowN(ctx, key, 1).
	Allow(ctx context.Context, key string) (Result, error)
	// AllowN decides a request that costs n tokens: all of them or none. It never waits for tokens. A denial is a
	// Result, not an error; an error means that nothing was decided. n = 0 looks without taking anything and is
	// never denied.
	AllowN(ctx context.Context, key string, n int) (Result, error)
}

// Describer tells the limit of a key. Every limiter of this module is one; adapters need it for headers.
type Describer interface {
	LimitOf(key string) Limit
}

// Admit returns nil if a request of n tokens for key could be admitted by this limit at some time. Otherwise the
// error wraps [ErrInvalidKey], [ErrInvalidTokens] or [ErrExceedsBurst]. Limiters ask it before they charge anything.
func (l Limit) Admit(key string, n int) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	return l.CheckTokens(n)
}

// CheckTokens is the part of Admit that concerns the cost.
func (l Limit) CheckTokens(n int) error {
	switch {
	case n < 0:
		return errNegative
	case n > l.Burst && l.Rate != 0:
		return errTooMany
	}
	return nil
}

// Constant reports whether the limit decides a request of n tokens alone, without counting, and how: Unlimited always
// allows, Blocked allows only n = 0.
func (l Limit) Constant(n int, origin Origin) (Result, bool) {
	switch l {
	case Unlimited():
		return Result{Verdict: Verdict{true, origin}, Remaining: math.MaxInt}, true
	case Blocked():
		if n == 0 {
			return Result{Verdict: Verdict{true, origin}}, true
		}
		return Result{Verdict: Verdict{false, origin}, RetryAfter: Never}, true
	}
	return Result{}, false
}
