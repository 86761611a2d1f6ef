package hybrid

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/lease"
)

// janitor looks after accounts: it throws away leases that have ended, gives back those that lie idle, and drops the
// accounts in which nothing is left. It also keeps the clock. Its goroutine runs only while there are accounts, or
// somebody goes by the clock, and slowly when nobody does and there is no token in any account.
type janitor struct {
	limiter *Limiter
	wall    func() int64 // nanoseconds of the wall clock

	mu      sync.Mutex    // guards the fields below
	live    []*entry      // entries with an account
	next    int           // of them, to be looked at
	quit    chan struct{} // nil while nothing runs
	done    chan struct{} // closed when it has ended
	stopped bool

	ticker *time.Ticker
	slow   bool // at slowPace
	quiet  int  // rounds in a row in which there was nothing to do
}

// watch is what the janitor saw of an account when it last changed.
type watch struct {
	tokens int64
	since  int64
}

// Pace of the janitor: looking at a thousand accounts takes about a tenth of a millisecond.
const (
	sweepEvery = 10 * time.Millisecond
	// sweepAtOnce is how many accounts a round looks at, or as many as make maxRounds for all.
	sweepAtOnce = 1000
	maxRounds   = 64
	// returnsAtOnce is how many leases a round gives back, so that a crowd of them does not hold up callers. The others
	// have their turn in the next rounds.
	returnsAtOnce = 200

	// slowPace is for accounts that only remember something, after so many quiet rounds.
	slowPace    = time.Second
	quietRounds = 100
)

// maxDrift is by how much the wall clock may run ahead of the monotonic one between two rounds: as much as the bucket
// keeps a lease longer than its holder.
const maxDrift = int64(100 * time.Millisecond)

// watch puts an entry with a new account under the janitor's eyes.
func (j *janitor) watch(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stopped {
		return
	}
	j.live = append(j.live, e)
	j.startLocked()
}

// wake makes the clock run.
func (j *janitor) wake() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.stopped {
		j.startLocked()
	}
}

// startLocked makes the goroutine run, and run fast.
func (j *janitor) startLocked() {
	j.quiet = 0
	if j.quit != nil && !j.slow {
		return
	}
	c := &j.limiter.clock
	c.latest.Store(c.Now())
	if j.slow {
		j.slow = false
		j.ticker.Reset(sweepEvery)
		return
	}
	j.quit, j.done = make(chan struct{}), make(chan struct{})
	j.ticker = time.NewTicker(sweepEvery)
	go j.run(j.ticker, j.quit, j.done)
}

// stop ends the goroutine and waits for it; nothing is watched any more. It returns the entries that were.
func (j *janitor) stop() []*entry {
	j.mu.Lock()
	j.stopped = true
	live, quit, done := j.live, j.quit, j.done
	j.quit, j.live, j.slow = nil, nil, false
	j.limiter.clock.latest.Store(stopped)
	j.mu.Unlock()
	if quit != nil {
		close(quit)
		<-done
	}
	return live
}

// wakeAll tells all who wait for tokens that the limiter is closed.
func (j *janitor) wakeAll() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.live {
		e.mu.Lock()
		if a := e.account.Load(); a != nil {
			e.wakeLocked(a)
		}
		e.mu.Unlock()
	}
}

// held is how many tokens all entries hold.
func (j *janitor) held(now int64) (tokens int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.live {
		if a := e.account.Load(); a != nil {
			tokens += a.balance.Held(now)
		}
	}
	return tokens
}

func (j *janitor) run(ticker *time.Ticker, quit, done chan struct{}) {
	defer close(done)
	defer ticker.Stop()
	clock := &j.limiter.clock
	drift := j.wall() - clock.Now()
	for {
		select {
		case <-quit:
			return
		case <-ticker.C:
		}
		last := drift
		if drift = j.wall() - clock.Now(); drift-last > maxDrift {
			j.resume()
		}
		if !j.sweep(quit) {
			return
		}
	}
}

// resume throws all leases away. The monotonic clock stood still while the world went on: the machine was suspended, and
// what looks like a lease has long ended. (If somebody has only set the wall clock, no more is lost than leases.)
func (j *janitor) resume() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.live {
		e.forfeit()
	}
}

