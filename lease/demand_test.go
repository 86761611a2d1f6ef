package lease_test

import (
	"math"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
)

func TestDemand(t *testing.T) {
	const tau = 100 * ms
	type note struct {
		at               time.Duration
		admitted, denied int64
		want             float64 // per second, after it
	}
	for _, tt := range []struct {
		name  string
		notes []note
	}{
		{"rises by a half", []note{{0, 0, 0, 0}, {50 * ms, 50, 0, 500}, {100 * ms, 50, 0, 750}, {150 * ms, 50, 0, 875}}},
		{"falls by a quarter", []note{{0, 0, 0, 0}, {50 * ms, 100, 0, 1000}, {100 * ms, 0, 0, 750}, {150 * ms, 0, 0, 562.5}}},
		{"gathers until half of tau has passed", []note{
			{0, 10, 0, 0}, {20 * ms, 10, 0, 0}, {49 * ms, 10, 0, 0}, {50 * ms, 20, 0, 500},
		}},
		{"a long silence is many samples", []note{{0, 0, 0, 0}, {50 * ms, 100, 0, 1000}, {250 * ms, 0, 0, 1000 * math.Pow(0.75, 4)}}},
		{"denials count up to the admissions and two", []note{
			{0, 0, 0, 0}, {50 * ms, 50, 20, 700}, {100 * ms, 50, 52, (700 + 2040) / 2.0}, {150 * ms, 50, 10_000, (1370 + 2040) / 2.0},
		}},
		{"a flood is no demand", []note{{0, 0, 0, 0}, {50 * ms, 0, 1_000_000, 20}}},
	} {
		var d lease.Demand
		for i, n := range tt.notes {
			d.Add(int64(sec+n.at), tau, n.admitted, n.denied)
			if got := d.PerSecond(); math.Abs(got-n.want) > 1e-6 {
				t.Errorf("%s, note %d: %v per second, want %v", tt.name, i, got, n.want)
			}
			if got, want := d.InTau(), int64(math.Ceil(n.want/10)); got != want {
				t.Errorf("%s, note %d: %d in tau, want %d", tt.name, i, got, want)
			}
		}
	}
	var zero lease.Demand
	if zero.PerSecond() != 0 || zero.InTau() != 0 {
		t.Error("the zero Demand needs something")
	}
}

func TestRTT(t *testing.T) {
	var r lease.RTT
	if r.High() != 0 {
		t.Errorf("%v before the first", r.High())
	}
	for i, step := range []struct{ d, want time.Duration }{
		{8 * ms, 8*ms + 4*4*ms},                    // half of it as deviation
		{8 * ms, 8*ms + 4*3*ms},                    // which shrinks by a quarter
		{16 * ms, 9*ms + 4*(3*ms+(8-3)*ms/4)},      // mean up by an eighth
		{ms, 8*ms + 4*(4250*us+(8000-4250)*us/4)},  // and down
		{8 * ms, 8*ms + 4*(5187500-5187500/4)*1},   // in ns
		{8 * ms, 8*ms + 4*(3890625-(3890625+2)/4)}, // rounded
	} {
		r.Add(step.d)
		if got := r.High(); (got - step.want).Abs() > 10*us {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}
