package leasetest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

// Envelope records what was admitted, by all processes together, and says how far that went beyond a limit. The zero
// Envelope is empty. It is safe for concurrent use.
//
// An admission counts at the instant at which its tokens were taken. What is given back later by a credit counts as a
// negative admission at the instant of the credit; a take that was put back before anybody else could know of it
// counts as negative at the instant of the take.
type Envelope struct {
	mu     sync.Mutex // guards events
	events []event
}

type event struct {
	at     int64 // microseconds
	tokens int64
}

// Add records that tokens were admitted at a time in microseconds of any clock; negative is given back. Records may
// come in any order of time; those of the same time count in the order in which they come.
func (e *Envelope) Add(at, tokens int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, event{at, tokens})
}

// Merge adds all that other has recorded, for example in another process.
func (e *Envelope) Merge(other *Envelope) {
	other.mu.Lock()
	events := slices.Clone(other.events)
	other.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, events...)
}

// Admitted is the sum of all records.
func (e *Envelope) Admitted() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	var n int64
	for _, v := range e.events {
		n += v.tokens
	}
	return n
}

// Len is how many records there are.
func (e *Envelope) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.events)
}

// Window is a stretch of time, both ends included, and what was admitted in it.
type Window struct {
	From, To int64 // microseconds
	Admitted int64
	// Excess is by how many tokens Admitted is above what the limit allows in that time, Burst + Rate*(To-From), and a
	// started token counts as a whole one. Negative is below.
	Excess int64
}

// String says what is in the window.
func (w Window) String() string {
	return fmt.Sprintf("%d tokens in the %v up to %d µs, %+d of what is allowed",
		w.Admitted, time.Duration(w.To-w.From)*time.Microsecond, w.To, w.Excess)
}

// Worst is the window that is the furthest above the limit, or the least below it. It is exact: all windows are looked
// at, in integers. With no records the window is empty and Excess is -Burst.
func (e *Envelope) Worst(lim limit.Limit) Window {
	e.mu.Lock()
	defer e.mu.Unlock()
	byTime := func(a, b event) int { return cmp.Compare(a.at, b.at) }
	if !slices.IsSortedFunc(e.events, byTime) {
		slices.SortStableFunc(e.events, byTime)
	}
	// A bucket that can hold nothing, but may go into any debt. Its debt after an admission is the most by which the
	// windows that end there are above the rate: where a window had better begin anew the debt has been paid.
	rate := bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
	var level, deepest bucket.Level
	var window, worst Window
	for i, v := range e.events {
		if i > 0 {
			level = level.After(rate, 0, v.at-window.To)
		}
		if level.N >= 0 {
			level, window = bucket.Level{}, Window{From: v.at}
		}
		level.N -= v.tokens
		window.To, window.Admitted = v.at, window.Admitted+v.tokens
		if level.N < deepest.N || level.N == deepest.N && level.F < deepest.F {
			deepest, worst = level, window
		}
	}
	worst.Excess = -deepest.N - int64(lim.Burst)
	return worst
}