// sweep sets the clock and looks at some of the accounts. If there are none, and nobody goes by the clock, it signs the
// goroutine off and returns false.
func (j *janitor) sweep(quit chan struct{}) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.quit != quit {
		return false
	}
	clock := &j.limiter.clock
	asked := clock.asked.Swap(false)
	if len(j.live) == 0 && !asked {
		j.quit, j.slow = nil, false
		clock.latest.Store(stopped)
		return false
	}
	now := clock.Now()
	if !j.slow {
		clock.latest.Store(now)
	}
	if j.quiet++; asked {
		j.quiet = 0
	}
	returns := 0
	for range min(len(j.live), max(sweepAtOnce, len(j.live)/maxRounds)) {
		if j.next >= len(j.live) {
			j.next = 0
		}
		e := j.live[j.next]
		a, over := e.sweep(now)
		if a == nil {
			last := len(j.live) - 1
			j.live[j.next], j.live[last] = j.live[last], nil
			j.live = j.live[:last]
			continue
		}
		j.next++
		if a.balance.Tokens() > 0 || over {
			j.quiet = 0
		}
		if returns < returnsAtOnce && e.tidy(a, over, now) {
			returns++
		}
	}
	if !j.slow && j.quiet > max(quietRounds, 2*maxRounds) {
		// Before there are tokens again, or somebody goes by the clock, wake is called.
		j.slow = true
		clock.latest.Store(stopped)
		j.ticker.Reset(slowPace)
	}
	return true
}

// sweep ends the lease of an entry if its time is over, and says whether something was left of it. It drops the account
// if there is nothing in it, else it returns it.
func (e *entry) sweep(now int64) (a *account, over bool) {
	a = e.account.Load()
	if a.balance.Held(now) > 0 {
		return a, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if a.lease.Open() && now >= a.deadline {
		n := a.giveUpLocked()
		e.limiter.expired(n)
		over = n > 0
	}
	if !a.emptyLocked(e.terms.Load().rated.TTL, e.gone.Load(), now) {
		return a, over
	}
	e.account.Store(nil)
	if r := e.refusal.Load(); r != nil && now >= r.Until() {
		e.refusal.CompareAndSwap(r, nil)
	}
	return nil, false
}

// tidy starts a flight that gives back what lies idle, or says what was given up, if it is time for that.
func (e *entry) tidy(a *account, over bool, now int64) bool {
	tokens, w := a.balance.Held(now), &a.watched
	switch {
	case over: // the bucket keeps the place of what was left for some time yet
	case tokens > 0 && e.gone.Load():
		// Again until nothing is left: a flight for the key may be that of its successor.
	case tokens != w.tokens:
		w.tokens, w.since = tokens, now
		return false
	case now-w.since < int64(e.terms.Load().rated.Idle()):
		return false
	case tokens == 0:
		e.mu.Lock()
		owes := a.owesLocked(now)
		e.mu.Unlock()
		if !owes {
			return false
		}
		w.since = now // and again after that time, if it should fail
		e.startReport()
		return true
	}
	w.since = now
	e.giveBack()
	return true
}

// giveBackAll returns the tokens of all keys, and of entries that the table has forgotten. What flights that are out
// bring is void.
func (l *Limiter) giveBackAll(ctx context.Context, forgotten []*entry) error {
	reqs := make(map[*lane][]lease.Request)
	for _, e := range slices.AppendSeq(forgotten, l.keys.All()) {
		if req, ok := e.surrender(); ok {
			w := l.lane(e.key)
			reqs[w] = append(reqs[w], req)
		}
	}
	var mu sync.Mutex // guards what follows
	var failed error
	lost := 0
	send := func(w *lane, reqs []lease.Request) {
		l.counts.calls.Add(int64(len(reqs)))
		grants := w.once(ctx, reqs)
		mu.Lock()
		defer mu.Unlock()
		for _, g := range grants {
			if g.Err != nil {
				failed, lost = g.Err, lost+1
				l.counts.failed.Add(1)
			}
		}
	}
	var wg sync.WaitGroup
	for w, reqs := range reqs {
		chunks := slices.Collect(slices.Chunk(reqs, maxPipeline))
		for first := range min(maxPipelines, len(chunks)) {
			wg.Go(func() {
				for i := first; i < len(chunks); i += maxPipelines {
					send(w, chunks[i])
				}
			})
		}
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
	e.refusal.Store(nil) // from now on the answer is ErrClosed
	a := e.account.Load()
	if a == nil {
		return lease.Request{}, false
	}
	l, now := e.limiter, e.limiter.clock.Now()
	defer func() { l.expired(a.endLocked()) }() // an answer that is still under way is void
	terms := e.terms.Load().rated
	req := lease.Request{Key: e.key, Limit: terms.Limit, Slack: terms.Slack, Credit: a.credit}
	if a.share != nil {
		req.Credit -= a.share.spent(now)
	}
	a.credit, a.share = 0, nil
	if !a.lease.Open() || a.deadline != 0 && now >= a.deadline+int64(afterlife) {
		return req, req.Credit != 0
	}
	if now >= a.deadline {
		l.expired(a.giveUpLocked())
	}
	l.returned(a.giveUpLocked())
	a.lease.Ask(&req.Lease, 0, 0)
	terms.fill(&req.Lease)
	return req, true
}
