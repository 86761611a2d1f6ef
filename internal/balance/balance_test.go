package balance_test

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hybridlimit/hybrid/internal/balance"
)

func at(now int64) func() int64 { return func() int64 { return now } }

// never is a clock that must not be read.
func never(t *testing.T) func() int64 {
	return func() int64 {
		t.Error("the clock was read")
		return 0
	}
}

// one takes a token as the owner does: without the clock if that will do.
func one(b *balance.Balance, about int64, now func() int64) (left int64, ok bool) {
	left, deadline, sure := b.TakeOne(about)
	if sure {
		return left, true
	}
	return b.Confirm(1, left, deadline, now)
}

func TestBalance(t *testing.T) {
	var b balance.Balance
	steps := []struct {
		what   string
		do     func() (int64, bool)
		want   int64 // tokens left, or drained
		ok     bool
		tokens int64 // there afterwards, valid or not
		held   int64 // at time 50
	}{
		{"one from none", func() (int64, bool) { return b.Take(1, at(0)) }, 0, false, 0, 0},
		{"some from none", func() (int64, bool) { return b.Take(3, at(0)) }, 0, false, 0, 0},
		{"drain none", func() (int64, bool) { return b.Drain(), true }, 0, true, 0, 0},
		{"install", func() (int64, bool) { b.Install(10, 100); return 0, true }, 0, true, 10, 10},
		{"one", func() (int64, bool) { return b.Take(1, at(50)) }, 9, true, 9, 9},
		{"four", func() (int64, bool) { return b.Take(4, at(99)) }, 5, true, 5, 5},
		{"more than there are", func() (int64, bool) { return b.Take(6, at(99)) }, 0, false, 5, 5},
		{"one at the deadline", func() (int64, bool) { return b.Take(1, at(100)) }, -1, false, 4, 4},
		{"two after it", func() (int64, bool) { return b.Take(2, at(101)) }, -2, false, 2, 2},
		{"more than there are after it", func() (int64, bool) { return b.Take(3, at(101)) }, 0, false, 2, 2},
		{"renewed", func() (int64, bool) { b.Install(0, 200); return 0, true }, 0, true, 2, 2},
		{"one of the old ones", func() (int64, bool) { return b.Take(1, at(150)) }, 1, true, 1, 1},
		{"more come", func() (int64, bool) { b.Install(4, 300); return 0, true }, 0, true, 5, 5},
		{"all of them", func() (int64, bool) { return b.Take(5, at(250)) }, 0, true, 0, 0},
		{"and again", func() (int64, bool) { return b.Take(1, at(250)) }, 0, false, 0, 0},
		{"all but the last of many", func() (int64, bool) { b.Install(70, 300); return b.Take(69, at(250)) }, 1, true, 1, 1},
		{"that one, unsure, in time", func() (int64, bool) { return one(&b, 50, at(250)) }, 0, true, 0, 0},
		{"one more", func() (int64, bool) { return one(&b, 50, at(250)) }, 0, false, 0, 0},
		{"and one more", func() (int64, bool) { return one(&b, 50, at(250)) }, 0, false, 0, 0},
		{"more come than failed", func() (int64, bool) { b.Install(1, 300); return 0, true }, 0, true, 1, 1},
		{"one, unsure, too late", func() (int64, bool) { return one(&b, 50, at(300)) }, -1, false, 0, 0},
		{"many come", func() (int64, bool) { b.Install(66, 400); return 0, true }, 0, true, 66, 66},
		{"one, surely", func() (int64, bool) { return one(&b, 50, never(t)) }, 65, true, 65, 65},
		{"one at a multiple of 64", func() (int64, bool) { return one(&b, 50, at(60)) }, 64, true, 64, 64},
		{"drain them", func() (int64, bool) { return b.Drain(), true }, 64, true, 0, 0},
		{"one of a drained lease", func() (int64, bool) { return one(&b, 50, at(60)) }, 0, false, 0, 0},
		{"the last lease", func() (int64, bool) { b.Install(3, 400); return 0, true }, 0, true, 3, 3},
		{"drain", func() (int64, bool) { return b.Drain(), true }, 3, true, 0, 0},
		{"drain again", func() (int64, bool) { return b.Drain(), true }, 0, true, 0, 0},
	}
	for _, s := range steps {
		got, ok := s.do()
		if got != s.want || ok != s.ok {
			t.Errorf("%s: %d, %v, want %d, %v", s.what, got, ok, s.want, s.ok)
		}
		if n := b.Tokens(); n != s.tokens {
			t.Errorf("after %s there are %d tokens, want %d", s.what, n, s.tokens)
		}
		if n := b.Held(50); n != s.held {
			t.Errorf("after %s %d tokens are held, want %d", s.what, n, s.held)
		}
	}
}

