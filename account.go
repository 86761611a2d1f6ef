package hybrid

import (
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid/internal/balance"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// account is what is known about a key while it is in use: the tokens that this process holds, and the lease that they
// belong to. It is opened by the first flight of an entry and dropped when nothing is left in it, so that keys which are
// only remembered cost little.
type account struct {
	// What requests look at comes first and fits into one cache line.
	balance balance.Balance // the tokens; taken by anyone, else touched only under the entry's mu
	mark    atomic.Int64    // when so many are left, the next lease is asked for
	level   atomic.Int64    // of the bucket, at the last reply

	waiting atomic.Int32            // callers of Wait
	refused atomic.Pointer[refused] // by Redis, for the time being

	lane *lane // to the server of the key

	// The entry's mu guards the fields below.
	lease    lease.State
	demand   lease.Demand
	denied   int64  // tokens refused since demand was last told
	paid     int64  // tokens paid by Redis to callers since then
	seen     int64  // tokens used of this lease when demand was last told
	deadline int64  // of the balance; 0 before the first answer
	owed     int64  // tokens given up since the last answer, which the bucket may not know of
	lives    int    // leases that have ended: an answer to a request of an earlier life is void
	flights  int    // under way, and callers that wait
	queue    queue  // of those
	credit   int64  // tokens to give back, or to charge, with the next request
	used     int64  // when the last of them ended
	idle     bool   // the next flight without callers gives everything back
	report   bool   // the next flight without callers says what is held, see owes
	known    int64  // until then the level is worth remembering
	replied  int64  // when the last reply came; 0 before the first
	share    *share // what this process admits without Redis; nil unless it had to
	touched  int64  // tokens there were when the table last looked

	watched watch // guarded by the janitor
}

// refused is an answer of a healthy Redis that will not decide.
type refused struct {
	err   error
	until int64 // it is not asked again before
}

// remaining is what is left in all as far as this process knows, when it holds so many tokens.
func (a *account) remaining(held int64, lim *limit.Limit) int {
	return int(max(0, min(held+a.level.Load(), int64(lim.Burst))))
}

// owesLocked reports whether tokens are to be given back, or were given up without an answer and the lease they belong to
// has not ended.
func (a *account) owesLocked(now int64) bool {
	return a.credit != 0 || a.owed > 0 && a.lease.Open() && now < a.deadline+int64(afterlife)
}

// emptyLocked reports whether there is nothing in the account that is worth keeping: no tokens, none that the bucket has
// to hear of, no flight, no demand that could be remembered, and no level, here or in Redis, that is not simply full. Of
// a key that is gone a level is not kept, or there would be no end to the memory that made-up keys take.
func (a *account) emptyLocked(ttl time.Duration, gone bool, now int64) bool {
	if a.flights > 0 || a.balance.Tokens() > 0 || now-a.used < int64(keepAccount) {
		return false
	}
	if a.credit != 0 && (!gone || now-a.used < int64(keepLevel)) {
		return false
	}
	if !gone && (now < a.known || a.share != nil && !a.share.full(now)) {
		return false
	}
	end := a.deadline
	if end == 0 { // the first answer was lost: the next one may bring what it granted
		end = a.used + int64(ttl)
	}
	return !a.lease.Open() || now >= end+int64(afterlife)
}

// keepAccount is how long an account without tokens is kept after the last flight: by then nothing is left of what Demand
// has learnt.
const keepAccount = time.Second

// keepLevel is the longest time for which the level of a bucket that is not full is remembered, in case Redis stops
// answering.
const keepLevel = time.Minute

// afterlife is for how long after the deadline of a lease its tokens can still be given back under its name: less than
// the 100ms by which the bucket keeps it longer.
const afterlife = 90 * time.Millisecond

// creditLocked notes tokens to be given back, or charged, with the next request: no more than a bucket can take.
func (a *account) creditLocked(n, burst int64) {
	a.credit = max(-burst, min(a.credit+max(-burst, min(n, burst)), burst))
}

// maxTotal is how many tokens one lease may use in all: the script counts in doubles, which are exact up to twice that.
const maxTotal = 1 << 52

// giveUpLocked takes what is left out of the balance. That comes before it is sent back: on its way it must not be spent.
func (a *account) giveUpLocked() (tokens int64) {
	tokens = a.balance.Drain()
	a.lease.GiveUp(tokens)
	a.owed += tokens
	return tokens
}

// countLocked tells the estimate of demand what was used since the last time.
func (a *account) countLocked(terms *lease.Terms, now int64) {
	used := a.lease.Used(a.balance.Tokens())
	a.demand.Add(now, terms.Tau, used-a.seen+a.paid, a.denied)
	a.seen, a.paid, a.denied = used, 0, 0
}

// endLocked throws away what is left of a lease that is over, and its name.
func (a *account) endLocked() (tokens int64) {
	tokens = a.balance.Drain()
	a.lease.End()
	a.seen, a.deadline, a.owed = 0, 0, 0
	a.lives++
	return tokens
}
