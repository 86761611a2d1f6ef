package balance_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/hybridlimit/hybrid/internal/balance"
)

// share is what a stripe is filled with.
const share = 63

// enough is how many tokens it takes for stripes; their number depends on the machine.
func enough(t *testing.T) int64 {
	t.Helper()
	var b balance.Balance
	return enoughFor(split(t, &b, 1<<40))
}

func enoughFor(s balance.Stripes) int64 { return int64(4 * 64 * len(s)) }

// split installs tokens until 100 and makes stripes.
func split(t *testing.T, b *balance.Balance, tokens int64) balance.Stripes {
	t.Helper()
	b.Install(tokens, 100)
	b.Split()
	s := b.Stripes()
	if s == nil {
		t.Fatalf("no stripes for %d tokens", tokens)
	}
	return *s
}

// empty takes what is in a stripe.
func empty(b *balance.Balance, s *balance.Stripe) (tokens int64) {
	for tokens < 1000 {
		if left, _, _ := b.TakeFrom(s, 0); left < 0 {
			break
		}
		tokens++
	}
	return tokens
}

// Takes on different CPUs must not share a cache line, and CPUs fetch lines in pairs.
func TestLayout(t *testing.T) {
	if n := unsafe.Sizeof(balance.Stripe{}); n != 128 {
		t.Errorf("a stripe has %d bytes, want 128", n)
	}
	if n := unsafe.Sizeof(balance.Balance{}); n > 40 {
		t.Errorf("a balance has %d bytes, want at most 40", n)
	}
}

func TestSplitOnlyWithEnoughTokens(t *testing.T) {
	need := enough(t)
	var b balance.Balance
	b.Split()
	if b.Stripes() != nil {
		t.Error("stripes without a lease")
	}
	b.Install(need-1, 100)
	b.Split()
	if b.Stripes() != nil {
		t.Errorf("stripes for %d tokens, want them from %d on", need-1, need)
	}
	s := split(t, &b, 1)
	if n := len(s); n < 8 || n < min(256, runtime.GOMAXPROCS(0)) || n > 1024 {
		t.Errorf("%d stripes for %d CPUs", n, runtime.GOMAXPROCS(0))
	}
	for i := range s {
		if n := empty(&b, &s[i]); n != 0 {
			t.Errorf("a new stripe holds %d tokens", n)
		}
	}
	if n := b.Tokens(); n != need {
		t.Errorf("%d tokens, want %d", n, need)
	}
	there := b.Stripes()
	b.Split()
	if b.Stripes() != there {
		t.Error("split again, though there are stripes; what is in them would be lost")
	}
	if left, ok := b.Take(need, at(0)); !ok || left != 0 {
		t.Errorf("%d, %v: the tokens are not in one place", left, ok)
	}
}

func TestNotContendedAlone(t *testing.T) {
	var b balance.Balance
	b.Install(1<<20, 100)
	for range 1000 {
		b.TakeOne(0)
		if b.Contended() {
			t.Fatal("takes that do not meet count as contention")
		}
	}
}

// Goroutines get different stripes, nearly one for each.
func TestMineIsSpread(t *testing.T) {
	var b balance.Balance
	s := split(t, &b, 1<<40)
	var mu sync.Mutex
	seen := map[*balance.Stripe]bool{}
	var all, ready sync.WaitGroup
	ready.Add(len(s))
	for range len(s) {
		all.Go(func() {
			mine := s.Mine()
			mu.Lock()
			seen[mine] = true
			mu.Unlock()
			ready.Done()
			ready.Wait() // until then its stack is nobody else's
		})
	}
	all.Wait()
	// Thrown at random, they would hit 63% of the stripes.
	if len(seen) < len(s)/3 {
		t.Errorf("%d goroutines got only %d stripes", len(s), len(seen))
	}
	for i := range s {
		delete(seen, &s[i])
	}
	if len(seen) > 0 {
		t.Error("a stripe that is not of the set")
	}
}

