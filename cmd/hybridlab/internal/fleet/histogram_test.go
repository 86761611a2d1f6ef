package fleet

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var h histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	var all []time.Duration
	for range 5000 {
		d := time.Duration(math.Exp(rng.Float64() * 25)) // 1 ns to 72 s
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.001, 0.1, 0.5, 0.99, 1} {
		want := float64(all[int(math.Ceil(q*5000))-1]) / 1000
		if got := h.quantile(q); math.Abs(got-want) > want/16+0.001 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	h.add(0)
	h.add(-time.Second)
	h.add(math.MaxInt64)
	if got := h.quantile(1); got < 1e15 {
		t.Errorf("the longest is %v", got)
	}
}
