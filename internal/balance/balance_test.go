package balance_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hybridlimit/hybrid/internal/balance"
)

func at(now int64) func() int64 { return func() int64 { return now } }

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
	rounds := int64(400_000)
	if testing.Short() {
		rounds /= 4
	}
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
		for i := int64(0); i < rounds/int64(len(costs)) || spent.Load() == 0; i++ {
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
