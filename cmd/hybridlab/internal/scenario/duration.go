package scenario

import (
	"fmt"
	"time"
)

// String is the text of a time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText is String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration does; on an error d is unchanged.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%.40q is no duration (want for example \"150ms\", \"2s\" or \"1m30s\")", text)
	}
	*d = Duration(v)
	return nil
}
