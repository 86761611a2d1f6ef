package leasetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// DefaultTimeout is the Timeout of a new Source.
const DefaultTimeout = 100 * time.Millisecond

// Source is a [lease.Source] with a [Bucket] for each key, in memory. Its clock is time.Now. It is safe for concurrent
// use; make it with NewSource.
type Source struct {
	// Timeout is how long a call waits at most. Not to be changed once the Source is in use.
	Timeout time.Duration

	mu      sync.Mutex // guards the fields below
	buckets map[string]*Bucket
	skew    time.Duration // of the clock
	down    error
	next    []Fault
	always  func(lease.Request) Fault
	calls   map[string]int
	trips   int
}

// NewSource returns a Source whose buckets are all full.
func NewSource() *Source {
	return &Source{Timeout: DefaultTimeout, buckets: make(map[string]*Bucket), calls: make(map[string]int)}
}

// Fault is what goes wrong with one request. The zero Fault is a call that takes no time.
type Fault struct {
	// Delay is the time until the bucket decides, and Reply the time from then until the answer is there. When the
	// caller does not wait for so long, the bucket decides all the same.
	Delay, Reply time.Duration
	// LoseRequest: the bucket never hears of it. LoseReply: the bucket decides, and the caller never hears of it. In
	// both cases the caller waits until it times out.
	LoseRequest, LoseReply bool
	// Late, if not 0, is how long after the caller has timed out the bucket decides.
	Late time.Duration
	// Again, if not 0, is how long after the bucket has decided it gets the same request once more. Real sources never
	// send anything twice, but networks and copied machines may.
	Again time.Duration
	// Err is returned at once, and the bucket never hears of the request. It should wrap limit.ErrUnavailable, as the
	// errors of package remote do.
	Err error
}

// Next sets what goes wrong with the next requests, one Fault for each. They come before what Always says.
func (s *Source) Next(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = append(s.next, faults...)
}

// Always sets what goes wrong with each request from now on; nil is nothing. f is called in the order in which requests
// arrive, one call at a time, and must not use the Source.
func (s *Source) Always(f func(lease.Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = f
}

// Down makes all calls fail at once with an error that wraps limit.ErrUnavailable and err; with a nil err they work
// again. What the buckets hold is not touched.
func (s *Source) Down(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !errors.Is(err, limit.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", limit.ErrUnavailable, err)
	}
	s.down = err
}

// StepClock sets the clock of all buckets forward, or back if d is negative, as an operator or a failover does.
func (s *Source) StepClock(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew += d.Truncate(time.Microsecond)
}

// Now is the time of the buckets in microseconds.
func (s *Source) Now() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nowLocked()
}

func (s *Source) nowLocked() int64 { return time.Now().UnixMicro() + s.skew.Microseconds() }

// Flush forgets the buckets of these keys, or of all, as Redis does when it runs out of memory or restarts without its
// data.
func (s *Source) Flush(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(keys) == 0 {
		clear(s.buckets)
	}
	for _, key := range keys {
		delete(s.buckets, key)
	}
}

// Snapshot is what all buckets of a Source kept at some time.
type Snapshot struct{ states map[string]State }

// Snapshot returns what all buckets keep now.
func (s *Source) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make(map[string]State, len(s.buckets))
	for key, b := range s.buckets {
		states[key] = b.State()
	}
	return Snapshot{states}
}

// Rollback makes all buckets what they were at the snapshot, as a failover to a replica that is behind does.
func (s *Source) Rollback(old Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.buckets)
	for key, state := range old.states {
		s.bucketLocked(key).Restore(state)
	}
}

// State returns what the bucket of a key keeps.
func (s *Source) State(key string) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.buckets[key]; b != nil {
		b.expire(s.nowLocked())
		return b.State()
	}
	return State{}
}

// Keys returns the keys that have been asked for since the last Flush, in order.
func (s *Source) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.buckets))
}

