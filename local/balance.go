package local

import "sync/atomic"

// Balance is the tokens that this process holds for one key and may spend without asking: a lease. Times are
// nanoseconds of any clock that does not go back. The zero Balance is empty.
//
// Any number of goroutines may take at once; Drain and Install exclude each other by a lock of the owner's.
type Balance struct {
	tokens   atomic.Int64 // below 0: takes that came too late; nothing is owed for them
	deadline atomic.Int64 // from then on the tokens are void
}

// Take spends n tokens if they are there and still valid when they are taken, and says how many are left; now reads
// the clock. If they were there and not valid any more they are gone all the same, and left is -n.
//
// The deadline is read before the tokens and the clock after them. The tokens may come from a newer lease than the
// deadline, never from an older one, and they were taken before the clock was read, so if the clock is short of that
// deadline the lease was alive when they were taken. The other way round, a goroutine that is held up between looking
// at the clock and taking would spend tokens of a lease that ended meanwhile.
func (b *Balance) Take(n int64, now func() int64) (left int64, ok bool) {
	deadline := b.deadline.Load()
	if n == 1 {
		// Looked at first without a write: a key without tokens is asked for most often.
		if b.tokens.Load() < 1 {
			return 0, false
		}
		if left = b.tokens.Add(-1); left < 0 {
			// A take that failed is not put back. It would mint: A takes from 0 and gets -1, the lease is drained
			// and counted as 0, A puts back 1, which nobody granted.
			return 0, false
		}
	} else {
		for {
			have := b.tokens.Load()
			if have < n {
				return 0, false
			}
			left = have - n
			if b.tokens.CompareAndSwap(have, left) {
				break
			}
		}
	}
	// A reset may have put a shorter lease in the place of a longer one meanwhile.
	if now() >= min(deadline, b.deadline.Load()) {
		return -n, false // lost, as the rest of that lease
	}
	return left, true
}

// Held is how many tokens could be taken at the time now.
func (b *Balance) Held(now int64) int64 {
	if now >= b.deadline.Load() {
		return 0
	}
	return max(0, b.tokens.Load())
}

// Tokens is how many tokens there are, whether they are still valid or not.
func (b *Balance) Tokens() int64 { return max(0, b.tokens.Load()) }

// Drain empties the balance and returns how many tokens there were.
func (b *Balance) Drain() int64 { return max(0, b.tokens.Swap(0)) }

// Install adds tokens and makes all of them valid until deadline, which may be earlier than the one before only if the
// balance has been drained since.
//
// The deadline comes first: a taker who sees the tokens must not see the old deadline and throw them away.
func (b *Balance) Install(tokens, deadline int64) {
	b.deadline.Store(deadline)
	for {
		have := b.tokens.Load()
		if b.tokens.CompareAndSwap(have, max(0, have)+tokens) {
			return
		}
	}
}
