// Package fleet runs a scenario: real limiters, each with connections of its own, that are asked as the scenario says,
// and a recording of what they did.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/internal/calls"
)

const (
	every = 200 * time.Millisecond // between samples
	tick  = time.Millisecond       // between looks at what is due
	// maxInFlight is how many requests may wait for their decision. Further ones are not made, and counted as asked and
	// failed: a service that queues without end serves nobody.
	maxInFlight = 16384
)

// Fleet is a run of a scenario. It is over when its time is, or by Stop; the recording stays. It is safe for concurrent
// use.
//
// Demand is an open loop: requests are made when they are due, whatever became of those before. What an instance would
// be asked for while it is dead is not asked of anybody.
type Fleet struct {
	redis    *Redis
	scenario scenario.Scenario
	prefix   string
	ledger   *ledger
	gate     gate
	calls    calls.Counter

	cancel context.CancelFunc
	done   chan struct{} // closed at the end

	inFlight atomic.Int64
	requests sync.WaitGroup

	mu       sync.Mutex
	over     bool
	procs    []*process // nil for one that is dead
	hanging  bool
	wasHung  bool   // at some time since the last sample
	wasDead  []bool // the same, of each instance
	closings sync.WaitGroup
}

// Start checks the scenario and starts a run of it. Stop has to be called.
func Start(r *Redis, s scenario.Scenario) (*Fleet, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	l, err := newLedger(s)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &Fleet{redis: r, scenario: s, prefix: newPrefix(), ledger: l, cancel: cancel, done: make(chan struct{}), wasDead: make([]bool, s.Instances)}
	for range s.Instances {
		p, err := f.newProcess()
		if err != nil {
			cancel()
			f.closeAll()
			return nil, err
		}
		f.procs = append(f.procs, p)
	}
	l.rec.Terms = f.procs[0].terms(s)
	go f.run(ctx)
	return f, nil
}

func (f *Fleet) newProcess() (*process, error) {
	return newProcess(f.redis, f.scenario, f.prefix, &f.gate, &f.calls)
}

// Recording is what was seen up to the last sample.
func (f *Fleet) Recording() Recording { return f.ledger.recording() }

// Hang lets Redis hang, or answer again: requests arrive and are executed, and all replies are held back.
func (f *Fleet) Hang(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.gate.set(on)
	f.hanging = on
	f.wasHung = f.wasHung || on
}

// Kill ends an instance, counted from 0, without giving anything back: its connections break, and what waits for a
// decision fails. An instance that does not exist or is dead is left alone.
func (f *Fleet) Kill(instance int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || instance < 0 || instance >= len(f.procs) || f.procs[instance] == nil {
		return
	}
	p := f.procs[instance]
	f.procs[instance], f.wasDead[instance] = nil, true
	p.wire.sever()
	f.closings.Go(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel() // nobody waits for it
		p.close(ended)
	})
}

// Revive starts an instance that was killed again, as a new process that knows nothing.
func (f *Fleet) Revive(instance int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || instance < 0 || instance >= len(f.procs) || f.procs[instance] != nil {
		return
	}
	if p, err := f.newProcess(); err == nil { // as it was at the start
		f.procs[instance] = p
	}
}

// Faults says what is wrong now, by whoever's doing: whether Redis hangs, and of each instance whether it is dead.
func (f *Fleet) Faults() (hanging bool, dead []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.procs {
		dead = append(dead, p == nil)
	}
	return f.hanging, dead
}

// Wait waits until the run is over, or until ctx ends, whose error it then returns.
func (f *Fleet) Wait(ctx context.Context) error {
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop ends the run if it is not over, and returns when all is closed.
func (f *Fleet) Stop() {
	f.cancel()
	<-f.done
}

// event is the beginning or the end of a fault.
type event struct {
	at time.Duration
	do func()
}

func (f *Fleet) events() []event {
	var all []event
	for _, fault := range f.scenario.Faults {
		from, until := time.Duration(fault.At), time.Duration(fault.At+fault.For)
		switch fault.Kind {
		case scenario.Hang:
			all = append(all, event{from, func() { f.Hang(true) }}, event{until, func() { f.Hang(false) }})
		case scenario.Kill:
			all = append(all, event{from, func() { f.Kill(fault.Instance) }}, event{until, func() { f.Revive(fault.Instance) }})
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return all
}

// run conducts the run: it makes all requests and takes all samples.
func (f *Fleet) run(ctx context.Context) {
	defer close(f.done)
	defer f.cancel()
	start := time.Now()
	length := time.Duration(f.scenario.For)
	events := f.events()
	demand := make([]*arrivals, f.scenario.Instances)
	for i := range demand {
		demand[i] = newArrivals(f.scenario, i)
	}
	before := int64(0)
	sample := func() {
		now := f.calls.Scripts()
		f.ledger.cut(time.Since(start), now-before, f.held(), f.faults())
		before = now
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	next := every
	for first := 0; ctx.Err() == nil; first++ {
		now := min(time.Since(start), length)
		for len(events) > 0 && events[0].at <= now {
			events[0].do()
			events = events[1:]
		}
		for i := range demand { // another one first each time
			i = (first + i) % len(demand)
			f.ask(i, demand[i].due(now.Seconds()))
		}
		f.ledger.advance()
		if now == length {
			break
		}
		if now >= next {
			sample()
			next = now - now%every + every
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	f.requests.Wait() // for as long as a call may take
	sample()
	f.gate.set(false)
	f.closeAll()
	f.ledger.end()
}

// ask makes n requests of an instance, each in a goroutine that ends with its decision.
func (f *Fleet) ask(instance, n int) {
	f.mu.Lock()
	p := f.procs[instance]
	f.mu.Unlock()
	if p == nil || n == 0 {
		return
	}
	cost := f.scenario.Demand.Tokens()
	f.ledger.ask(n, cost)
	room := int(maxInFlight - f.inFlight.Load())
	if n > room {
		f.ledger.turnedAway(n - room)
		n = room
	}
	f.inFlight.Add(int64(n))
	for range n {
		f.requests.Go(func() {
			defer f.inFlight.Add(-1)
			begun := time.Now()
			r, err := p.lim.AllowN(context.Background(), key, cost)
			f.ledger.decided(begun, time.Since(begun), cost, r, err)
		})
	}
}

// held is how many tokens each instance has on lease.
func (f *Fleet) held() []int64 {
	f.mu.Lock()
	procs := slices.Clone(f.procs)
	f.mu.Unlock()
	held := make([]int64, len(procs))
	for i, p := range procs {
		if p != nil {
			held[i] = p.held()
		}
	}
	return held
}

// faults says what was wrong at some time since it was last asked.
func (f *Fleet) faults() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all, dead []string
	if f.wasHung {
		all = append(all, "Redis hangs")
	}
	f.wasHung = f.hanging
	for i, d := range f.wasDead {
		if d {
			dead = append(dead, fmt.Sprint(i))
		}
		f.wasDead[i] = f.procs[i] == nil
	}
	switch len(dead) {
	case 0:
	case 1:
		all = append(all, "instance "+dead[0]+" dead")
	default:
		all = append(all, "instances "+strings.Join(dead, ", ")+" dead")
	}
	return strings.Join(all, "; ")
}

// closeAll closes what is left, all at once, and waits for it.
func (f *Fleet) closeAll() {
	f.mu.Lock()
	for _, p := range f.procs {
		if p != nil {
			f.closings.Go(func() { p.close(context.Background()) })
		}
	}
	f.mu.Unlock()
	f.closings.Wait()
}