func TestSpread(t *testing.T) {
	var b balance.Balance
	need := enough(t)
	s := split(t, &b, need+5*share)
	total := need + 5*share
	tokens := func(want int64) {
		t.Helper()
		if n := b.Tokens(); n != want {
			t.Errorf("%d tokens, want %d", n, want)
		}
		if n := b.Held(99); n != want {
			t.Errorf("%d held, want %d", n, want)
		}
		if n := b.Held(100); n != 0 {
			t.Errorf("%d held after the deadline", n)
		}
	}

	if left, deadline, sure := b.TakeFrom(&s[0], 0); left != -1 || deadline != 100 || sure {
		t.Errorf("from an empty stripe: %d, %d, %v", left, deadline, sure)
	}
	tokens(total)
	b.Spread(&s[0])
	tokens(total)
	b.Spread(&s[0]) // somebody else was first
	tokens(total)
	// What is left counts the tokens of the balance as well, but not those of other stripes.
	b.Spread(&s[1])
	if left, deadline, sure := b.TakeFrom(&s[0], 99); left != total-share-1 || deadline != 100 || !sure {
		t.Errorf("%d, %d, %v, want %d, 100, true", left, deadline, sure, total-share-1)
	}
	tokens(total - 1)
	b.Spread(&s[0]) // one is missing, which is not empty
	tokens(total - 1)
	if n := empty(&b, &s[0]); n != share-1 {
		t.Errorf("the stripe had %d tokens left, want %d", n, share-1)
	}
	total -= share

	// However often it was tried in vain, an empty stripe is filled by 63.
	for range 70 {
		b.TakeFrom(&s[0], 0)
	}
	tokens(total)
	b.Spread(&s[0])
	tokens(total)
	if n := empty(&b, &s[0]); n != share {
		t.Errorf("the stripe was filled with %d tokens, want %d", n, share)
	}
	total -= share

	// With exactly enough in the balance a stripe is filled; then they run low and are gathered.
	b.Spread(&s[2])
	b.Spread(&s[3])
	if n := total - 3*share; n != need { // stripes 1, 2 and 3 are full
		t.Fatalf("there are %d tokens outside of stripes, want %d", n, need)
	}
	b.Spread(&s[4])
	if b.Stripes() == nil {
		t.Fatalf("gathered with %d tokens", need)
	}
	tokens(total)
	b.Spread(&s[5])
	if b.Stripes() != nil {
		t.Errorf("there are stripes yet, with %d tokens", need-share)
	}
	tokens(total)
	if left, ok := b.Take(total, at(0)); !ok || left != 0 {
		t.Errorf("%d, %v: not all %d tokens were gathered", left, ok, total)
	}
	tokens(0)
}

func TestGather(t *testing.T) {
	var b balance.Balance
	b.Gather() // nothing
	total := int64(1 << 20)
	s := split(t, &b, total)
	for i := range s {
		b.Spread(&s[i])
		for range i % (share + 4) { // also from empty ones
			if left, _, _ := b.TakeFrom(&s[i], 0); left >= 0 {
				total--
			}
		}
	}
	b.Gather()
	if b.Stripes() != nil {
		t.Error("there are stripes yet")
	}
	if n := b.Tokens(); n != total {
		t.Errorf("%d tokens, want %d", n, total)
	}
	if left, ok := b.Take(total, at(0)); !ok || left != 0 {
		t.Errorf("%d, %v: the tokens are not in one place", left, ok)
	}

	// What single takes owe is not taken out of what is gathered.
	b = balance.Balance{}
	s = split(t, &b, 1<<20)
	b.Spread(&s[0])
	b.Take(1<<20-share, at(0))
	for range 10 {
		b.TakeOne(0)
	}
	b.Gather()
	if n := b.Drain(); n != share {
		t.Errorf("gathered %d tokens, want %d", n, share)
	}
}

func TestDrainTakesStripesAlong(t *testing.T) {
	var b balance.Balance
	total := int64(1 << 20)
	s := split(t, &b, total)
	for i := range s {
		b.Spread(&s[i])
	}
	total -= empty(&b, &s[0])
	b.TakeFrom(&s[1], 0)
	if n := b.Drain(); n != total-1 {
		t.Errorf("drained %d tokens, want %d", n, total-1)
	}
	if b.Stripes() != nil || b.Tokens() != 0 || b.Drain() != 0 {
		t.Errorf("something is left: %d tokens", b.Tokens())
	}
}