func TestBalanceHeldEndsWithTheDeadline(t *testing.T) {
	var b balance.Balance
	b.Install(7, 100)
	for _, s := range []struct{ now, want int64 }{{0, 7}, {99, 7}, {100, 0}, {101, 0}} {
		if got := b.Held(s.now); got != s.want {
			t.Errorf("at %d %d tokens are held, want %d", s.now, got, s.want)
		}
	}
	if got := b.Tokens(); got != 7 {
		t.Errorf("there are %d tokens, want 7", got)
	}
}

// TakeOne goes by a time that somebody read a little while ago, but not for the last tokens and not for each 64th.
func TestTakeOneIsSureOnlyOfManyTokens(t *testing.T) {
	const end = 1000
	for _, s := range []struct {
		tokens, about int64
		sure          bool
	}{
		{1, 0, false},
		{2, 0, false},
		{63, 0, false},
		{64, 0, false},
		{65, 0, false}, // leaves 64
		{66, 0, true},
		{67, 0, true},
		{127, 0, true},
		{128, 0, true},
		{129, 0, false}, // leaves 128
		{130, 0, true},
		{1 << 40, 0, true},
		{1<<40 + 1, 0, false},
		{100, end - 1, true},
		{100, end, false},
		{100, end + 1, false},
		{100, math.MaxInt64 - 1, false},
		{100, math.MaxInt64, false}, // nobody keeps the clock
	} {
		var b balance.Balance
		b.Install(s.tokens, end)
		left, deadline, sure := b.TakeOne(s.about)
		if left != s.tokens-1 || deadline != end || sure != s.sure {
			t.Errorf("one of %d at %d: %d, %d, %v, want %d, %d, %v",
				s.tokens, s.about, left, deadline, sure, s.tokens-1, end, s.sure)
		}
		// If it was not sure, the token was taken all the same, and the clock says whether it was valid.
		for _, now := range []int64{0, end - 1, end, end + 1} {
			want, ok := left, now < end
			if !ok {
				want = -1
			}
			if got, gotOK := b.Confirm(1, left, deadline, at(now)); got != want || gotOK != ok {
				t.Errorf("one of %d, looked at at %d: %d, %v, want %d, %v", s.tokens, now, got, gotOK, want, ok)
			}
		}
		if got := b.Tokens(); got != s.tokens-1 {
			t.Errorf("%d of %d are left", got, s.tokens)
		}
	}
}

// Where nobody keeps the clock it has to be read for every token, even if a lease never ends.
func TestTakeOneIsNeverSureWithoutAClock(t *testing.T) {
	for _, end := range []int64{1, 1000, math.MaxInt64} {
		var b balance.Balance
		b.Install(500, end)
		for range 600 {
			if left, _, sure := b.TakeOne(math.MaxInt64); sure {
				t.Fatalf("deadline %d: sure with %d left", end, left)
			}
		}
	}
}

func TestTakeOneWithoutALease(t *testing.T) {
	drained := func() *balance.Balance {
		var b balance.Balance
		b.Install(500, 1000)
		b.Drain()
		return &b
	}
	for name, b := range map[string]*balance.Balance{"none yet": {}, "drained": drained()} {
		for _, about := range []int64{math.MinInt64, -1, 0, 10, math.MaxInt64} {
			left, deadline, sure := b.TakeOne(about)
			if left != -1 || deadline != 0 || sure {
				t.Errorf("%s, at %d: %d, %d, %v", name, about, left, deadline, sure)
			}
			if left, ok := b.Confirm(1, left, deadline, at(0)); left != 0 || ok {
				t.Errorf("%s: %d, %v: a token was there, or is said to be lost", name, left, ok)
			}
		}
		if b.Drain() != 0 {
			t.Errorf("%s: there are tokens", name)
		}
		b.Install(3, 2000)
		if got := b.Tokens(); got != 3 {
			t.Errorf("%s: then %d tokens came of 3", name, got)
		}
	}
}

