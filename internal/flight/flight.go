// Package flight gathers the callers of one key into batches and sends one batch at a time: while a call for the key
// is in flight, everybody who arrives waits together for the next one.
//
// Each caller is paid from its own batch. That is the difference to sharing the result of a call: ten callers who
// share the reply "10 tokens" would spend a hundred, and if they had to take them from a common balance, later
// arrivals would take them first, and callers would be denied though the bucket is not empty.
package flight

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// Send decides the runs of one batch: one Paid for each. Its context ends when the callers of the batch give up or have
// their answer.
type Send func(ctx context.Context, key string, costs []lease.Run) ([]lease.Paid, error)

// Group joins callers by key. Make it with New.
type Group struct {
	timeout time.Duration
	late    error // of a call that takes longer
	flights singleflight.Group

	mu   sync.Mutex
	open map[string][]*batch // batches not yet sent, oldest first; a key without one is absent
}

// New returns a Group whose calls take at most timeout each. A caller waits at most that long for its batch to be sent,
// counted from the first caller of the batch, and once more for the answer. When a call times out, those who wait for the
// next one fail with it.
//
// Each call has the whole timeout, whatever its callers have waited before. If it had only what is left to them, a
// round trip longer than half of the timeout would make every other call fail, and its callers with it: they come when
// the call before is sent, and so have waited a round trip when theirs is.
func New(timeout time.Duration) *Group {
	late := fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, timeout)
	return &Group{timeout: timeout, late: late, open: make(map[string][]*batch)}
}

// batch is what one call carries. It is also the context of that call, which ends when nobody waits for it any more: a
// context made for the purpose would have a second timer that ends at the same time.
type batch struct {
	send  Send         // by which it goes; that of the flight that comes to send it may be another
	costs []lease.Run  // guarded by Group.mu until the batch is cut
	one   [1]lease.Run // where costs begins: most batches have one run

	sent     bool        // guarded by Group.mu
	timer    *time.Timer // when its callers give up
	deadline time.Time   // the same, set when the batch is cut
	late     error       // what they are told then

	once sync.Once
	done chan struct{} // closed when paid and err are set, which then never change
	paid []lease.Paid
	err  error
}

func (b *batch) Deadline() (time.Time, bool) { return b.deadline, true }
func (b *batch) Done() <-chan struct{}       { return b.done }
func (b *batch) Value(any) any               { return nil }

