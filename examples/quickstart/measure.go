package main

import (
	"context"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// key is the one that all workers ask for.
const key = "customer-42"

// tally is what came of a load.
type tally struct {
	decided, admitted, failed int
	err                       error         // of the first call that failed
	elapsed                   time.Duration // from before the first call to after the last
	latency                   histogram
	calls                     int64       // to Redis
	terms                     lease.Terms // of the leases, if there are any
}

// warm asks each limiter once, for another key.
func warm(ctx context.Context, limiters []limit.Limiter) error {
	for _, l := range limiters {
		if _, err := l.Allow(ctx, key+"-warm"); err != nil {
			return err
		}
	}
	return nil
}

// load lets one worker for each limiter of the list ask as fast as it can, until length has passed or ctx ends.
func load(ctx context.Context, limiters []limit.Limiter, length time.Duration) tally {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var stop atomic.Bool // cheaper to look at than ctx
	context.AfterFunc(ctx, func() { stop.Store(true) })

	tallies := make([]tally, len(limiters))
	var wg sync.WaitGroup
	start := time.Now()
	for i, l := range limiters {
		wg.Go(func() { tallies[i] = ask(l, &stop) })
	}
	wg.Wait()
	sum := tally{elapsed: time.Since(start)}
	for i := range tallies {
		t := &tallies[i]
		sum.decided += t.decided
		sum.admitted += t.admitted
		sum.failed += t.failed
		if sum.err == nil {
			sum.err = t.err
		}
		sum.latency.merge(&t.latency)
	}
	return sum
}

// timed is of how many calls one is timed: looking at the clock takes longer than deciding from memory does. It is
// prime, so that it keeps no step with leases.
const timed = 7

// ask is one worker. Its calls do not carry the context of the run: each ends by itself, and is counted.
func ask(l limit.Limiter, stop *atomic.Bool) tally {
	var t tally
	for i := 0; !stop.Load(); i++ {
		var start time.Time
		if i%timed == 0 {
			start = time.Now()
		}
		r, err := l.Allow(context.Background(), key)
		if i%timed == 0 {
			t.latency.add(time.Since(start))
		}
		switch {
		case err != nil:
			t.failed++
			if t.err == nil {
				t.err = err
			}
			time.Sleep(time.Millisecond) // Redis is gone: no use in asking a million times
		case r.Allowed:
			t.decided++
			t.admitted++
		default:
			t.decided++
			// Whoever waits for Redis should not also have to wait for the processor.
			runtime.Gosched()
		}
	}
	return t
}

// histogram counts durations in steps of a sixteenth of a power of two, so that a quantile is right within 3 %.
type histogram struct {
	n      int
	counts [64 * 16]int
}

func (h *histogram) add(d time.Duration) {
	ns := uint64(max(d, 0))
	shift := max(0, bits.Len64(ns)-5)
	h.counts[shift*16+int(ns>>shift)]++
	h.n++
}

func (h *histogram) merge(o *histogram) {
	h.n += o.n
	for i, c := range o.counts {
		h.counts[i] += c
	}
}

// quantile is the duration that the share q of all is not longer than; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int(q * float64(h.n))
	for i, c := range h.counts {
		if rank -= c; rank < 0 {
			shift := max(0, i/16-1)
			return time.Duration((uint64(i-shift*16)<<shift + 1<<shift/2))
		}
	}
	return 0
}
