package balance

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Stripes are shares of the tokens of a Balance that many CPUs take from at once. A number that all of them write moves
// from cache to cache with every take, and the more CPUs there are the longer each waits for it. So each takes from a
// share that it has nearly to itself, and comes back to the balance, and the clock, once in checkEvery takes.
type Stripes []Stripe

// Stripe is one of them.
type Stripe struct {
	tokens atomic.Int64
	of     *Stripes
	_      [2*lineSize - 16]byte // two lines: CPUs fetch them in pairs
}

// lineSize is the size of a cache line.
const lineSize = 64

// newStripes makes more stripes than there are CPUs, so that two of them seldom meet in one: a power of two.
func newStripes() *Stripes {
	n := 8
	for n < 8*runtime.GOMAXPROCS(0) && n < 256 {
		n *= 2
	}
	s := make(Stripes, n)
	for i := range s {
		s[i].of = &s
	}
	return &s
}

// Stripes are those of the balance, or nil.
func (b *Balance) Stripes() *Stripes { return b.stripes.Load() }

// Mine is a stripe for the calling goroutine. Goroutines are told apart by their stacks.
func (s Stripes) Mine() *Stripe {
	var here byte
	at := uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9e3779b97f4a7c15
	return &s[(at>>32)&uint64(len(s)-1)]
}

// Common is how many tokens there are that do not lie in stripes: one look, where Tokens has to look at each of them.
func (b *Balance) Common() int64 { return max(0, b.tokens.Load()) }

// Empty reports that there is nothing to take. It may say no when there is not.
func (b *Balance) Empty() bool { return b.tokens.Load() <= 0 && b.stripes.Load() == nil }

// TakeFrom is TakeOne from a stripe.
func (b *Balance) TakeFrom(s *Stripe, about int64) (left, deadline int64, sure bool) {
	if deadline = b.deadline.Load(); deadline == 0 {
		return -1, 0, false
	}
	if left = s.tokens.Add(-1); left < 0 {
		return left, deadline, false
	}
	return left + b.Common(), deadline, about < deadline
}

func (s Stripes) held() (tokens int64) {
	for i := range s {
		tokens += max(0, s[i].tokens.Load())
	}
	return tokens
}

func (s Stripes) drain() (tokens int64) {
	for i := range s {
		tokens += max(0, s[i].tokens.Swap(0))
	}
	return tokens
}

// manyLost is how often two takes must meet before a balance is split.
const manyLost = 16

// Contended notes whether another take has come in the moment of this call, and reports whether the balance should be
// split for it. It is called now and then by those who take.
func (b *Balance) Contended() bool {
	have := b.tokens.Load()
	return !b.tokens.CompareAndSwap(have, have) && b.lost.Add(1) >= manyLost
}

// Split makes stripes, if there are none and tokens enough for them. They are empty; Spread fills them.
func (b *Balance) Split() {
	b.lost.Store(0)
	if s := newStripes(); b.stripes.Load() == nil && b.tokens.Load() >= s.enough() {
		b.stripes.Store(s)
	}
}

// enough is how many tokens it takes for stripes: what is in them must be a small part.
func (s Stripes) enough() int64 { return int64(4 * len(s) * checkEvery) }

// Spread gives a stripe that was found empty its share, or, when the tokens run low, gathers those of all stripes.
//
// It runs under the owner's lock because tokens that are between two places are seen in neither: the owner would take
// them for used, the bucket would put others in their place, and then they would be spent.
func (b *Balance) Spread(s *Stripe) {
	if b.stripes.Load() != s.of || s.tokens.Load() > 0 {
		return // somebody else has been here
	}
	const share = checkEvery - 1 // and one for the caller, who confirms it
	for {
		have := b.tokens.Load()
		if have < s.of.enough() {
			b.Gather()
			return
		}
		if b.tokens.CompareAndSwap(have, have-share) {
			break
		}
	}
	add(&s.tokens, share)
}

// Gather puts the tokens of all stripes back together. It runs under the owner's lock, like Spread.
func (b *Balance) Gather() {
	if s := b.stripes.Swap(nil); s != nil {
		// A take that is under way has its token already, or finds its stripe empty: that is never filled again.
		add(&b.tokens, s.drain())
	}
}