// A stripe of a set that is given up stays empty, or what is put there would be lost: nobody gathers it. A goroutine may
// have found it long ago.
func TestDeadStripe(t *testing.T) {
	const total = 1 << 20
	for name, kill := range map[string]func(*balance.Balance){
		"gathered":             func(b *balance.Balance) { b.Gather() },
		"drained":              func(b *balance.Balance) { b.Drain(); b.Install(total, 1000) },
		"gathered, then split": func(b *balance.Balance) { b.Gather(); b.Split() },
		"drained, then split":  func(b *balance.Balance) { b.Drain(); b.Install(total, 1000); b.Split() },
	} {
		var b balance.Balance
		old := split(t, &b, total)
		for i := range old {
			b.Spread(&old[i])
		}
		kill(&b)
		now := b.Stripes()
		for i := range old {
			for range 2 {
				left, deadline, sure := b.TakeFrom(&old[i], 0)
				if left >= 0 || sure {
					t.Fatalf("%s: a dead stripe has a token: %d, %v", name, left, sure)
				}
				if left, ok := b.Confirm(1, left, deadline, never(t)); left != 0 || ok {
					t.Fatalf("%s: a token of a dead stripe is confirmed or lost: %d, %v", name, left, ok)
				}
				b.Spread(&old[i])
				if b.Stripes() != now {
					t.Fatalf("%s: a dead stripe changes the stripes", name)
				}
				if n := b.Tokens(); n != total {
					t.Fatalf("%s: a dead stripe makes %d tokens of %d", name, n, total)
				}
			}
		}
		if now == nil {
			continue
		}
		for i := range *now {
			if n := empty(&b, &(*now)[i]); n != 0 {
				t.Fatalf("%s: a stripe has %d tokens that were meant for a dead one", name, n)
			}
		}
	}

	// Also when few tokens are left: a dead stripe is no reason to gather those of others.
	var b balance.Balance
	old := split(t, &b, total)
	b.Gather()
	b.Split()
	s := b.Stripes()
	b.Spread(&(*s)[0])
	b.Take(total-share-1, at(0))
	b.Spread(&old[0])
	if b.Stripes() != s {
		t.Error("a dead stripe had the others gathered")
	}
	if n := b.Tokens(); n != share+1 {
		t.Errorf("%d tokens, want %d", n, share+1)
	}
}

// A stripe without a lease is not taken from, so that nobody who looked before it came loses a token of it.
func TestTakeFromWithoutALease(t *testing.T) {
	var b balance.Balance
	old := split(t, &b, 1<<20)
	b.Spread(&old[0])
	b.Drain()
	for _, about := range []int64{0, 99, math.MaxInt64} {
		if left, deadline, sure := b.TakeFrom(&old[0], about); left != -1 || deadline != 0 || sure {
			t.Errorf("at %d: %d, %d, %v", about, left, deadline, sure)
		}
	}
}

func TestTakeFromIsSureBeforeTheDeadline(t *testing.T) {
	var b balance.Balance
	s := split(t, &b, 1<<20)
	b.Spread(&s[0])
	tokens := b.Tokens()
	for _, c := range []struct {
		about int64
		sure  bool
	}{{0, true}, {99, true}, {100, false}, {101, false}, {math.MaxInt64, false}} {
		left, deadline, sure := b.TakeFrom(&s[0], c.about)
		tokens--
		if left != tokens || deadline != 100 || sure != c.sure {
			t.Errorf("at %d: %d, %d, %v, want %d, 100, %v", c.about, left, deadline, sure, tokens, c.sure)
		}
		for _, now := range []int64{99, 100} {
			want, ok := left, now < 100
			if !ok {
				want = -1
			}
			if got, gotOK := b.Confirm(1, left, deadline, at(now)); got != want || gotOK != ok {
				t.Errorf("looked at at %d: %d, %v, want %d, %v", now, got, gotOK, want, ok)
			}
		}
	}
}

// While the time that takes go by stands still, each stripe yields no more than 63 tokens of a lease that has ended. Then
// the balance is asked, and that looks at the clock.
func TestStandingClockEndsWithin63TakesOfAStripe(t *testing.T) {
	var b balance.Balance
	s := split(t, &b, 1<<20)
	for i := range s {
		b.Spread(&s[i])
	}
	about, late := int64(50), 0
	for range share + 1 {
		for i := range s {
			left, deadline, sure := b.TakeFrom(&s[i], about)
			if sure {
				late++
				continue
			}
			if left >= 0 {
				t.Fatal("not sure of a token while the clock stands still")
			}
			// As the owner does it.
			b.Spread(&s[i])
			if left, ok := b.Confirm(1, left, deadline, never(t)); ok || left != 0 {
				t.Fatalf("%d, %v: a token of an empty stripe", left, ok)
			}
			if left, ok := b.Take(1, func() int64 { about = 150; return about }); ok || left != -1 {
				t.Fatalf("%d, %v: a token was confirmed after the deadline", left, ok)
			}
		}
	}
	if want := share * len(s); late != want {
		t.Errorf("%d tokens were taken after the deadline, want %d, 63 for each stripe", late, want)
	}
	for i := range s {
		if _, _, sure := b.TakeFrom(&s[i], about); sure {
			t.Error("sure of a token after somebody looked at the clock")
		}
	}
}

