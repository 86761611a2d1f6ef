package scenario

import (
	"fmt"
	"go/format"
	"strconv"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// Code is Go source that makes the limiter of one instance: a statement that declares lim and err and needs a Redis client
// rdb and the imports of the packages that it names. Options that have their default are left out; those of leases are
// there only in the mode that leases. An invalid scenario gives code that does not compile or gets an error.
func (s Scenario) Code() string {
	var b strings.Builder
	if s.Mode.Hybrid() {
		fmt.Fprintf(&b, "lim, err := hybrid.New(rdb, %s, hybrid.Options{%s})", limitCode("hybrid", s.Limit), s.optionsCode())
	} else {
		fmt.Fprintf(&b, "lim, err := remote.New%s(rdb, %s, remote.Options{%s})", constructors[s.Mode], limitCode("limit", s.Limit), s.optionsCode())
	}
	src, err := format.Source([]byte(b.String()))
	if err != nil {
		return b.String()
	}
	return string(src) + "\n"
}

var constructors = map[Mode]string{
	TokenBucket: "TokenBucket", GCRA: "GCRA", FixedWindow: "FixedWindow", SlidingLog: "SlidingLog", SlidingCounter: "SlidingCounter",
}

// optionsCode is the fields of hybrid.Options or remote.Options that are set, a line each, or nothing.
func (s Scenario) optionsCode() string {
	var b strings.Builder
	field := func(set bool, name, value string) {
		if set {
			fmt.Fprintf(&b, "\n%s: %s,", name, value)
		}
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	leases := s.Mode == Leased
	field(s.Mode == Exact, "Exact", "true")
	field(leases && s.LeaseSize > 0, "LeaseSize", strconv.Itoa(s.LeaseSize))
	field(leases && s.LeaseTTL > 0, "LeaseTTL", durationCode(time.Duration(s.LeaseTTL)))
	field(leases && s.MaxLeased > 0, "MaxLeased", number(s.MaxLeased))
	field(leases && s.Slack > 0, "Slack", number(s.Slack))
	field(leases && s.Refresh > 0, "Refresh", durationCode(time.Duration(s.Refresh)))
	field(s.Timeout() != remote.DefaultTimeout, "Timeout", durationCode(s.Timeout()))
	field(s.Mode.Hybrid() && s.OnFailure == "closed", "OnFailure", "hybrid.FailClosed")
	field(s.Mode.Hybrid() && s.OnFailure == "open", "OnFailure", "hybrid.FailOpen")
	field(s.Mode.Hybrid() && (s.OnFailure == "" || s.OnFailure == "local") && s.Instances > 1, "Instances", strconv.Itoa(s.Instances))
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

// limitCode is an expression for l with the functions of the package pkg, hybrid or limit.
func limitCode(pkg string, l limit.Limit) string {
	var name string
	switch l.Period {
	case time.Second:
		name = "PerSecond"
	case time.Minute:
		name = "PerMinute"
	case time.Hour:
		name = "PerHour"
	case 24 * time.Hour:
		name = "PerDay"
	default:
		return fmt.Sprintf("%s.Limit{Rate: %d, Period: %s, Burst: %d}", pkg, l.Rate, durationCode(l.Period), l.Burst)
	}
	code := fmt.Sprintf("%s.%s(%d)", pkg, name, l.Rate)
	if l.Burst != l.Rate {
		code += fmt.Sprintf(".WithBurst(%d)", l.Burst)
	}
	return code
}

// durationCode is an expression in the largest unit of which d is a whole multiple.
func durationCode(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "time.Hour"}, {time.Minute, "time.Minute"}, {time.Second, "time.Second"}, {time.Millisecond, "time.Millisecond"}, {time.Microsecond, "time.Microsecond"}} {
		switch {
		case d == u.unit:
			return u.name
		case d%u.unit == 0:
			return fmt.Sprintf("%d * %s", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d * time.Nanosecond", d.Nanoseconds())
}