// Calls is how many requests have been sent for these keys, or for all, those that failed included.
func (s *Source) Calls(keys ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	if len(keys) == 0 {
		for _, k := range s.calls {
			n += k
		}
	}
	for _, key := range keys {
		n += s.calls[key]
	}
	return n
}

// Trips is how many times Acquire was called: requests that are sent together are one trip.
func (s *Source) Trips() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trips
}

func (s *Source) bucketLocked(key string) *Bucket {
	b := s.buckets[key]
	if b == nil {
		b = new(Bucket)
		s.buckets[key] = b
	}
	return b
}

// decide runs one request now.
func (s *Source) decide(req lease.Request) lease.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bucketLocked(req.Key).Do(s.nowLocked(), req)
}

// later runs one request after a time; nobody hears of it.
func (s *Source) later(d time.Duration, req lease.Request) {
	req.Costs = slices.Clone(req.Costs)
	time.AfterFunc(d, func() { s.decide(req) })
}

var errNoAnswer = fmt.Errorf("%w: no answer in time", limit.ErrUnavailable)

// Acquire decides the requests. Those that are sent together travel together: they take as long as the slowest one.
func (s *Source) Acquire(ctx context.Context, reqs []lease.Request, grants []lease.Grant) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	faults := s.depart(ctx, reqs, grants)

	var there, back time.Duration
	lost := false // an answer that will never come
	for i, f := range faults {
		if grants[i].Err == nil {
			lost = lost || f.LoseRequest || f.LoseReply || f.Late > 0
			there, back = max(there, f.Delay), max(back, f.Reply)
		}
	}
	inTime := true
	if started := time.Now(); !sleep(ctx, there) {
		inTime = false
		there -= time.Since(started)
	}
	for i, f := range faults {
		switch {
		case grants[i].Err != nil || f.LoseRequest || f.Late > 0:
		case !inTime:
			s.later(there, reqs[i])
		default:
			grants[i] = s.decide(reqs[i])
			if f.Again > 0 {
				s.later(f.Again, reqs[i])
			}
		}
	}
	inTime = inTime && sleep(ctx, back)
	if lost {
		<-ctx.Done()
	}
	for i, f := range faults {
		if grants[i].Err == nil && (!inTime || f.LoseRequest || f.LoseReply || f.Late > 0) {
			grants[i] = lease.Grant{Err: errNoAnswer}
		}
		if f.Late > 0 {
			s.later(f.Late, reqs[i])
		}
	}
}

// depart counts the requests and finds out what will go wrong with each. What fails at once gets its grant.
func (s *Source) depart(ctx context.Context, reqs []lease.Request, grants []lease.Grant) []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trips++
	faults := make([]Fault, len(reqs))
	for i, req := range reqs {
		s.calls[req.Key]++
		switch {
		case len(s.next) > 0:
			faults[i], s.next = s.next[0], s.next[1:]
		case s.always != nil:
			faults[i] = s.always(req)
		}
		grants[i] = lease.Grant{Err: faults[i].Err}
		if s.down != nil {
			grants[i].Err = s.down
		}
		if ctx.Err() != nil { // nothing is sent for a caller who has left
			grants[i].Err = errNoAnswer
		}
		if err := req.Limit.Validate(); err != nil || req.Limit.Rate == 0 {
			grants[i].Err = fmt.Errorf("%w: the limit of a request has no rate", limit.ErrInvalid)
		}
		if grants[i].Err != nil {
			faults[i] = Fault{}
		}
	}
	return faults
}

// Reset makes the bucket of a key full and voids all leases of it. It takes no time, and fails only while the Source is
// down. It is no call in the sense of Calls.
func (s *Source) Reset(_ context.Context, key string, lim limit.Limit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return s.down
	}
	s.bucketLocked(key).Reset(s.nowLocked(), lim)
	return nil
}

// sleep waits, and reports whether ctx still goes on then.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
