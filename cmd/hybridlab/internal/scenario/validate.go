package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// What a scenario may ask of the machine that it runs on.
const (
	MaxInstances = 64
	MaxDemand    = 200_000 // requests per second of all instances together
	MaxFor       = 10 * time.Minute
	MinFor       = 100 * time.Millisecond
	MaxDelay     = 250 * time.Millisecond
	MaxFill      = 24 * time.Hour // in which the burst must refill
	MaxFaults    = 64
	MaxName      = 100 // bytes
	MaxList      = 16  // scenarios in a comparison
)

// Error is what is wrong with a scenario.
type Error struct {
	Field string // as in JSON: "demand.cost", "faults[1].at"; empty if it is about the whole
	Text  string // what to change
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Text
	}
	return e.Field + ": " + e.Text
}

// Modes are all modes, in the order in which they are offered.
func Modes() []Mode {
	return []Mode{Leased, Exact, TokenBucket, GCRA, FixedWindow, SlidingLog, SlidingCounter}
}

// Patterns are all patterns, in the order in which they are offered.
func Patterns() []Pattern { return []Pattern{Steady, Bursty, Skewed, Roaming, Flood} }

// Policies are the values of OnFailure, the default first.
func Policies() []string { return []string{"local", "closed", "open"} }

// Windowed reports whether the mode counts in windows, which have no burst of their own.
func (m Mode) Windowed() bool { return m == FixedWindow || m == SlidingLog || m == SlidingCounter }

// Hybrid reports whether limiters of package hybrid decide, and not those of package remote: then the options of hybrid
// are in force, and in all but Exact those of leases too.
func (m Mode) Hybrid() bool { return m == Leased || m == Exact }

// PerSecond is how many requests all instances are asked for in a second, on average.
func (s Scenario) PerSecond() float64 {
	n := float64(s.Instances) * s.Demand.PerInstance
	if s.Demand.Pattern == Flood {
		n *= 10
	}
	return n
}

// Timeout is that of one call to Redis, in all modes: the default, or five times Delay if that is more. A call that has to
// connect first needs four round trips: two greetings of the client, the script by its name, and its text if Redis does
// not know it yet. With less, a Redis so far away would never be reached.
func (s Scenario) Timeout() time.Duration {
	return max(remote.DefaultTimeout, 5*time.Duration(s.Delay))
}

// Tokens is the cost of one request.
func (d Demand) Tokens() int { return max(1, d.Cost) }

// Validate returns nil, or an *Error about the first thing that has to be changed.
func (s Scenario) Validate() error {
	bad := func(field, format string, args ...any) error { return &Error{field, fmt.Sprintf(format, args...)} }
	tooLong := func(d Duration, most time.Duration) bool { return d < 0 || time.Duration(d) > most }
	d := s.Demand
	switch {
	case len(s.Name) > MaxName:
		return bad("name", "it has %d bytes, the most is %d", len(s.Name), MaxName)
	case strings.ContainsFunc(s.Name, unicode.IsControl): // it is printed to terminals
		return bad("name", "it has control characters, such as a line break; leave them out")
	case !slices.Contains(Modes(), s.Mode):
		return bad("mode", "%.40q is none of %s", s.Mode, list(Modes()))
	case s.checkLimit() != nil:
		return bad("limit", "%s", strings.TrimPrefix(s.checkLimit().Error(), limit.ErrInvalid.Error()+": "))
	case s.Instances < 1 || s.Instances > MaxInstances:
		return bad("instances", "%d must be 1 to %d", s.Instances, MaxInstances)
	case s.LeaseSize < 0 || s.LeaseSize > 1e9:
		return bad("leaseSize", "%d must be 1 to 1000000000, or 0 to let demand decide", s.LeaseSize)
	case tooLong(s.Refresh, time.Hour):
		return bad("refresh", "%v must be at most 1h, or 0 for the default", s.Refresh)
	case tooLong(s.LeaseTTL, time.Hour):
		return bad("leaseTTL", "%v must be at most 1h, or 0 for the default", s.LeaseTTL)
	case !(s.MaxLeased >= 0 && s.MaxLeased <= 1): // so that NaN is refused too
		return bad("maxLeased", "%v must be between 0 and 1; 0 is the default", s.MaxLeased)
	case !(s.Slack >= 0 && s.Slack <= 1):
		return bad("slack", "%v must be between 0 and 1", s.Slack)
	case s.OnFailure != "" && !slices.Contains(Policies(), s.OnFailure):
		return bad("onFailure", "%.40q is none of %s", s.OnFailure, list(Policies()))
	case tooLong(s.Delay, MaxDelay):
		return bad("delay", "%v must be 0s to %v", s.Delay, MaxDelay)
	case !slices.Contains(Patterns(), d.Pattern):
		return bad("demand.pattern", "%.40q is none of %s", d.Pattern, list(Patterns()))
	case !(d.PerInstance > 0):
		return bad("demand.perInstance", "%v must be more than 0", d.PerInstance)
	case s.PerSecond() > MaxDemand:
		return bad("demand.perInstance", "all instances together are asked %.6g times per second, the most is %d; lower it or take fewer instances", s.PerSecond(), MaxDemand)
	case d.Cost < 0 || d.Cost > s.Limit.Burst:
		return bad("demand.cost", "%d must be 1 to the burst, which is %d", d.Cost, s.Limit.Burst)
	case s.For < Duration(MinFor) || s.For > Duration(MaxFor):
		return bad("for", "%v must be %v to %v", s.For, MinFor, MaxFor)
	case len(s.Faults) > MaxFaults:
		return bad("faults", "there are %d, the most is %d", len(s.Faults), MaxFaults)
	}
	return s.checkFaults()
}

