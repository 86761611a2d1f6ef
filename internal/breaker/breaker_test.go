package breaker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/internal/breaker"
)

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

func TestOpensAfterFiveInARow(t *testing.T) {
	var b breaker.Breaker
	for i := range 4 {
		if b.Failed(0, 1, 0) {
			t.Fatalf("opened by failure %d", i+1)
		}
	}
	b.Succeeded(0, 1)
	for i := range 4 {
		if b.Failed(sec, 1, 0) {
			t.Fatalf("opened by failure %d after a success", i+1)
		}
	}
	if !b.Failed(sec, 1, 0) || !b.Open() || b.Since() != sec {
		t.Error("not opened by the fifth in a row")
	}
	var all breaker.Breaker
	if !all.Failed(0, 64, 0) {
		t.Error("not opened by a call that carried many decisions")
	}
}

func TestOpensWhenHalfFails(t *testing.T) {
	for _, tt := range []struct {
		pattern string // g: answered, f: failed
		times   int
		open    bool
	}{
		{"gf", 10, true},
		{"gf", 9, false},
		{"ggf", 100, false},
		{"fffg", 6, true},
		{"fffg", 5, false},
	} {
		var b breaker.Breaker
		for i, c := range strings.Repeat(tt.pattern, tt.times) {
			if now := int64(i) * 20 * ms; c == 'g' {
				b.Succeeded(now, 1)
			} else {
				b.Failed(now, 1, 0)
			}
		}
		if b.Open() != tt.open {
			t.Errorf("%q, %d times: open %v, want %v", tt.pattern, tt.times, b.Open(), tt.open)
		}
	}
	// What is older than ten seconds does not count.
	var b breaker.Breaker
	for i := range int64(9) {
		b.Failed(i*ms, 1, 0)
		b.Succeeded(i*ms, 1)
	}
	for i := range int64(30) {
		b.Succeeded(11*sec+i*ms, 1)
	}
	for i := range int64(3) {
		if b.Failed(20*sec+i*ms, 1, 0) {
			t.Error("opened by failures of long ago")
		}
	}
}

func TestProbes(t *testing.T) {
	var b breaker.Breaker
	b.Failed(0, 5, 1)
	now := int64(0)
	for _, pause := range []int64{50, 100, 200, 400, 800, 1000, 1000} {
		if b.Next() != now+pause*ms {
			t.Errorf("next probe after %v, want %v", time.Duration(b.Next()-now), time.Duration(pause*ms))
		}
		if b.Probe(now + pause*ms - 1) {
			t.Error("probed too early")
		}
		now += pause * ms
		if !b.Probe(now) || b.Probe(now) {
			t.Error("want one probe at a time")
		}
		b.Succeeded(now, 1) // an answer that was under way
		if !b.Open() {
			t.Error("closed by an answer that was under way")
		}
		if b.Probed(now, false, 1) {
			t.Error("closed by a probe that failed")
		}
	}
	b.Failed(now, 1, 0)
	if b.Next() != now+sec {
		t.Error("a failure while it is open moves the next probe")
	}
	now += sec
	if !b.Probe(now) || !b.Probed(now, true, 0) || b.Open() {
		t.Error("not closed by a probe that went well")
	}

	// A probe that is never heard of again does not keep others away for ever.
	var lost breaker.Breaker
	lost.Failed(0, 5, 1)
	if !lost.Probe(sec) || lost.Probe(10*sec) || !lost.Probe(11*sec) {
		t.Error("want another probe ten seconds after one that was lost")
	}

	// On trial: one failure is enough, and the pauses are as long as they were.
	if !b.Failed(now, 1, 1) || b.Next() != now+sec || b.Since() != 0 {
		t.Errorf("a failure after the probe: open %v, next after %v, since %v", b.Open(), time.Duration(b.Next()-now), b.Since())
	}
	now += sec
	b.Probe(now)
	b.Probed(now, true, 0)
	b.Succeeded(now, 1)
	for range 4 {
		if b.Failed(now, 1, 1) {
			t.Fatal("a success does not end the trial")
		}
	}
	if !b.Failed(now, 1, 0) || b.Next() != now+25*ms || b.Since() != now {
		t.Errorf("a new outage: next probe after %v, want half of the first pause", time.Duration(b.Next()-now))
	}
}