// The time that takes go by may stand still while the lease ends, for as long as the machine is busy. However many tokens
// the lease had, no more than 63 are taken before somebody looks at the clock.
func TestStandingClockEndsWithin63Takes(t *testing.T) {
	for n := int64(1); n < 400; n++ {
		var b balance.Balance
		b.Install(n, 100)
		taken, inARow, lost := int64(0), 0, int64(0)
		for range n + 3 {
			left, deadline, sure := b.TakeOne(50)
			if sure {
				taken++
				if inARow++; inARow > 63 {
					t.Fatalf("%d tokens: %d were taken in a row after the deadline", n, inARow)
				}
				continue
			}
			left, ok := b.Confirm(1, left, deadline, at(150))
			if ok {
				t.Fatalf("%d tokens: one was confirmed after the deadline", n)
			}
			lost -= left
			inARow = 0
		}
		if taken+lost != n {
			t.Errorf("%d tokens: %d were taken and %d lost", n, taken, lost)
		}

		// The look at the clock is there for all who come later.
		b = balance.Balance{}
		b.Install(n, 100)
		about, late := int64(50), 0
		for range n + 3 {
			left, deadline, sure := b.TakeOne(about)
			if sure {
				late++
			} else if _, ok := b.Confirm(1, left, deadline, func() int64 { about = 150; return about }); ok {
				t.Fatalf("%d tokens: one was confirmed after the deadline", n)
			}
		}
		if late > 63 {
			t.Errorf("%d tokens: %d were taken after the deadline", n, late)
		}
		if n == 128 && late != 63 {
			t.Errorf("%d tokens: %d were taken between two looks at the clock, want 63", n, late)
		}
	}
}

// A goroutine can be held up anywhere in Take. What happens meanwhile is played here where Take reads the clock.
func TestBalanceTakeThatIsHeldUp(t *testing.T) {
	for _, n := range []int64{1, 2} {
		var b balance.Balance
		b.Install(n, 100)
		if _, ok := b.Take(n, func() int64 {
			if b.Tokens() != 0 {
				t.Errorf("%d: the clock is read before the tokens are taken", n)
			}
			return 50
		}); !ok {
			t.Errorf("%d: refused", n)
		}

		// The lease ends, and the next one is there before the clock is read: the tokens were of the old one.
		b = balance.Balance{}
		b.Install(2*n, 100)
		if left, ok := b.Take(n, func() int64 {
			b.Drain()
			b.Install(5, 1000)
			return 150
		}); ok || left != -n {
			t.Errorf("%d: %d, %v: took tokens of a lease that had ended", n, left, ok)
		}
		if got := b.Tokens(); got != 5 {
			t.Errorf("%d: the next lease has %d tokens, want 5", n, got)
		}

		// The lease is renewed meanwhile: also then the old deadline counts, at worst a token is lost.
		b = balance.Balance{}
		b.Install(n, 100)
		if _, ok := b.Take(n, func() int64 {
			b.Install(0, 1000)
			return 99
		}); !ok {
			t.Errorf("%d: refused while the lease was alive", n)
		}
	}
}

// The same, for a token that was taken without the clock: it is held up before it looks whether that was in time.
func TestBalanceTakeOneThatIsHeldUp(t *testing.T) {
	for _, s := range []struct {
		what      string
		meanwhile func(*balance.Balance)
		now       int64
		ok        bool
		tokens    int64
	}{
		{"nothing", func(*balance.Balance) {}, 99, true, 9},
		{"the lease ends", func(*balance.Balance) {}, 100, false, 9},
		{"it is renewed in time", func(b *balance.Balance) { b.Install(3, 1000) }, 99, true, 12},
		// By the deadline that was read first the token is void. At worst one is lost.
		{"it is renewed", func(b *balance.Balance) { b.Install(3, 1000) }, 100, false, 12},
		{"it is drained", func(b *balance.Balance) { b.Drain() }, 50, false, 0},
		{"the next one is longer", func(b *balance.Balance) { b.Drain(); b.Install(5, 1000) }, 100, false, 5},
		// After a reset, a lease may end before the one whose deadline was read.
		{"the next one is shorter, and over", func(b *balance.Balance) { b.Drain(); b.Install(5, 60) }, 60, false, 5},
		{"the next one is shorter, and not over", func(b *balance.Balance) { b.Drain(); b.Install(5, 60) }, 59, true, 5},
	} {
		var b balance.Balance
		b.Install(10, 100)
		left, deadline, _ := b.TakeOne(0)
		s.meanwhile(&b)
		wantLeft := int64(9)
		if !s.ok {
			wantLeft = -1
		}
		if left, ok := b.Confirm(1, left, deadline, at(s.now)); left != wantLeft || ok != s.ok {
			t.Errorf("%s: %d, %v, want %d, %v", s.what, left, ok, wantLeft, s.ok)
		}
		if got := b.Tokens(); got != s.tokens {
			t.Errorf("%s: %d tokens, want %d", s.what, got, s.tokens)
		}
	}

	// Take as well reads the clock and then the deadline in force.
	for _, n := range []int64{1, 2} {
		var b balance.Balance
		b.Install(2*n, 1000)
		if left, ok := b.Take(n, func() int64 {
			b.Drain()
			b.Install(5, 60)
			return 60
		}); ok || left != -n {
			t.Errorf("%d: %d, %v: taken by the deadline of a lease that was drained", n, left, ok)
		}
		if got := b.Tokens(); got != 5 {
			t.Errorf("%d: the next lease has %d tokens, want 5", n, got)
		}
	}
}