// checkLimit says what the mode cannot do with the limit.
func (s Scenario) checkLimit() error {
	l := s.Limit
	if err := l.Validate(); err != nil {
		return err
	}
	switch {
	case l == limit.Unlimited() || l == limit.Blocked():
		return fmt.Errorf("%v has no rate, so there is nothing to see; take for example \"1000/s burst 2000\"", l)
	case l.Period > MaxFill || l.ResetAfter(0) > MaxFill:
		return fmt.Errorf("it takes more than %v until the burst has refilled, which no run can show; raise the rate or lower the burst", MaxFill)
	case s.Mode.Windowed() && l.Burst != l.Rate:
		return fmt.Errorf("mode %s counts at most the rate in a window and has no burst of its own: take a burst of %d, the rate, or another mode", s.Mode, l.Rate)
	case s.Mode == SlidingLog && l.Rate > remote.MaxLog:
		return fmt.Errorf("mode %s keeps each token, at most %d of them: lower the rate or take another mode", s.Mode, remote.MaxLog)
	case s.Mode == SlidingCounter:
		return l.ValidateCounter()
	case s.Mode.Windowed():
		return l.ValidateWindow()
	}
	return nil
}

// checkFaults says which fault cannot happen, or not while another lasts.
func (s Scenario) checkFaults() error {
	for i, f := range s.Faults {
		bad := func(field, format string, args ...any) error {
			return &Error{fmt.Sprintf("faults[%d].%s", i, field), fmt.Sprintf(format, args...)}
		}
		switch {
		case f.Kind != Hang && f.Kind != Kill:
			return bad("kind", "%.40q is none of %s", f.Kind, list([]FaultKind{Hang, Kill}))
		case f.At < 0 || f.At >= s.For:
			return bad("at", "%v is not within the run, which lasts %v", f.At, s.For)
		case f.For <= 0 || f.For > Duration(MaxFor):
			return bad("for", "%v must be more than 0s and at most %v", f.For, MaxFor)
		case f.Kind == Kill && (f.Instance < 0 || f.Instance >= s.Instances):
			return bad("instance", "%d must be 0 to %d, for the first instance is 0", f.Instance, s.Instances-1)
		case f.Kind == Hang && f.Instance != 0:
			return bad("instance", "a hang concerns all instances; leave it out")
		}
		for j, g := range s.Faults[:i] {
			if f.Kind == g.Kind && f.Instance == g.Instance && f.At < g.At+g.For && g.At < f.At+f.For {
				return bad("at", "faults[%d] is the same and not over by then; let one begin after the other", j)
			}
		}
	}
	return nil
}

func list[S ~string](all []S) string {
	var names []string
	for _, s := range all {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}
