package fleet

import (
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
)

// kept is for how many milliseconds the starts of windows are told apart. A call that lasts longer is left out of the
// count, which can only make an excess smaller.
const kept = 1024

// excess finds, as a run goes on, the most by which admissions surely broke a bound of the form
//
//	A(W) <= base + rate*W    tokens in any window of length W.
//
// An admission happened at some instant of its call. It surely lies in a window only if the whole of the call does; so
// what is counted for a window [s, e] are the calls that began at s or later and had ended by e. Whatever is above the
// bound even so was surely admitted in [s, e]: an excess that is reported has happened, however long calls took. This
// holds for any choice of windows that are looked at, and however late it is noted that a call has ended. So it is
// enough to look at those that begin and end when advance is called, about each millisecond; what is missed by that is
// about rate times twice the time between two calls of it.
//
// For a given end, the windows differ by their start. Let u(s) = A(s, e) + rate*s: then the excess is the largest u(s),
// less rate*e and base. A call that began at f is added to u(s) of all s <= f. All starts that lie more than kept before
// the newest get the same from then on, so the largest of them stands for all of them.
//
// Times are in milliseconds since the start of the run, by the clock of this machine. If Redis runs on another machine
// its clock has to run as fast.
type excess struct {
	base, rate float64       // tokens, tokens per millisecond
	newest     int64         // start
	tokens     [kept]float64 // of each start modulo kept: admitted by calls that began then, and not in u yet
	pending    bool          // there are such
	u          [kept]float64 // of each start modulo kept
	old        float64       // largest u of the starts before those, and of 0
	worst      float64
}

// noise is more than what rounding in float64 can add up to in a run.
const noise = 1e-6

// newExcess is that of the mode. With Rate per Period P in terms of tokens:
//
//   - Buckets (TokenBucket, GCRA, Exact, Leased): Burst + Rate*W/P, docs/guarantees.md.
//   - SlidingLog: at most Rate in each P, and W is covered by floor(W/P) + 1 of these: at most Rate + Rate*W/P.
//   - FixedWindow: W touches at most floor(W/P) + 2 windows: at most 2*Rate + Rate*W/P.
//   - SlidingCounter: say W begins y into window i and ends x into window j, which admit c(i) and c(j) up to x. Each
//     window admits at most Rate. The last admission of j was at x or before, so c(j) <= Rate - c(j-1)*(1 - x/P) and
//     c(j-1) + c(j) <= Rate + Rate*x/P. If j = i+1 that is the bound, for W >= x. Else there are c(i) <= Rate and j-i-2
//     full windows more: together at most Rate*(j-i) + Rate*x/P <= Rate + Rate*W/P, as W = (j-i)*P + x - y and y <= P.
//     If j = i it is at most Rate.
//
// Of a mode with Slack, and of what the failure policy admits, nothing is allowed for: that is what is to be seen.
func newExcess(m scenario.Mode, l limit.Limit) *excess {
	e := &excess{base: float64(l.Burst), rate: float64(l.Rate) / (float64(l.Period.Microseconds()) / 1000)}
	if m == scenario.FixedWindow {
		e.base = 2 * float64(l.Rate)
	}
	return e
}

// admit notes that a call, which began at from and has ended, admitted n tokens. One that began too long ago is left out.
func (x *excess) admit(from int64, n int) {
	f := min(from, x.newest) // earlier is in fewer windows
	if f < 0 || f <= x.newest-kept {
		return
	}
	x.tokens[f%kept] += float64(n)
	x.pending = true
}

// advance looks at the windows that end at now, which has to be at or after the end of all calls that were noted. It
// never falls.
func (x *excess) advance(now int64) {
	if x.pending {
		x.settle(now)
	}
	for x.newest < now {
		x.newest++
		slot := &x.u[x.newest%kept]
		if x.newest >= kept {
			x.old = max(x.old, *slot)
		}
		*slot = x.rate * float64(x.newest)
	}
}

// settle adds the tokens that were noted to the u of all starts before, and compares with the bound at now.
func (x *excess) settle(now int64) {
	sum, best := 0.0, x.old
	for f := x.newest; f >= 0 && f > x.newest-kept; f-- {
		slot := f % kept
		sum += x.tokens[slot]
		x.tokens[slot] = 0
		x.u[slot] += sum
		best = max(best, x.u[slot])
	}
	x.old += sum // of starts, all of which get it
	best = max(best, x.old)
	x.worst = max(x.worst, best-x.rate*float64(now)-x.base)
	x.pending = false
}

// tokensAbove is the result up to now, never negative.
func (x *excess) tokensAbove() float64 {
	if x.worst < noise {
		return 0
	}
	return x.worst
}
