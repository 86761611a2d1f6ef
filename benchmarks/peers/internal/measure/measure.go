// Package measure is what the commands of this module share: the Redis of a run, connections that count, and how
// figures are summed up and written.
package measure

import (
	"fmt"
	"slices"
	"time"
)

// Median sorts xs and returns its middle, 0 if there is none.
func Median(xs []float64) float64 {
	slices.Sort(xs)
	n := len(xs)
	if n == 0 {
		return 0
	}
	return (xs[(n-1)/2] + xs[n/2]) / 2
}

// Figure shows two or three digits that mean something.
func Figure(x float64) string {
	switch {
	case x >= 99.5:
		return Thousands(x)
	case x >= 9.95:
		return fmt.Sprintf("%.0f", x)
	case x >= 0.995:
		return fmt.Sprintf("%.1f", x)
	case x >= 0.001:
		return fmt.Sprintf("%.2g", x)
	case x > 0:
		return fmt.Sprintf("%.0e", x)
	}
	return "0"
}

// Thousands groups digits: 1 234 567.
func Thousands(x float64) string {
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// Duration shows nanoseconds in the unit that suits them.
func Duration(ns float64) string {
	d := time.Duration(ns)
	switch {
	case d == 0:
		return "-"
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d)
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", ns/1e3)
	}
	return fmt.Sprintf("%.3g ms", ns/1e6)
}
