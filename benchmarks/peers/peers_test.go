package main

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
	"github.com/hybridlimit/hybrid/limit"
)

func everyPeer() []Peer {
	return slices.Concat(redisPeers(), ourRedisPeers(), memoryPeers(), ourMemoryPeers())
}

// TestPeers holds each adapter to the limit it was given: 20 calls at once on 5 per second.
func TestPeers(t *testing.T) {
	lim := limit.PerSecond(5)
	for _, p := range everyPeer() {
		t.Run(p.Name, func(t *testing.T) {
			s, err := p.open(testBackend(t), lim)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.closer)
			key := fmt.Sprintf("%s:%d", t.Name(), time.Now().UnixNano())
			start := time.Now()
			admitted := 0
			for range 20 {
				ok, err := s.allow(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				if ok {
					admitted++
				}
			}
			seconds := time.Since(start).Seconds()
			most := lim.Burst + int(math.Ceil(float64(lim.Rate)*seconds))
			if p.Windows {
				most = lim.Rate * (2 + int(seconds)) // the first window may have been about to end
			}
			if admitted < 1 || admitted > most {
				t.Errorf("admitted %d of 20 calls in %.3f s at %v, want 1 to %d", admitted, seconds, lim, most)
			}
			if trips := s.trips.Load(); p.Redis != (trips > 0) {
				t.Errorf("%d round trips were counted", trips)
			}
		})
	}
}

// TestErrors: a limiter that cannot reach Redis says so, when it is made or when it is asked, and does not admit.
func TestErrors(t *testing.T) {
	for _, p := range everyPeer() {
		if !p.Redis {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			opt := measure.Options("127.0.0.1:1", new(atomic.Int64))
			opt.MaxRetries, opt.DialerRetries = -1, 1
			rdb := redis.NewClient(opt)
			defer rdb.Close()
			allow, closer, err := p.New(rdb, limit.PerSecond(5))
			if err != nil {
				return
			}
			defer closer()
			if ok, err := allow(t.Context(), "key"); err == nil || ok {
				t.Errorf("without Redis: %t, %v, want an error", ok, err)
			}
		})
	}
}

// TestSpeedLimit: the limit of the speed runs is one that the limiter can compute: nothing is denied under it.
func TestSpeedLimit(t *testing.T) {
	for _, p := range everyPeer() {
		t.Run(p.Name, func(t *testing.T) {
			s, err := p.open(testBackend(t), p.speed())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.closer)
			for i := range 300 {
				if ok, err := s.allow(t.Context(), "speed"); err != nil || !ok {
					t.Fatalf("call %d at %v: %t, %v", i, p.speed(), ok, err)
				}
			}
		})
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("median of nothing = %v, want 0", got)
	}
	for us := 1; us <= 1000; us++ {
		h.add(time.Duration(us) * time.Microsecond)
	}
	for _, q := range []float64{0.01, 0.5, 0.99} {
		want := q * 1000 * float64(time.Microsecond)
		got := float64(h.quantile(q))
		if math.Abs(got-want) > 0.04*want+float64(time.Microsecond) {
			t.Errorf("quantile %v = %v ns, want about %v", q, got, want)
		}
	}
	for _, d := range []time.Duration{0, 1, 15, 16, 31, 32, 33, math.MaxInt64} {
		var h histogram
		h.add(d)
		if got := h.quantile(0.5); math.Abs(float64(got-d)) > 0.035*float64(d) {
			t.Errorf("quantile of %d alone = %d", d, got)
		}
	}
}