func TestDrainThenShorterLease(t *testing.T) {
	var b balance.Balance
	b.Install(200, 1000)
	if n := b.Drain(); n != 200 {
		t.Errorf("drained %d, want 200", n)
	}
	b.Install(100, 60)
	if left, deadline, sure := b.TakeOne(59); left != 99 || deadline != 60 || !sure {
		t.Errorf("before its end: %d, %d, %v", left, deadline, sure)
	}
	if _, _, sure := b.TakeOne(60); sure {
		t.Error("sure at the end of the shorter lease")
	}
	if left, ok := b.Take(1, at(60)); ok || left != -1 {
		t.Errorf("%d, %v: taken after the end of the shorter lease", left, ok)
	}
	if n := b.Held(59); n != 97 {
		t.Errorf("%d held, want 97", n)
	}
	if n := b.Held(60); n != 0 {
		t.Errorf("%d held after the end of the shorter lease", n)
	}
}

// Who looks before the first lease comes, and goes on after it came, takes nothing, or else its first tokens would be
// void by a deadline that was not there: they would be lost, and with a lease of one token the caller be denied.
func TestFirstTokensAreNotLost(t *testing.T) {
	var b balance.Balance
	left, deadline, sure := b.TakeOne(0)
	b.Install(1, 100)
	if sure {
		t.Fatal("sure without a lease")
	}
	if left, ok := b.Confirm(1, left, deadline, at(50)); ok || left != 0 {
		t.Errorf("%d, %v, want nothing taken and nothing lost", left, ok)
	}
	if left, ok := one(&b, 0, at(50)); !ok || left != 0 {
		t.Errorf("%d, %v: the token that came meanwhile is not there", left, ok)
	}

	// Between the two looks of a take nothing can be played, so it is tried.
	for name, take := range map[string]func(*balance.Balance) (int64, bool){
		"Take":    func(b *balance.Balance) (int64, bool) { return b.Take(1, at(50)) },
		"TakeOne": func(b *balance.Balance) (int64, bool) { return one(b, 50, at(50)) },
	} {
		bs := make([]balance.Balance, 4000)
		var reached atomic.Int64 // by the taker, who begins before the lease comes
		var wg sync.WaitGroup
		wg.Go(func() {
			defer reached.Store(math.MaxInt64)
			failed := 0
			for i := range bs {
				if failed > enoughFailed {
					return
				}
				reached.Store(int64(i))
				for {
					left, ok := take(&bs[i])
					if left < 0 {
						t.Errorf("%s: the first token of lease %d is lost", name, i)
					}
					if ok || left < 0 {
						break
					}
					if failed++; failed%1000 == 0 {
						runtime.Gosched()
					}
					if failed > maxFailed {
						t.Errorf("%s: the first token of lease %d does not come", name, i)
						return
					}
				}
			}
		})
		waits := patience
		for i := range bs {
			await(&reached, int64(i), &waits)
			bs[i].Install(1, 100)
		}
		wg.Wait()
	}
}

// patience is how often somebody looks whether the other is there, in all rounds of a test. On a busy machine the other
// may be long in coming; the rounds that remain then go on without it, and show little.
const patience = 1_000_000

// await waits until the other has reached round i.
func await(reached *atomic.Int64, i int64, patience *int) {
	for ; reached.Load() < i && *patience > 0; *patience-- {
		if *patience%100 == 0 {
			runtime.Gosched()
		}
	}
}

// A test in which one takes until the other has put something there fails after maxFailed takes in vain, and is content
// with what it has seen after enoughFailed: on a busy machine the other may be long in coming.
const (
	enoughFailed = 500_000
	maxFailed    = 50_000_000
)

