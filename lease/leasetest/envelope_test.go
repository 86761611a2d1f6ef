package leasetest_test

import (
	"math/big"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

func TestEnvelope(t *testing.T) {
	lim := limit.Limit{Rate: 10, Period: time.Second, Burst: 5} // a token each 100 ms
	type record struct{ at, tokens int64 }
	for _, tt := range []struct {
		name    string
		records []record
		want    leasetest.Window
	}{
		{"nothing", nil, leasetest.Window{Excess: -5}},
		{"one", []record{{7, 1}}, leasetest.Window{From: 7, To: 7, Admitted: 1, Excess: -4}},
		{"the burst", []record{{0, 5}}, leasetest.Window{Admitted: 5}},
		{"one too many", []record{{0, 5}, {0, 1}}, leasetest.Window{Admitted: 6, Excess: 1}},
		{"a microsecond early", []record{{0, 5}, {99_999, 1}}, leasetest.Window{To: 99_999, Admitted: 6, Excess: 1}},
		{"in time", []record{{0, 5}, {100_000, 1}}, leasetest.Window{Admitted: 5}},
		{"two bursts", []record{{0, 5}, {500_000, 5}}, leasetest.Window{Admitted: 5}},
		{"two bursts, early", []record{{0, 5}, {400_000, 5}}, leasetest.Window{To: 400_000, Admitted: 10, Excess: 1}},
		{"in no order", []record{{400_000, 5}, {0, 5}}, leasetest.Window{To: 400_000, Admitted: 10, Excess: 1}},
		{"a window in the middle", []record{{0, 1}, {1e6, 4}, {1.1e6, 4}, {9e6, 5}},
			leasetest.Window{From: 1e6, To: 1.1e6, Admitted: 8, Excess: 2}},
		{"given back", []record{{0, 5}, {10, -5}, {20, 5}}, leasetest.Window{Admitted: 5}},
		{"given back too late", []record{{0, 5}, {20, 5}, {30, -5}}, leasetest.Window{To: 20, Admitted: 10, Excess: 5}},
		{"put back", []record{{0, 5}, {20, 5}, {0, -5}}, leasetest.Window{Admitted: 5}},
		{"given back what another window took", []record{{0, -5}, {20, 6}}, leasetest.Window{From: 20, To: 20, Admitted: 6, Excess: 1}},
	} {
		var e leasetest.Envelope
		var sum int64
		for _, r := range tt.records {
			e.Add(r.at, r.tokens)
			sum += r.tokens
		}
		got := e.Worst(lim)
		if got.Excess != tt.want.Excess || got.Excess > 0 && got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if e.Admitted() != sum || e.Len() != len(tt.records) {
			t.Errorf("%s: %d tokens in %d records, want %d in %d", tt.name, e.Admitted(), e.Len(), sum, len(tt.records))
		}
	}
}

// All windows, one by one, in rational numbers.
func TestEnvelope_naive(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		lim := limit.Limit{Rate: 1 + rng.IntN(20), Period: time.Duration(1+rng.IntN(300)) * time.Microsecond, Burst: 1 + rng.IntN(9)}
		var e leasetest.Envelope
		type record struct{ at, tokens int64 }
		var records []record
		at := int64(0)
		for range rng.IntN(12) {
			at += rng.Int64N(100)
			r := record{at, rng.Int64N(12) - 3}
			records = append(records, r)
			e.Add(r.at, r.tokens)
		}
		worst := new(big.Rat) // of the empty window
		for i := range records {
			sum := int64(0)
			for _, r := range records[i:] {
				sum += r.tokens
				w := big.NewRat(int64(lim.Rate)*(r.at-records[i].at), lim.Period.Microseconds())
				w.Sub(big.NewRat(sum, 1), w)
				if w.Cmp(worst) > 0 {
					worst = w
				}
			}
		}
		// Rounded up.
		want := new(big.Int).Div(new(big.Int).Sub(new(big.Int).Add(worst.Num(), worst.Denom()), big.NewInt(1)), worst.Denom())
		if got := e.Worst(lim); got.Excess != want.Int64()-int64(lim.Burst) {
			t.Fatalf("%v, %v: %+v, want an excess of %v", lim, records, got, want.Int64()-int64(lim.Burst))
		}
	}
}

func TestEnvelope_concurrent(t *testing.T) {
	var all, other leasetest.Envelope
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range int64(100) {
				all.Add(i, 1)
				other.Add(i, 1)
			}
		})
	}
	wg.Wait()
	all.Merge(&other)
	if got := all.Admitted(); got != 800 {
		t.Errorf("%d tokens, want 800", got)
	}
}
