package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// What a lab refuses.
var (
	errBusy     = errors.New("a run is under way: stop it first")
	errIdle     = errors.New("nothing is running")
	errInstance = errors.New("there is no such instance")
)

// running is a run that a fleet makes.
type running interface {
	Recording() fleet.Recording
	Hang(on bool)
	Kill(instance int)
	Revive(instance int)
	Faults() (hanging bool, dead []bool)
	Wait(ctx context.Context) error
	Stop()
}

// phase is where a lab is.
type phase string

const (
	idle   phase = "idle" // nothing has run yet
	active phase = "running"
	done   phase = "done"
)

// lab makes one run after the other and never two at a time. All who look at it see the same.
type lab struct {
	start func(s scenario.Scenario) (running, error)
	owner sync.WaitGroup // of the goroutine that carries a plan out

	mu      sync.Mutex // guards the fields below
	phase   phase
	plan    []scenario.Scenario
	recs    []fleet.Recording // of the runs of the plan that are over
	current running           // nil when there is none
	cancel  context.CancelFunc
	failure string        // why the plan was not carried out
	changed chan struct{} // closed at the next change, but for what is recorded meanwhile
}

func newLab(start func(s scenario.Scenario) (running, error)) *lab {
	return &lab{start: start, phase: idle, changed: make(chan struct{})}
}

// state is what is to be seen of a lab.
type state struct {
	phase   phase
	plan    []scenario.Scenario
	recs    []fleet.Recording // the last one is that of the current run, if there is one
	hanging bool              // in the current run, as is dead
	dead    []bool            // nil if there is none
	failure string
}

// look returns the state, and a channel that is closed when there is another one.
func (l *lab) look() (state, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := state{phase: l.phase, plan: l.plan, recs: slices.Clone(l.recs), failure: l.failure}
	if l.current != nil {
		s.hanging, s.dead = l.current.Faults()
		s.recs = append(s.recs, l.current.Recording())
	}
	return s, l.changed
}

// change changes fields under the lock, and tells those who look.
func (l *lab) change(what func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	what()
	close(l.changed)
	l.changed = make(chan struct{})
}

// begin runs the scenarios of plan one after the other, until ctx ends. It returns errBusy if a plan is being carried out.
func (l *lab) begin(ctx context.Context, plan []scenario.Scenario) error {
	err := errBusy
	l.change(func() {
		if l.phase == active {
			return
		}
		err = nil
		ctx, l.cancel = context.WithCancel(ctx)
		l.phase, l.plan, l.recs, l.failure = active, plan, nil, ""
		l.owner.Go(func() { l.carryOut(ctx, plan) })
	})
	return err
}

func (l *lab) carryOut(ctx context.Context, plan []scenario.Scenario) {
	for i, s := range plan {
		if ctx.Err() != nil {
			break
		}
		f, err := l.start(s)
		if err != nil {
			l.change(func() { l.failure = fmt.Sprintf("run %d of %d did not start: %v", i+1, len(plan), err) })
			break
		}
		l.change(func() { l.current = f })
		err = f.Wait(ctx)
		f.Stop()
		l.change(func() {
			l.recs, l.current = append(l.recs, f.Recording()), nil
			if err != nil && ctx.Err() == nil {
				l.failure = fmt.Sprintf("run %d of %d ended early: %v", i+1, len(plan), err)
			}
		})
	}
	l.change(func() {
		l.phase = done
		l.cancel()
	})
}

// stop ends the plan; what was recorded stays. It returns errIdle if there is none.
func (l *lab) stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != active {
		return errIdle
	}
	l.cancel()
	return nil
}

// hang makes Redis hang for the current run, or ends that.
func (l *lab) hang(on bool) error {
	return l.meddle(func(f running) error {
		f.Hang(on)
		return nil
	})
}

// kill kills an instance of the current run, or starts it again.
func (l *lab) kill(instance int, on bool) error {
	return l.meddle(func(f running) error {
		if _, dead := f.Faults(); instance < 0 || instance >= len(dead) {
			return errInstance
		}
		if on {
			f.Kill(instance)
		} else {
			f.Revive(instance)
		}
		return nil
	})
}

// meddle does something to the current run. That may end meanwhile: then it has no effect.
func (l *lab) meddle(with func(f running) error) error {
	l.mu.Lock()
	f := l.current
	l.mu.Unlock()
	if f == nil {
		return errIdle
	}
	err := with(f)
	l.change(func() {}) // it is seen at once
	return err
}

// close waits until the plan has ended, which the end of its context makes it do.
func (l *lab) close() { l.owner.Wait() }
