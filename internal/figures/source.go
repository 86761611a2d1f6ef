package figures

import (
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/tally"
)

// Source is where the metrics of one limiter are read from. It is safe for concurrent use; the zero Source has nothing yet.
type Source struct {
	watching sync.Mutex // held by Watch

	mu      sync.Mutex // guards the fields below; never held while a limiter is asked
	limiter *hybrid.Limiter
	before  hybrid.Stats // the counts of limiters that were watched earlier
	tallies []*tally.Limiter
	outages outages
}

// outages are what an Observer hears of them.
type outages struct {
	begun  int64
	lasted time.Duration
}

// CheckName returns nil for a name that can tell limiters apart, else an error that wraps limit.ErrInvalid.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: Options.Name is empty: the metrics of several limiters could not be told apart", limit.ErrInvalid)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: Options.Name %q is no UTF-8", limit.ErrInvalid, name)
	}
	return nil
}

// Began notes an outage.
func (s *Source) Began() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outages.begun++
}

// Ended notes how long one was.
func (s *Source) Ended(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outages.lasted += after
}

// Watch makes l the limiter whose Stats are read, from now on instead of the one before. What that one has counted so far
// stays in the counts; it must have been closed, or they may go down by what it counts meanwhile. The error for nil wraps
// limit.ErrInvalid.
func (s *Source) Watch(l *hybrid.Limiter) error {
	if l == nil {
		return fmt.Errorf("%w: the limiter is nil", limit.ErrInvalid)
	}
	s.watching.Lock()
	defer s.watching.Unlock()
	s.mu.Lock()
	old := s.limiter
	s.mu.Unlock()
	var counted hybrid.Stats
	if old != nil && old != l {
		counted = old.Stats()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limiter = l
	s.before = sum(s.before, counted)
	return nil
}

// sum is the Stats of the second with the counts of both.
func sum(a, b hybrid.Stats) hybrid.Stats {
	b.Calls += a.Calls
	b.Failed += a.Failed
	b.Leased += a.Leased
	b.Leases += a.Leases
	b.Returned += a.Returned
	b.Expired += a.Expired
	b.Fallbacks += a.Fallbacks
	b.Shadowed += a.Shadowed
	return b
}

// Count wraps l so that its decisions are read too.
func (s *Source) Count(l limit.Limiter, opts tally.Options) (*tally.Limiter, error) {
	t, err := tally.New(l, opts)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tallies = append(s.tallies, t)
	return t, nil
}

// Read calls figure with the value of each figure, by its place in the Table, if a limiter is watched; and decisions with
// each count, of all wrapped limiters together.
func (s *Source) Read(figure func(i int, value float64), decisions func(tally.Count)) {
	s.mu.Lock()
	l, before, outages := s.limiter, s.before, s.outages
	tallies := s.tallies
	s.mu.Unlock()
	if l != nil {
		stats := sum(before, l.Stats())
		for i := range Table {
			figure(i, Table[i].value(&stats, &outages))
		}
	}
	merged := make(map[tally.Count]int64)
	for _, t := range tallies {
		for _, c := range t.Counts() {
			n := c.N
			c.N = 0
			merged[c] += n
		}
	}
	for c, n := range merged {
		c.N = n
		decisions(c)
	}
}
