// Package balance keeps the tokens that a process may spend without asking: an integer, but one that every request
// writes and that may be taken back at any time.
package balance

import "sync/atomic"

// Balance is the tokens that this process holds for one key and may spend without asking: a lease. Times are
// nanoseconds of any clock that does not go back. The zero Balance is empty.
//
// Any number of goroutines may take at once; Drain, Install, Split, Spread and Gather exclude each
// other by a lock of the owner's.
//
// Reading the clock costs several times as much as taking a token, so a take reads it only now and then: while fewer
// than checkEvery tokens are left, and when their number comes by a multiple of it. In between it goes by a reading that
// somebody else made, a little while ago. So tokens of a lease that has ended can be taken for as long as that reading
// is old, and no more than checkEvery-1 of them.
type Balance struct {
	deadline atomic.Int64 // from then on the tokens are void; 0 while there is no lease
	tokens   atomic.Int64 // below 0: takes that came too late; nothing is owed for them
	stripes  atomic.Pointer[Stripes]
	lost     atomic.Int32 // times that two takes have met, see Contended
}

// checkEvery is how many tokens may be taken between two readings of the clock.
const checkEvery = 64

// TakeOne spends one token without reading the clock. If it is sure, the token was there and valid, about being a time
// that is not long past; else Confirm says whether it was.
//
// A take that failed is not put back. It would mint: A takes from 0 and gets -1, the lease is drained and counted as 0,
// A puts back 1, which nobody granted.
func (b *Balance) TakeOne(about int64) (left, deadline int64, sure bool) {
	if deadline = b.deadline.Load(); deadline == 0 {
		return -1, 0, false
	}
	left = b.tokens.Add(-1)
	return left, deadline, left >= checkEvery && left%checkEvery != 0 && about < deadline
}

// Confirm says whether n tokens that have left so many and that deadline were there and valid when they were taken; now
// reads the clock. If they were there and not valid any more they are gone all the same, and it returns -n.
//
// The deadline is read before the tokens and the clock after them. The tokens may come from a newer lease than the
// deadline, never from an older one, and they were taken before the clock was read, so if the clock is short of that
// deadline the lease was alive when they were taken. The other way round, a goroutine that is held up between looking
// at the clock and taking would spend tokens of a lease that ended meanwhile.
//
// Who finds no deadline takes nothing, or else the first tokens of a lease would be lost: A reads that there is none,
// the lease comes, A takes of it and finds that by its deadline the token is void.
func (b *Balance) Confirm(n, left, deadline int64, now func() int64) (int64, bool) {
	if left < 0 {
		return 0, false
	}
	// A reset may have put a shorter lease in the place of a longer one meanwhile.
	if now() >= min(deadline, b.deadline.Load()) {
		return -n, false // lost, as the rest of that lease
	}
	return left, true
}

// Take spends n tokens if they are there and still valid when they are taken, and says how many are left; now reads
// the clock. If they were there and not valid any more they are gone all the same, and left is -n. Nothing is written
// when there are too few. What lies in stripes is not looked at, see Gather.
func (b *Balance) Take(n int64, now func() int64) (left int64, ok bool) {
	deadline := b.deadline.Load()
	if deadline == 0 {
		return 0, false
	}
	for {
		have := b.tokens.Load()
		if have < n {
			return 0, false
		}
		if left = have - n; b.tokens.CompareAndSwap(have, left) {
			return b.Confirm(n, left, deadline, now)
		}
	}
}

// Held is how many tokens could be taken at the time now.
func (b *Balance) Held(now int64) int64 {
	if now >= b.deadline.Load() {
		return 0
	}
	return b.Tokens()
}

// Tokens is how many tokens there are, whether they are still valid or not. Under the owner's lock it is never less than
// there are when it returns: tokens that are taken meanwhile may be counted still.
func (b *Balance) Tokens() int64 {
	n := max(0, b.tokens.Load())
	if s := b.stripes.Load(); s != nil {
		n += s.held()
	}
	return n
}

// Drain empties the balance and returns how many tokens there were.
func (b *Balance) Drain() int64 {
	n := max(0, b.tokens.Swap(0))
	if s := b.stripes.Swap(nil); s != nil {
		n += s.drain()
	}
	b.deadline.Store(0) // after the tokens: who sees it must not find any of the old lease
	return n
}

// Install adds tokens and makes all of them valid until deadline, which may be earlier than the one before only if the
// balance has been drained since.
//
// The deadline comes first: a taker who sees the tokens must not see the old deadline and throw them away.
func (b *Balance) Install(tokens, deadline int64) {
	b.deadline.Store(deadline)
	add(&b.tokens, tokens)
}

// add puts tokens to those that are there; what failed takes have gone below zero is owed to nobody.
func add(to *atomic.Int64, tokens int64) {
	for {
		have := to.Load()
		if to.CompareAndSwap(have, max(0, have)+tokens) {
			return
		}
	}
}
