package fleet

import (
	"errors"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
)

// Each decision is counted once, under what decided it.
func TestLedgerCounts(t *testing.T) {
	s := scenario.Default()
	l, err := newLedger(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.recording().Verdict; got.OfIdeal != 1 || got.Text != "100.0 % of ideal, 0 calls per decision, worst excess 0, p99 0 ns" {
		t.Errorf("of nothing: %+v", got)
	}
	decide := func(n int, allowed bool, o limit.Origin, err error) {
		for range n {
			l.decided(time.Now(), 3*time.Microsecond, 5, limit.Result{Verdict: limit.Verdict{Allowed: allowed, Origin: o}}, err)
		}
	}
	l.ask(18, 5)
	decide(1, true, limit.Local, nil)
	decide(2, true, limit.Remote, nil)
	decide(1, true, limit.Fallback, nil)
	decide(2, false, limit.Local, nil)
	decide(3, false, limit.Remote, nil)
	decide(4, false, limit.Fallback, nil)
	decide(3, false, 0, errors.New("failed"))
	l.turnedAway(2)
	l.cut(200*time.Millisecond, 9, []int64{1, 2}, "Redis hangs")
	l.ask(2, 5)
	decide(2, true, limit.Remote, nil)
	l.cut(400*time.Millisecond, 1, []int64{0, 0}, "")
	rec := l.recording()
	if len(rec.Samples) != 2 {
		t.Fatalf("%d samples", len(rec.Samples))
	}
	got := rec.Samples[0]
	got.P50, got.P99, got.Held = 0, 0, nil
	want := Sample{At: 0.2, Asked: 18, Admitted: 20, Ideal: 90, Calls: 9, DeniedLocal: 2, DeniedRemote: 3, DeniedFallback: 4, Failed: 5, Fault: "Redis hangs"}
	if !same(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	v := rec.Verdict
	if v.Asked != 20 || v.Admitted != 30 || v.OfIdeal != 0.3 || v.CallsEach != 0.5 || v.CallsRate != 25 || v.Excess != 0 {
		t.Errorf("%+v", v)
	}
	if want := "30.0 % of ideal, 0.50 calls per decision, worst excess 0, p99 2.9 µs"; v.Text != want {
		t.Errorf("%q, want %q", v.Text, want)
	}
	rec.Samples[0].Asked = 0
	if l.recording().Samples[0].Asked != 18 {
		t.Error("a recording is not a copy")
	}
}

func same(a, b Sample) bool {
	a.Held, b.Held = nil, nil
	return a.At == b.At && a.Asked == b.Asked && a.Admitted == b.Admitted && a.Ideal == b.Ideal && a.Calls == b.Calls && a.DeniedLocal == b.DeniedLocal &&
		a.DeniedRemote == b.DeniedRemote && a.DeniedFallback == b.DeniedFallback && a.Failed == b.Failed && a.Excess == b.Excess && a.Fault == b.Fault
}

func TestFigures(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.0042: "0.0042", 0.00042: "0.00042", 0.97: "0.97", 1.26: "1.3", 9.96: "10.0", 12.6: "13", 1e-9: "0.000000"} {
		if got := figures(x); got != want {
			t.Errorf("figures(%v) = %q, want %q", x, got, want)
		}
	}
	for us, want := range map[float64]string{0.3: "300 ns", 3: "3.0 µs", 250: "250 µs", 1500: "1.5 ms", 2e6: "2.0 s"} {
		if got := micros(us); got != want {
			t.Errorf("micros(%v) = %q, want %q", us, got, want)
		}
	}
}
