package chart

import (
	"math"
	"strconv"
)

// axis places values between 0 and 1.
type axis struct {
	from, to float64
	ticks    []float64
	log      bool
}

// at returns the place of v, of which one out of range is at the edge.
func (a axis) at(v float64) float64 {
	from, to := a.from, a.to
	if a.log {
		v, from, to = math.Log10(v), math.Log10(from), math.Log10(to)
	}
	return min(max((v-from)/(to-from), 0), 1)
}

// linear returns an axis from 0 with about n round ticks. It ends at most, or at the next tick if whole is set.
func linear(most float64, n int, whole bool) axis {
	if most <= 0 {
		most = 1
	}
	step := roundStep(most / float64(n))
	a := axis{to: most}
	if whole {
		a.to = math.Ceil(most/step*(1-1e-9)) * step
	}
	for k := 0.0; k*step <= a.to*(1+1e-9); k++ {
		a.ticks = append(a.ticks, k*step)
	}
	return a
}

// roundStep returns the least of 1, 2 and 5 times a power of ten that is not below least.
func roundStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= least*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// decades returns an axis of whole powers of ten around least and most.
func decades(least, most float64) axis {
	low, high := math.Floor(math.Log10(least)+1e-9), math.Ceil(math.Log10(most)-1e-9)
	high = max(high, low+1)
	a := axis{from: math.Pow(10, low), to: math.Pow(10, high), log: true}
	for k := low; k <= high; k++ {
		a.ticks = append(a.ticks, math.Pow(10, k))
	}
	return a
}

// Number writes v with at most three significant digits and k, M or G: 1500 is "1.5k".
func Number(v float64) string {
	for _, u := range []struct {
		from, by float64
		sign     string
	}{{999.5e6, 1e9, "G"}, {999.5e3, 1e6, "M"}, {999.5, 1e3, "k"}} {
		if math.Abs(v) >= u.from {
			return digits(v/u.by) + u.sign
		}
	}
	return digits(v)
}

// Micros writes v microseconds in the unit that suits it: 1500 is "1.5 ms".
func Micros(v float64) string {
	switch {
	case v >= 999.5e3:
		return digits(v/1e6) + " s"
	case v >= 999.5:
		return digits(v/1e3) + " ms"
	case v >= 0.9995 || v == 0:
		return digits(v) + " µs"
	default:
		return digits(v*1e3) + " ns"
	}
}

// digits writes v with three significant digits, those at the end left out that are 0.
func digits(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	places := max(0, 2-int(math.Floor(math.Log10(math.Abs(v))+1e-9)))
	unit := math.Pow(10, float64(min(places, 9)))
	return strconv.FormatFloat(math.Round(v*unit)/unit, 'f', -1, 64)
}