// meet starts two things as nearly at once as can be. The delay shifts them against each other.
func meet(here *atomic.Int32, patience *int, delay int) {
	here.Add(1)
	for here.Load() < 2 && *patience > 0 {
		*patience--
	}
	spin(delay)
}

// spin passes a little time.
func spin(n int) {
	var x atomic.Int32
	for range n {
		x.Add(1)
	}
}

// While a stripe is filled, or all are gathered, somebody takes several tokens, or all: there are never more than came
// in. What can go wrong is between two loads of a word, so it is tried often.
func TestSpreadAndTakeSeveral(t *testing.T) {
	need := enough(t)
	for name, c := range map[string]struct {
		tokens, cost int64
		gather       bool
	}{
		"all":         {need, need, false},
		"all but few": {need, need - 20, false},
		"half":        {need + share, need / 2, false},
		"gather":      {need + share, need, true},
	} {
		t.Run(name, func(t *testing.T) {
			const rounds = 1500
			bs := make([]balance.Balance, rounds)
			here := make([]atomic.Int32, rounds)
			spent := make([]int64, rounds)
			for i := range bs {
				split(t, &bs[i], c.tokens)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				waits := patience
				for i := range bs {
					meet(&here[i], &waits, i%16)
					if _, ok := bs[i].Take(c.cost, at(0)); ok {
						spent[i] = c.cost
					}
				}
			})
			waits := patience
			for i := range bs {
				b := &bs[i]
				s := &(*b.Stripes())[0]
				meet(&here[i], &waits, i/16%16)
				b.Spread(s)
				if c.gather {
					b.Gather()
				}
			}
			wg.Wait()
			for i := range bs {
				if left := bs[i].Drain(); spent[i]+left != c.tokens {
					t.Fatalf("%d tokens were spent and %d are left of %d", spent[i], left, c.tokens)
				}
			}
		})
	}
}

// While stripes are drained or gathered, somebody takes from them: each token is seen in one place.
func TestGatherAndTakeFrom(t *testing.T) {
	need := enough(t)
	for name, gather := range map[string]func(*balance.Balance){
		"gather": func(b *balance.Balance) { b.Gather() },
		"drain":  func(*balance.Balance) {}, // as all do in the end
	} {
		bs := make([]balance.Balance, 1500)
		here := make([]atomic.Int32, len(bs))
		spent, left := make([]int64, len(bs)), make([]int64, len(bs))
		stripes := make([]*balance.Stripe, len(bs))
		for i := range bs {
			s := split(t, &bs[i], need)
			stripes[i] = &s[0]
			bs[i].Spread(&s[0])
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			waits := patience
			for i := range bs {
				meet(&here[i], &waits, 0)
				spent[i] = empty(&bs[i], stripes[i])
			}
		})
		waits := patience
		for i := range bs {
			meet(&here[i], &waits, i%64)
			gather(&bs[i])
			left[i] = bs[i].Drain()
		}
		wg.Wait()
		for i := range bs {
			if spent[i]+left[i] != need {
				t.Errorf("%s: %d tokens were spent and %d drained of %d", name, spent[i], left[i], need)
				break
			}
		}
	}
}

// Several come for an empty stripe at once, and one of them fills it: who came in vain puts nothing back.
func TestSpreadAndTakeFrom(t *testing.T) {
	need := enough(t)
	bs := make([]balance.Balance, 1500)
	here := make([]atomic.Int32, len(bs))
	spent := make([]int64, len(bs))
	for i := range bs {
		split(t, &bs[i], need)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		waits := patience
		for i := range bs {
			s := &(*bs[i].Stripes())[0]
			meet(&here[i], &waits, i%16)
			for range 8 {
				if left, _, _ := bs[i].TakeFrom(s, 0); left >= 0 {
					spent[i]++
				}
			}
		}
	})
	waits := patience
	for i := range bs {
		s := &(*bs[i].Stripes())[0]
		meet(&here[i], &waits, i/16%16)
		bs[i].Spread(s)
	}
	wg.Wait()
	for i := range bs {
		if left := bs[i].Drain(); spent[i]+left != need {
			t.Fatalf("%d tokens were spent and %d are left of %d", spent[i], left, need)
		}
	}
}

// owner does with a balance what the owner does: what moves tokens excludes each other, and takes come at any time.
type owner struct {
	balance.Balance
	mu    sync.Mutex
	clock atomic.Int64
	about atomic.Int64 // the clock as the janitor left it

	spent, late       atomic.Int64
	installed, drains int64 // guarded by mu
	crowd             bool  // all take from the same stripe
}