func (b *batch) Err() error {
	switch {
	case !b.settled():
		return nil
	case b.err == b.late:
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// settle pays the callers or tells them why not; only the first call counts.
func (b *batch) settle(paid []lease.Paid, err error) {
	b.once.Do(func() {
		b.paid, b.err = paid, err
		close(b.done)
	})
}

func (b *batch) settled() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// Do decides a request of cost tokens for key by send, together with all others that wait for the same key. All
// callers of one key must pass the same send, or ones that do the same.
//
// A caller whose context ends leaves with the context's error and harms nobody; its cost stays in the batch. The call
// itself has a context of its own: the first caller's would take all others down with it.
func (g *Group) Do(ctx context.Context, key string, cost int, send Send) (limit.Result, error) {
	if err := ctx.Err(); err != nil {
		return limit.Result{}, err
	}
	g.mu.Lock()
	b, run, i, opened := g.joinLocked(key, cost, send)
	g.mu.Unlock()
	switch {
	case opened && ctx.Done() == nil:
		// This caller waits in any case, so it may as well see to the call itself: handing it to another goroutine
		// and back costs a third of a round trip on loopback.
		g.fly(key, b)
	case opened:
		go g.fly(key, b)
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		if !b.settled() { // else the caller is paid: rather tell it
			return limit.Result{}, ctx.Err()
		}
	}
	if b.err != nil {
		return limit.Result{}, b.err
	}
	return b.paid[run].Result(i), nil
}

// DoAll is Do for many requests at once, in order: one Paid for each run. Others may join its last run, behind them.
func (g *Group) DoAll(key string, costs []lease.Run, send Send) ([]lease.Paid, error) {
	g.mu.Lock()
	b := g.openLocked(key, send)
	b.costs = costs
	g.mu.Unlock()
	g.fly(key, b)
	<-b.done
	return b.paid, b.err
}

// Start calls send for key with the callers that wait, if any, and does not wait itself. It does nothing and returns false
// if a batch of the key is about to be sent anyway. If the call before it does not end in time, send is not called, but
// unsent, which may be nil.
func (g *Group) Start(key string, send Send, unsent func()) bool {
	g.mu.Lock()
	var b *batch
	if q := g.open[key]; len(q) == 0 || q[len(q)-1].settled() {
		b = g.openLocked(key, send)
	}
	g.mu.Unlock()
	if b == nil {
		return false
	}
	go func() {
		g.fly(key, b)
		g.mu.Lock()
		sent := b.sent
		g.mu.Unlock()
		if !sent && unsent != nil {
			unsent()
		}
	}()
	return true
}

// openLocked adds an empty batch behind those of the key.
func (g *Group) openLocked(key string, send Send) *batch {
	b := &batch{send: send, done: make(chan struct{}), late: g.late}
	b.costs = b.one[:0]
	b.timer = time.AfterFunc(g.timeout, func() { g.timeOut(key, b) })
	g.open[key] = append(g.open[key], b)
	return b
}

// timeOut ends the wait of the callers of b. If its call is out, those who wait for the next one have waited nearly as long,
// and would again, if the server hangs: they give up too.
func (g *Group) timeOut(key string, b *batch) {
	err := b.late
	g.mu.Lock()
	if b.sent && time.Now().Before(b.deadline) { // it was sent in the moment in which its wait for that had ended
		g.mu.Unlock()
		return
	}
	if !b.sent {
		err = ErrBehind
	} else if !b.settled() {
		for _, next := range g.open[key] { // before b is settled: not those who come back from it
			next.settle(nil, ErrBehind)
		}
	}
	g.mu.Unlock()
	b.settle(nil, err)
}

// ErrBehind is told to callers whose batch was not sent, because the call before it got no answer in time.
var ErrBehind = fmt.Errorf("%w: the call before got no answer in time", limit.ErrUnavailable)

// joinLocked puts a cost at the end of the key's newest batch, or opens one.
func (g *Group) joinLocked(key string, cost int, send Send) (b *batch, run, i int, opened bool) {
	if q := g.open[key]; len(q) > 0 && q[len(q)-1].takes(cost) {
		b = q[len(q)-1]
	} else {
		b, opened = g.openLocked(key, send), true
	}
	run, i = b.add(cost)
	return b, run, i, opened
}

// takes reports whether one more request of this cost can join the batch. One that has timed out may still be open, until
// the flight before it has landed and its own goroutine has come to run: whoever joined it would fail at once, and a loop
// of such callers would keep that goroutine from running.
func (b *batch) takes(cost int) bool {
	n := len(b.costs)
	return (n < lease.MaxRuns || b.costs[n-1].Cost == cost) && !b.settled()
}

// add puts a request at the end of the batch and returns where.
func (b *batch) add(cost int) (run, i int) {
	if n := len(b.costs); n > 0 && b.costs[n-1].Cost == cost {
		b.costs[n-1].Count++
		return n - 1, b.costs[n-1].Count - 1
	}
	b.costs = append(b.costs, lease.Run{Cost: cost, Count: 1})
	return len(b.costs) - 1, 0
}

// fly sees to it that b is sent: it joins the flight that is out for the key and then starts the next, until b is
// among those that were sent. There is one such goroutine for each batch, and it ends with it.
func (g *Group) fly(key string, b *batch) {
	defer g.drop(key, b)
	defer b.timer.Stop()
	// In case send ends this goroutine (runtime.Goexit, as t.FailNow does): nobody may wait for ever.
	defer b.settle(nil, errEnded)
	for !b.settled() {
		g.flights.Do(key, func() (any, error) {
			g.sendOldest(key)
			return nil, nil
		})
	}
}

// sendOldest cuts the oldest batch of the key, sends it and pays its callers.
func (g *Group) sendOldest(key string) {
	b := g.cut(key)
	if b == nil {
		return
	}
	b.timer.Reset(g.timeout)
	// Again for the end of this goroutine, which need not be that of b.
	defer b.settle(nil, errEnded)
	var paid []lease.Paid
	// singleflight would raise a panic again in every goroutine that joined and so take the process down.
	err := Guard(func() (err error) {
		paid, err = b.send(b, key, b.costs)
		return err
	})
	b.settle(paid, err)
}

var errEnded = fmt.Errorf("%w: the call ended without an answer", limit.ErrUnavailable)

// Guard runs f, and returns a panic in it as an error that wraps limit.ErrUnavailable. The error says what only runtime
// errors say: anything else might hold a key.
func Guard(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("%w: panic in the call: %w", limit.ErrUnavailable, r)
		default:
			err = fmt.Errorf("%w: panic in the call: a %T", limit.ErrUnavailable, r)
		}
	}()
	return f()
}

// cut takes the oldest batch of the key whose callers still wait; from here on its costs do not change.
func (g *Group) cut(key string) *batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.open[key]) > 0 {
		b := g.open[key][0]
		g.dropLocked(key, b)
		if !b.settled() {
			b.sent, b.deadline = true, time.Now().Add(g.timeout)
			return b
		}
	}
	return nil
}

// drop makes sure that a batch which timed out before it was sent is not joined or sent any more.
func (g *Group) drop(key string, b *batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(key, b)
}

func (g *Group) dropLocked(key string, b *batch) {
	q := g.open[key]
	i := slices.Index(q, b)
	switch {
	case i < 0:
	case len(q) == 1:
		delete(g.open, key)
	default:
		g.open[key] = slices.Delete(q, i, i+1)
	}
}