// While one lease ends and the next one comes, a token of the one must not pass by the deadline of the other: neither is
// one spent that has ended, nor do more get lost of the new lease than the one that a taker was about to take.
func TestNextLeaseWhileOthersTake(t *testing.T) {
	const tokens, end, now, nextEnd = 1000, 10, 50, 100
	takeOne := func(b *balance.Balance) (left, deadline int64, ok bool) { return b.TakeOne(now) }
	take := func(b *balance.Balance) (left, deadline int64, ok bool) {
		left, ok = b.Take(1, at(now)) // -1 if it is lost
		return left, 0, ok
	}
	for _, c := range []struct {
		what    string
		take    func(*balance.Balance) (left, deadline int64, ok bool)
		drained bool // the one that ended had many tokens yet, and is drained; else it had none
	}{
		{"TakeOne, drained", takeOne, true},
		{"Take, drained", take, true},
		{"TakeOne, renewed", takeOne, false},
		{"Take, renewed", take, false},
	} {
		bs := make([]balance.Balance, 3000)
		spent := make([]bool, len(bs))
		lost := make([]int, len(bs)) // of the new lease, if the old one had none
		for i := range bs {
			if bs[i].Install(0, end); c.drained {
				bs[i].Install(1<<40, end)
			}
		}
		var reached atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			defer reached.Store(math.MaxInt64)
			failed := 0
			for i := range bs {
				if failed > enoughFailed {
					return
				}
				reached.Store(int64(i))
				for {
					left, deadline, ok := c.take(&bs[i])
					if ok {
						spent[i] = true
						break
					}
					if left >= 0 && deadline == end || left == -1 && deadline == 0 {
						lost[i]++
					}
					if failed++; failed%1000 == 0 {
						runtime.Gosched()
					}
					if failed > maxFailed {
						t.Errorf("%s: lease %d does not come", c.what, i)
						return
					}
				}
			}
		})
		waits := patience
		for i := range bs {
			await(&reached, int64(i), &waits)
			spin(i % 50)
			if c.drained {
				bs[i].Drain()
			}
			bs[i].Install(tokens, nextEnd)
		}
		wg.Wait()
		for i := range bs {
			// If one was spent, one of this lease is missing.
			if left := bs[i].Tokens(); spent[i] && left >= tokens {
				t.Errorf("%s: a token of a lease that had ended was spent", c.what)
				break
			}
			if !c.drained && lost[i] > 1 {
				t.Errorf("%s: %d tokens of the new lease were lost", c.what, lost[i])
				break
			}
		}
	}
}

// Tokens that failed takes have gone below zero for are owed to nobody, neither when more come nor when the balance is
// drained.
func TestBalanceFailedTakesOweNothing(t *testing.T) {
	const takers = 8
	for range 2000 {
		var b balance.Balance
		b.Install(1, 100)
		var spent atomic.Int64
		var wg sync.WaitGroup
		for range takers {
			wg.Go(func() {
				if _, ok := b.Take(1, at(0)); ok {
					spent.Add(1)
				}
			})
		}
		wg.Go(func() { b.Install(2, 100) })
		wg.Wait()
		if left := b.Drain(); spent.Load()+left != 3 {
			t.Fatalf("%d spent and %d left of 3", spent.Load(), left)
		}
	}
}

// Whatever order takes, drains and installs come in, every token is spent once, drained once, or found too late once.
// What could go wrong takes a few nanoseconds, so it is tried often: a failed take that is put back after a drain, an
// install that pays for failed takes, a drain or a take that is not one step.
func TestBalanceConservesTokens(t *testing.T) {
	const rounds = 60_000
	for _, costs := range [][]int64{{1}, {2}, {1, 1, 2, 3}} {
		var b balance.Balance
		var clock, spent, late atomic.Int64
		var started sync.WaitGroup
		var done atomic.Bool
		var takers sync.WaitGroup
		for _, n := range costs {
			started.Add(1)
			takers.Go(func() {
				started.Done()
				for failed := 0; !done.Load(); {
					switch left, ok := b.Take(n, clock.Load); {
					case ok && left < 0:
						t.Errorf("%d tokens left", left)
						return
					case ok:
						spent.Add(n)
					case left < 0:
						late.Add(-left)
					default:
						if failed++; failed%8 == 0 {
							runtime.Gosched()
						}
					}
				}
			})
		}
		started.Wait()
		var installed, drained int64
		for i := int64(0); i < int64(rounds/len(costs)) || spent.Load() == 0; i++ {
			n := 1 + i%4
			installed += n
			b.Install(n, clock.Load()+10)
			switch i % 16 {
			case 3:
				clock.Add(10) // the lease ends
			case 5:
				runtime.Gosched()
			case 9:
			default:
				drained += b.Drain()
			}
			if i%3 == 0 {
				drained += b.Drain()
			}
		}
		done.Store(true)
		takers.Wait()
		drained += b.Drain()
		if got := spent.Load() + late.Load() + drained; got != installed {
			t.Errorf("%v: %d tokens came in, %d went: %d spent, %d late, %d drained",
				costs, installed, got, spent.Load(), late.Load(), drained)
		}
	}
}