func (o *owner) took(n, left int64, ok bool) bool {
	switch {
	case ok:
		o.spent.Add(n)
	case left < 0:
		o.late.Add(-left)
	}
	return ok
}

// takeOne is one token, from a stripe if there are any. The time is looked at before.
func (o *owner) takeOne() bool {
	about := o.about.Load()
	if s := o.Stripes(); s != nil {
		mine := s.Mine()
		if o.crowd {
			mine = &(*s)[0]
		}
		left, deadline, sure := o.TakeFrom(mine, about)
		if sure {
			return o.took(1, left, true)
		}
		if left < 0 {
			o.mu.Lock()
			o.Spread(mine)
			o.mu.Unlock()
		}
		left, ok := o.Confirm(1, left, deadline, o.clock.Load)
		return o.took(1, left, ok) || o.take(1)
	}
	left, ok := one(&o.Balance, about, o.clock.Load)
	return o.took(1, left, ok) || o.take(1)
}

func (o *owner) take(n int64) bool {
	left, ok := o.Take(n, o.clock.Load)
	if !ok && o.Stripes() != nil {
		o.took(n, left, false)
		o.mu.Lock()
		o.Gather()
		o.mu.Unlock()
		left, ok = o.Take(n, o.clock.Load)
	}
	return o.took(n, left, ok)
}

// count checks, under the lock, that Tokens is between what there is when it begins and when it ends. pending is how many
// tokens may have been taken and not been counted yet.
func (o *owner) count(t *testing.T, pending int64) {
	before := o.installed - o.drains - o.spent.Load() - o.late.Load()
	n := o.Tokens()
	after := o.installed - o.drains - o.spent.Load() - o.late.Load()
	if n > before {
		t.Errorf("there are %d tokens of %d: some came out of nothing", n, before)
	}
	if n < after-pending {
		t.Errorf("there are %d tokens, and should be %d at least", n, after-pending)
	}
}

// Whatever comes in whatever order, every token is spent once, drained once, or found too late once.
func TestStripesConserveTokens(t *testing.T) {
	need := enough(t)
	for name, costs := range map[string][]int64{
		"single":  {1, 1, 1},
		"crowd":   {1, 1, 1},
		"mixed":   {1, 1, 3},
		"several": {1, 70, need / 2},
	} {
		t.Run(name, func(t *testing.T) {
			const rounds = 300
			o := owner{crowd: name == "crowd"}
			var done atomic.Bool
			var takers sync.WaitGroup
			pending := int64(0)
			for _, n := range costs {
				pending += n
				takers.Go(func() {
					for failed := 0; !done.Load(); {
						ok := false
						if n == 1 {
							ok = o.takeOne()
						} else {
							ok = o.take(n)
						}
						if !ok {
							if failed++; failed%8 == 0 {
								runtime.Gosched()
							}
						}
					}
				})
			}
			rng := rand.New(rand.NewPCG(7, 8))
			splits := 0
			for i := range rounds {
				o.mu.Lock()
				switch rng.IntN(10) {
				case 0:
					o.drains += o.Drain()
				case 1:
					o.Gather()
				case 2: // the lease ends
					o.clock.Add(10)
					o.about.Store(o.clock.Load())
				case 3, 4, 5: // and ended while the janitor slept, some rounds ago
					o.clock.Add(1)
				default:
					n := need + rng.Int64N(2*need)
					o.installed += n
					o.Install(n, o.clock.Load()+1+rng.Int64N(20))
				}
				if o.Split(); o.Stripes() != nil {
					splits++
				}
				o.count(t, pending)
				o.mu.Unlock()
				if t.Failed() {
					break
				}
				if i%2 == 0 {
					runtime.Gosched()
				}
			}
			done.Store(true)
			takers.Wait()
			o.count(t, 0) // nothing is under way: exactly
			o.drains += o.Drain()
			if got := o.spent.Load() + o.late.Load() + o.drains; got != o.installed {
				t.Errorf("%d tokens came in, %d went: %d spent, %d late, %d drained",
					o.installed, got, o.spent.Load(), o.late.Load(), o.drains)
			}
			if splits == 0 {
				t.Error("there were no stripes")
			}
			t.Logf("%d spent, %d late, %d drained, stripes in %d of %d rounds", o.spent.Load(), o.late.Load(), o.drains, splits, rounds)
		})
	}
}
