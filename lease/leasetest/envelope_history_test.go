package leasetest

import (
	"flag"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	histories = flag.Int("histories", 0, "how many random histories to run; 0 is a short form")
	seed      = flag.Uint64("seed", 1, "seed of the random histories")
	first     = flag.Uint64("first", 0, "number of the first history: with -histories 1 it replays one")
)

// count is how many histories to run: less under the race detector, which has nothing to find here.
func count(short int) int {
	switch {
	case *histories > 0:
		return *histories
	case underRace:
		return short / 20
	}
	return short
}

// playAll runs histories on two processors.
func playAll(n int, change func(*plan), b bug, judge func(n uint64, h *history)) {
	playUntil(n, change, b, func(n uint64, h *history) bool {
		judge(n, h)
		return true
	})
}

// playUntil is playAll that ends when judge has seen enough.
func playUntil(n int, change func(*plan), b bug, judge func(n uint64, h *history) (more bool)) {
	var next atomic.Uint64
	next.Store(*first)
	last := *first + uint64(n)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < last; i = next.Add(1) - 1 {
				h := play(*seed, i, change, b)
				mu.Lock()
				if !judge(i, h) {
					next.Store(last)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestHistories(t *testing.T) {
	n := count(20_000)
	worst, steps, admissions := map[int64]int64{}, 0, 0
	var moved tally
	var held int64
	playAll(n, nil, noBug, func(i uint64, h *history) {
		w := h.envelope.Worst(h.plan.lim)
		if h.err != nil {
			t.Errorf("-seed %d -first %d -histories 1: %v\n%+v", *seed, i, h.err, h.plan)
		}
		if w.Excess > h.plan.slack {
			t.Errorf("-seed %d -first %d -histories 1: %v\n%+v", *seed, i, w, h.plan)
		}
		if old, ok := worst[h.plan.slack]; !ok || w.Excess > old {
			worst[h.plan.slack] = w.Excess
		}
		m := h.bucket.moved
		moved.lent += m.lent
		moved.found += m.found
		moved.used += m.used
		moved.returned += m.returned
		moved.expired += m.expired
		held += h.bucket.state.Lent()
		steps += h.events
		admissions += h.envelope.Len()
	})
	t.Logf("%d histories, %d events, %d admissions: worst excess by slack %v", n, steps, admissions, worst)
	t.Logf("%d tokens were lent, %d more found lent: %d used + %d given back + %d expired + %d still out",
		moved.lent, moved.found, moved.used, moved.returned, moved.expired, held)
	if moved.lent+moved.found != moved.used+moved.returned+moved.expired+held {
		t.Error("tokens were made or lost")
	}
}

// Each rule that is broken here would be missed: the envelope finds out.
func TestMistakes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		bug     bug
		mistake mistake
		two     bool // with two limits
	}{
		{"settle before refill", settleBeforeRefill, 0, false},
		{"no fence", noFence, 0, false},
		{"want less than is held without giving it up", 0, keepWhatIsReturned, false},
		{"prolong the lease when asking, not when answered", 0, renewWithoutReply, false},
		{"one ID for a process and not for an entry", 0, reuseID, false},
		{"add back a take that failed", 0, addBackFailedTake, false},
		{"put back in memory what the bucket has heard of", 0, refundByPlainAdd, false},
		{"report more use than there was", 0, overReportUse, false},
		{"time to live from the caller's own lease", ownTTL, 0, false},

		{"end leases before the refill", endBeforeRefill, 0, false},
		{"time to live without what is still lent", lentNotRefilled, 0, false},
		{"time to live without the larger limit", largestForgotten, 0, true},
		{"refill by the limit of the request", refillByNewLimit, 0, true},
	} {
		change := func(p *plan) {
			p.mistake, p.clockBack = tt.mistake, false
			if tt.two {
				p.useTwo()
			}
		}
		// The short form ends with the first excess, the long one counts them all.
		const short = 20_000
		var tried, caught int
		var worst int64
		playUntil(max(short, *histories), change, tt.bug, func(i uint64, h *history) bool {
			over := h.envelope.Worst(h.larger()).Excess - h.plan.slack
			if tried++; over > 0 {
				caught++
			}
			worst = max(worst, over)
			return *histories > 0 || caught == 0
		})
		if caught == 0 {
			t.Errorf("%s: not noticed in %d histories", tt.name, tried)
		}
		t.Logf("%s: %d of %d histories go up to %d tokens beyond the bound", tt.name, caught, tried, worst)
	}
}

// What the bound does not cover has a bound of its own: see history.disturb.
func TestHistories_disturbed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*plan)
	}{
		{"reset", func(p *plan) { p.resets = true }},
		{"flush", func(p *plan) { p.flushes = true }},
		{"rollback", func(p *plan) { p.rollbacks = true }},
		{"clock forward", func(p *plan) { p.fwd = true }},
		{"all of it", func(p *plan) { p.resets, p.flushes, p.rollbacks, p.fwd, p.clockBack = true, true, true, true, true }},
	} {
		n, beyond, most := count(8_000), 0, 0.0
		playAll(n, tt.change, noBug, func(i uint64, h *history) {
			w := h.envelope.Worst(h.plan.lim)
			over, allowed := w.Excess-h.plan.slack, h.allowed
			if over > allowed {
				t.Errorf("%s: -seed %d -first %d -histories 1: %v, allowed is %d\n%+v", tt.name, *seed, i, w, allowed, h.plan)
			}
			if over > 0 {
				beyond++
				most = max(most, float64(over)/float64(allowed))
			}
		})
		t.Logf("%s: %d histories, %d of them above the undisturbed bound, at most by %.0f %% of what is allowed", tt.name, n, beyond, 100*most)
	}
}

// Two limits in use for one key at once admit what the larger of each, burst and rate, would.
func TestHistories_twoLimits(t *testing.T) {
	n, worst := count(8_000), int64(-1000)
	playAll(n, (*plan).useTwo, noBug, func(i uint64, h *history) {
		w := h.envelope.Worst(h.larger())
		if over := w.Excess - h.plan.slack; over > 0 {
			t.Errorf("-seed %d -first %d -histories 1: %v\n%+v", *seed, i, w, h.plan)
		}
		worst = max(worst, w.Excess-h.plan.slack)
	})
	t.Logf("%d histories: worst excess beyond slack %d", n, worst)
}

// After a limit was lowered, what was out by the old one may be used too.
func TestHistories_lowered(t *testing.T) {
	n, beyond, most := count(8_000), 0, 0.0
	playAll(n, func(p *plan) {
		p.lower, p.other = true, p.lim
		p.other.Burst = max(1, p.lim.Burst/4)
		p.other.Rate = max(1, p.lim.Rate/4)
	}, noBug, func(i uint64, h *history) {
		w := h.envelope.Worst(h.plan.lim)
		over := w.Excess - h.plan.slack
		if over > h.allowed {
			t.Errorf("-seed %d -first %d -histories 1: %v, allowed is %d\n%+v", *seed, i, w, h.allowed, h.plan)
		}
		if over > 0 {
			beyond++
			most = max(most, float64(over)/float64(h.allowed))
		}
	})
	t.Logf("%d histories, %d of them above the undisturbed bound, at most by %.0f %% of what was out", n, beyond, 100*most)
}
