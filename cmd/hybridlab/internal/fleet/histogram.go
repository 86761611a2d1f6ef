package fleet

import (
	"math"
	"math/bits"
	"time"
)

// perOctave is how many buckets there are between a duration and twice that: a quantile is off by at most 1/16.
const perOctave = 8

// histogram counts durations in buckets whose width grows with them. The zero value is empty.
type histogram struct {
	counts [64 * perOctave]int64
	total  int64
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.total++
}

// bucketOf is the place of the highest bit of the nanoseconds, and the three bits below it.
func bucketOf(d time.Duration) int {
	ns := uint64(max(d, 1))
	if ns < perOctave {
		return int(ns)
	}
	top := bits.Len64(ns) - 1
	return (top-2)*perOctave + int(ns>>(top-3))&(perOctave-1)
}

// middle is the middle of a bucket, in nanoseconds.
func middle(bucket int) float64 {
	if bucket < perOctave {
		return float64(bucket)
	}
	octave, part := bucket/perOctave, bucket%perOctave
	return math.Ldexp(float64(perOctave+part)+0.5, octave-1)
}

// quantile is the duration that a share q of all does not exceed, in microseconds; 0 if there are none.
func (h *histogram) quantile(q float64) float64 {
	if h.total == 0 {
		return 0
	}
	rank := max(1, int64(math.Ceil(q*float64(h.total))))
	for i, n := range h.counts {
		if rank -= n; rank <= 0 {
			return math.Round(middle(i)) / 1000
		}
	}
	return 0
}
