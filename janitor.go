package hybrid

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/lease"
)

// janitor looks after leases that nobody spends: it throws away those that have ended and gives back those that lie
// idle. Its goroutine runs only while there are any.
type janitor struct {
	limiter *Limiter
	wall    func() int64 // nanoseconds of the wall clock

	mu      sync.Mutex // guards the fields below
	live    map[*entry]*watch
	quit    chan struct{} // nil while nothing runs
	done    chan struct{} // closed when it has ended
	stopped bool
}

// watch is what the janitor saw of an entry when it last changed.
type watch struct {
	tokens int64
	since  int64
}

// Pace of the janitor: a pass over each thousand leases costs about a tenth of a millisecond.
const (
	sweepEvery   = 10 * time.Millisecond
	sweepPerPass = 1000
	// returnsPerPass is how many leases a pass gives back, so that a crowd of them does not hold up callers. The others
	// have their turn in the next passes.
	returnsPerPass = 200
)

// maxDrift is by how much the wall clock may run ahead of the monotonic one between two passes: as much as the bucket
// keeps a lease longer than its holder.
const maxDrift = int64(100 * time.Millisecond)

// watch puts an entry that has tokens under the janitor's eyes.
func (j *janitor) watch(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stopped {
		return
	}
	if j.live == nil {
		j.live = make(map[*entry]*watch)
	}
	if j.live[e] == nil {
		j.live[e] = &watch{tokens: -1}
	}
	if j.quit == nil {
		j.quit, j.done = make(chan struct{}), make(chan struct{})
		go j.run(j.quit, j.done)
	}
}

// stop ends the goroutine and waits for it; nothing is watched any more. It returns the entries that were.
func (j *janitor) stop() []*entry {
	j.mu.Lock()
	j.stopped = true
	live := slices.Collect(maps.Keys(j.live))
	quit, done := j.quit, j.done
	j.quit, j.live = nil, nil
	j.mu.Unlock()
	if quit != nil {
		close(quit)
		<-done
	}
	return live
}

// held is how many tokens all entries hold.
func (j *janitor) held(now int64) (tokens int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for e := range j.live {
		tokens += e.balance.Held(now)
	}
	return tokens
}

func (j *janitor) run(quit, done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(sweepEvery)
	defer timer.Stop()
	drift := j.wall() - j.limiter.now()
	for {
		select {
		case <-quit:
			return
		case <-timer.C:
		}
		last := drift
		if drift = j.wall() - j.limiter.now(); drift-last > maxDrift {
			j.resume()
		}
		left := j.sweep(quit)
		if left == 0 {
			return
		}
		timer.Reset(sweepEvery * time.Duration(1+left/sweepPerPass))
	}
}

// resume throws all leases away. The monotonic clock stood still while the world went on: the machine was suspended, and
// what looks like a lease has long ended. (If somebody has only set the wall clock, no more is lost than leases.)
func (j *janitor) resume() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for e := range j.live {
		e.forfeit()
	}
}

// sweep looks at all entries once. It returns how many are still live; if none, the goroutine has been signed off.
func (j *janitor) sweep(quit chan struct{}) int {
	now := j.limiter.now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.quit != quit {
		return 0
	}
	returns := 0
	for e, w := range j.live {
		tokens := e.balance.Held(now)
		if tokens == 0 {
			e.sweep(now)
			// Unless an answer has renewed the lease just now, and with it tokens that were there already.
			if e.balance.Tokens() == 0 && !e.owes(now) {
				delete(j.live, e)
				continue
			}
		}
		// Of a key that is forgotten at once, until nothing is left: a flight for it may be that of its successor.
		due := now-w.since >= int64(e.rated.Load().Idle()) || tokens > 0 && e.gone.Load()
		switch {
		case tokens != w.tokens:
			w.tokens, w.since = tokens, now
		case due && returns < returnsPerPass:
			w.since = now // and again after that time, if it should fail
			returns++
			if tokens > 0 {
				e.giveBack()
			} else {
				e.startReport()
			}
		}
	}
	if len(j.live) == 0 {
		j.quit = nil
	}
	return len(j.live)
}

// sweep ends the lease of an entry if its time is over.
func (e *entry) sweep(now int64) {
	e.mu.Lock()
	over := e.lease.Open() && now >= e.deadline && e.expireLocked() > 0
	e.mu.Unlock()
	if over {
		e.giveBack() // the bucket keeps their place for some time yet
	}
}

// giveBack starts a flight that returns the tokens of an entry.
func (e *entry) giveBack() {
	e.idle.Store(true)
	e.limiter.flights.Start(e.key, e.refill)
}

// startReport starts a flight that tells the bucket what was given up.
func (e *entry) startReport() {
	e.report.Store(true)
	e.limiter.flights.Start(e.key, e.refill)
}

// evicted is called by the table for an entry that it forgets. The bucket has counted its tokens as lent, so forgetting
// them never hands out more; they are given back all the same.
func (l *Limiter) evicted(_ string, e *entry) {
	e.gone.Store(true)
	if e.balance.Held(l.now()) > 0 {
		e.giveBack()
	}
}

// giveBackAll returns the tokens of all keys, and of entries that the table has forgotten. What flights that are out
// bring is void.
func (l *Limiter) giveBackAll(ctx context.Context, forgotten []*entry) error {
	var reqs []lease.Request
	for _, e := range slices.Concat(l.keys.Values(), forgotten) {
		if req, ok := e.surrender(); ok {
			reqs = append(reqs, req)
		}
	}
	var mu sync.Mutex // guards what follows
	var failed error
	lost := 0
	send := func(reqs []lease.Request) {
		l.counts.calls.Add(int64(len(reqs)))
		grants := l.source.once(ctx, reqs)
		mu.Lock()
		defer mu.Unlock()
		for _, g := range grants {
			if g.Err != nil {
				failed, lost = g.Err, lost+1
				l.counts.failed.Add(1)
			}
		}
	}
	chunks := slices.Collect(slices.Chunk(reqs, maxPipeline))
	var wg sync.WaitGroup
	for first := range min(maxPipelines, len(chunks)) {
		wg.Go(func() {
			for i := first; i < len(chunks); i += maxPipelines {
				send(chunks[i])
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return fmt.Errorf("hybrid: tokens of %d keys were not given back and will be missed until their leases end: %w", lost, failed)
	}
	return nil
}

// surrender empties the entry and makes the request that says so.
func (e *entry) surrender() (lease.Request, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.endLocked()  // an answer that is still under way is void
	e.refusal.Store(nil) // from now on the answer is ErrClosed
	switch now := e.limiter.now(); {
	case !e.lease.Open() || e.deadline != 0 && now >= e.deadline+int64(afterlife):
		return lease.Request{}, false
	case now >= e.deadline:
		e.expireLocked()
	}
	n := e.balance.Drain()
	e.lease.GiveUp(n)
	e.limiter.counts.returned.Add(n)
	terms := e.rated.Load()
	req := lease.Request{Key: e.key, Limit: terms.Limit, Slack: terms.Slack}
	e.lease.Ask(&req.Lease, 0, 0)
	req.Lease.MaxLeased, req.Lease.Dry, req.Lease.TTL = terms.MaxLeased, terms.Dry, terms.TTL
	return req, true
}
