package hybrid

import (
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// The vocabulary of package limit under this package's name, so that most programs need one import.
type (
	// Limit is a rate and a burst: Rate tokens are added every Period, at most Burst are kept. See limit.Limit.
	Limit = limit.Limit
	// Result is what was decided about a request: Allowed, Origin, Remaining, RetryAfter, ResetAfter. See limit.Result.
	Result = limit.Result
	// Verdict is the decision in a Result: Allowed and Origin. See limit.Verdict.
	Verdict = limit.Verdict
	// Origin is where a request was decided: Remote, Local or Fallback. See limit.Origin.
	Origin = limit.Origin
)

// Where a request was decided; see limit.Origin.
const (
	Remote   = limit.Remote
	Local    = limit.Local
	Fallback = limit.Fallback
)

// Never is the RetryAfter of a request that no waiting will admit.
const Never = limit.Never

// The errors, to be tested with errors.Is; see package limit.
var (
	ErrInvalid             = limit.ErrInvalid
	ErrExceedsBurst        = limit.ErrExceedsBurst
	ErrInvalidTokens       = limit.ErrInvalidTokens
	ErrInvalidKey          = limit.ErrInvalidKey
	ErrClosed              = limit.ErrClosed
	ErrWouldExceedDeadline = limit.ErrWouldExceedDeadline
	ErrUnavailable         = limit.ErrUnavailable
)

// PerSecond is n per second with a burst of n.
func PerSecond(n int) Limit { return limit.PerSecond(n) }

// PerMinute is n per minute with a burst of n.
func PerMinute(n int) Limit { return limit.PerMinute(n) }

// PerHour is n per hour with a burst of n.
func PerHour(n int) Limit { return limit.PerHour(n) }

// PerDay is n per 24 hours with a burst of n.
func PerDay(n int) Limit { return limit.PerDay(n) }

// Every is one token per d with a burst of 1.
func Every(d time.Duration) Limit { return limit.Every(d) }

// Parse reads the text form of a limit, such as "100/s" or "5/10m burst 20".
func Parse(s string) (Limit, error) { return limit.Parse(s) }

// Unlimited admits everything and never asks Redis.
func Unlimited() Limit { return limit.Unlimited() }

// Blocked admits nothing and never asks Redis.
func Blocked() Limit { return limit.Blocked() }
