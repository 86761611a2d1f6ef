// Package breaker decides when it is of no use to ask a server that does not answer, and when to try again: a circuit
// breaker (Nygard, Release It!), pure, without lock or clock.
package breaker

import "time"

// Breaker counts how decisions fared. Times are nanoseconds of any clock. The zero Breaker is closed. It is not safe for
// concurrent use.
type Breaker struct {
	open  bool
	trial bool  // closed by a probe; nobody's decision has gone well since
	row   int   // failures since the last success
	since int64 // when it opened
	next  int64 // when to probe
	pause time.Duration

	seconds [window]second
}

// second is what happened in one second.
type second struct {
	at           int64 // which
	good, failed int
}

// When the breaker opens: after so many failures in a row, or when half of at least minCalls within the window failed.
const (
	maxRow   = 5
	minCalls = 20
	window   = 10 // seconds
)

// Pauses between probes, before jitter.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
	// lostProbe is when a probe that was never heard of again is given up.
	lostProbe = 10 * time.Second
)

// Open reports whether it is of no use to ask.
func (b *Breaker) Open() bool { return b.open }

// Since is when it opened, if it is open.
func (b *Breaker) Since() int64 { return b.since }

// Next is when the next probe is due, if it is open.
func (b *Breaker) Next() int64 { return b.next }

// Succeeded notes that n decisions were answered. A closed breaker stays closed; an open one does too: an answer that
// was late says nothing about the next one. See Probed.
func (b *Breaker) Succeeded(now int64, n int) {
	if b.open {
		return
	}
	b.row, b.trial = 0, false
	b.second(now).good += n
}

// Failed notes that n decisions got no answer, and reports whether the breaker has opened for it. chance is a random
// number in [0, 1) that keeps processes from probing in step.
func (b *Breaker) Failed(now int64, n int, chance float64) (opened bool) {
	if b.open {
		return false
	}
	b.row += n
	b.second(now).failed += n
	good, failed := b.sum(now)
	if b.row < maxRow && !b.trial && (good+failed < minCalls || failed < good) {
		return false
	}
	if !b.trial {
		b.since, b.pause = now, firstPause
	}
	b.open, b.trial = true, false
	b.wait(now, chance)
	return true
}

// Probe reports whether the caller shall probe now; then it must call Probed. There is one probe at a time.
func (b *Breaker) Probe(now int64) bool {
	if !b.open || now < b.next {
		return false
	}
	b.next = now + int64(lostProbe)
	return true
}

// Probed notes how the probe went, and reports whether the breaker has closed for it. It is closed on trial: the first
// failure opens it again, with the pauses it had, because a probe may go well where a decision does not.
func (b *Breaker) Probed(now int64, good bool, chance float64) (closed bool) {
	if !b.open {
		return false
	}
	if !good {
		b.wait(now, chance)
		return false
	}
	b.open, b.trial, b.row = false, true, 0
	b.seconds = [window]second{}
	return true
}

// wait sets the time of the next probe. The pauses double.
func (b *Breaker) wait(now int64, chance float64) {
	b.next = now + int64(float64(b.pause)*(0.5+0.5*chance))
	b.pause = min(2*b.pause, lastPause)
}

// second is the count of the present second.
func (b *Breaker) second(now int64) *second {
	at := now / int64(time.Second)
	s := &b.seconds[at%window]
	if s.at != at {
		*s = second{at: at}
	}
	return s
}

// sum is the counts of the window.
func (b *Breaker) sum(now int64) (good, failed int) {
	for _, s := range b.seconds {
		if s.at > now/int64(time.Second)-window {
			good, failed = good+s.good, failed+s.failed
		}
	}
	return good, failed
}
