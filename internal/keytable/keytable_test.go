package keytable_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hybridlimit/hybrid/internal/keytable"
)

// value is added once at most, so it has one life: from Add to Evicted.
type value struct {
	key     string
	used    atomic.Bool
	always  bool // used, whenever it is asked
	asked   atomic.Int32
	evicted atomic.Int32
	gone    func(*value) // called by Evicted, may be nil
}

func (v *value) Key() string { return v.key }

func (v *value) Used() bool {
	v.asked.Add(1)
	if v.asked.Load() > 1000 {
		return false // the table does not come to an end: let it, the test counts
	}
	return v.used.Swap(false) || v.always
}

func (v *value) Evicted() {
	v.evicted.Add(1)
	if v.gone != nil {
		v.gone(v)
	}
}

type table = keytable.Table[*value]

// newTable makes a table of values with these keys, added in this order.
func newTable(max int, keys ...string) (*table, []*value) {
	t := keytable.New[*value](max)
	vs := make([]*value, len(keys))
	for i, k := range keys {
		vs[i] = &value{key: k}
		t.Add(vs[i])
	}
	return t, vs
}

func numbers(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	return keys
}

// wantEvicted checks that these values are forgotten, and the others are there.
func wantEvicted(t *testing.T, tab *table, vs []*value, evicted ...int) {
	t.Helper()
	for i, v := range vs {
		want := slices.Contains(evicted, i)
		got, ok := tab.Get(v.key)
		if here := ok && got == v; here == want {
			t.Errorf("%q is there: %v, want %v", v.key, here, !want)
		}
		if n := v.evicted.Load(); want && n != 1 || !want && n != 0 {
			t.Errorf("%q was told %d times that it is forgotten; it is: %v", v.key, n, want)
		}
	}
	check(t, tab, -1)
}

// check compares the map with the lists; want is how many values there should be, or below 0 for any number.
func check(t *testing.T, tab *table, want int) {
	t.Helper()
	n, err := tab.Check()
	if err != nil {
		t.Error(err)
		return
	}
	if got := tab.Len(); got != n {
		t.Errorf("Len is %d, there are %d values", got, n)
	}
	if want >= 0 && n != want {
		t.Errorf("there are %d values, want %d", n, want)
	}
}

func TestAddReturnsTheOneThatIsThere(t *testing.T) {
	tab, vs := newTable(10, "a")
	if v, ok := tab.Get("b"); ok || v != nil {
		t.Errorf("a key that was not added has %v, %v", v, ok)
	}
	second := &value{key: "a"}
	if got := tab.Add(second); got != vs[0] {
		t.Error("the second value took the place of the first")
	}
	if got := tab.Add(vs[0]); got != vs[0] {
		t.Error("a value that is there was not found when it was added again")
	}
	tab.Touch(second) // is not in the table, though its key is
	wantEvicted(t, tab, vs)
	if second.evicted.Load() != 0 {
		t.Error("a value that was never in the table was forgotten")
	}
	check(t, tab, 1)
}

// All who add a value under one key at the same time get the same.
func TestAddAtOnce(t *testing.T) {
	const callers = 4
	tab := keytable.New[*value](1000)
	keys := numbers(2000) // half of them push out others meanwhile
	got := make([][]*value, callers)
	var wg sync.WaitGroup
	var ready atomic.Int32
	for c := range callers {
		got[c] = make([]*value, len(keys))
		wg.Go(func() {
			for i, k := range keys {
				// All start with a key at once, or they would seldom meet.
				for ready.Add(1); ready.Load() < int32(callers*(i+1)); {
					runtime.Gosched()
				}
				got[c][i] = tab.Add(&value{key: k})
			}
		})
	}
	wg.Wait()
	for i, k := range keys {
		for c := range callers {
			if got[c][i] != got[0][i] {
				t.Fatalf("two callers got different values of %q", k)
			}
		}
	}
	check(t, tab, 1000)
}

// sizes of tables: of one shard, of few and not evenly divided, of the most.
var sizes = []int{1, 2, 3, 1000, 5003, 65_536}

// One caller knows at every step what should be there.
func TestBound(t *testing.T) {
	for _, max := range sizes {
		t.Run(strconv.Itoa(max), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(max)))
			tab := keytable.New[*value](max)
			live := map[string]*value{}
			gone := func(v *value) {
				if live[v.key] != v {
					t.Errorf("%q is forgotten and was not there", v.key)
				}
				delete(live, v.key)
				// The one that goes has gone and the new one is not there yet. Were it there, there would have been one
				// too many a moment ago.
				if n := tab.Len(); n >= max {
					t.Errorf("%d values while room is made, want fewer than %d", n, max)
				}
			}
			add := func(key string) {
				there, known := live[key]
				v := &value{key: key, gone: gone}
				got := tab.Add(v)
				if known && got != there || !known && got != v {
					t.Fatalf("%q: Add returned the wrong value", key)
				}
				live[key] = got
			}
			keys := numbers(max + max/5 + 1000)
			for range min(3*max+200, 10_000) {
				k := keys[rng.IntN(len(keys))]
				switch v := live[k]; rng.IntN(4) {
				case 0:
					if v != nil {
						tab.Touch(v)
					}
				case 1:
					if got, ok := tab.Get(k); got != v || ok != (v != nil) {
						t.Fatalf("%q: %v, %v, want %v", k, got, ok, v)
					}
					if v != nil {
						v.used.Store(true)
					}
				default:
					add(k)
				}
				if n := tab.Len(); n != len(live) || n > max {
					t.Fatalf("Len is %d, there are %d values, want at most %d", n, len(live), max)
				}
			}
			// Every shard is full now, whatever its share of the keys is: no room is lost.
			for _, k := range keys {
				add(k)
			}
			check(t, tab, max)
			for v := range tab.All() {
				if live[v.key] != v || v.evicted.Load() != 0 {
					t.Errorf("%q should have been forgotten", v.key)
				}
			}
		})
	}
}

// together is how many values there certainly were at one moment: each has only one life, so those that were there
// before a moment and after it were there in between. (Len adds up numbers that it reads one after the other.)
func together(tab *table) (n int) {
	before := slices.Collect(tab.All())
	for _, v := range before {
		if got, ok := tab.Get(v.key); ok && got == v {
			n++
		}
	}
	return n
}

// Many callers add, touch and use while others look.
func TestBoundWhileManyAdd(t *testing.T) {
	const callers = 3
	for _, max := range sizes {
		t.Run(strconv.Itoa(max), func(t *testing.T) {
			tab := keytable.New[*value](max)
			keys := numbers(max + 1000)
			var done atomic.Bool
			var watchers, adders sync.WaitGroup
			for _, k := range keys[:max] {
				tab.Add(&value{key: k})
			}
			watchers.Go(func() {
				for i := 0; !done.Load(); i++ {
					if n := together(tab); n > max {
						t.Errorf("there were %d values at once, want at most %d", n, max)
						return
					}
					if i%8 != 0 {
						continue // the rest keeps all others waiting
					}
					if _, err := tab.Check(); err != nil {
						t.Error(err)
						return
					}
				}
			})
			added := make([][]*value, callers)
			for c := range callers {
				adders.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(c), uint64(max)))
					for range 2000 {
						k := keys[rng.IntN(len(keys))]
						v := &value{key: k}
						got := tab.Add(v)
						if got.key != k {
							t.Errorf("Add of %q returned the value of %q", k, got.key)
							return
						}
						if got == v {
							added[c] = append(added[c], v)
						}
						switch rng.IntN(3) {
						case 0:
							tab.Touch(got)
						case 1:
							got.used.Store(true)
						}
					}
				})
			}
			adders.Wait()
			done.Store(true)
			watchers.Wait()
			check(t, tab, -1)
			for _, v := range slices.Concat(added...) {
				got, ok := tab.Get(v.key)
				want := int32(1)
				if ok && got == v {
					want = 0
				}
				if n := v.evicted.Load(); n != want {
					t.Fatalf("%q was told %d times that it is forgotten, want %d", v.key, n, want)
				}
			}
		})
	}
}

func TestLeastRecentlyTouchedGoesFirst(t *testing.T) {
	tab, vs := newTable(4, "a", "b", "c", "d")
	add := func(key string) {
		vs = append(vs, &value{key: key})
		tab.Add(vs[len(vs)-1])
	}
	tab.Touch(vs[0])
	tab.Get("b") // does not count
	add("e")
	wantEvicted(t, tab, vs, 1)
	tab.Touch(vs[2])
	add("f")
	wantEvicted(t, tab, vs, 1, 3)
	tab.Add(&value{key: "a"}) // nor does this
	add("g")
	wantEvicted(t, tab, vs, 1, 3, 0)
}

// When nothing is used between touches, the table is an LRU.
func TestTouchedOnlyIsTrueLRU(t *testing.T) {
	for _, max := range []int{1, 2, 10, 300} {
		rng := rand.New(rand.NewPCG(2, uint64(max)))
		var got, want []string
		tab := keytable.New[*value](max)
		model, err := simplelru.NewLRU(max, func(k string, _ *value) { want = append(want, k) })
		if err != nil {
			t.Fatal(err)
		}
		for range 20 * max {
			k := strconv.Itoa(rng.IntN(2 * max))
			if v, ok := model.Get(k); ok {
				tab.Touch(v)
				continue
			}
			v := &value{key: k, gone: func(v *value) { got = append(got, v.key) }}
			model.Add(k, v)
			tab.Add(v)
		}
		if !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("%d: forgotten in another order than by a true LRU: %d and %d values", max, len(got), len(want))
		}
	}
}

func TestUsedValuesGetASecondChance(t *testing.T) {
	tab, vs := newTable(4, "a", "b", "c", "d")
	add := func() {
		vs = append(vs, &value{key: "new" + strconv.Itoa(len(vs))})
		tab.Add(vs[len(vs)-1])
	}
	vs[0].used.Store(true)
	vs[1].used.Store(true)
	add() // c d a b
	wantEvicted(t, tab, vs, 2)
	add() // d a b new: a and b have become newer than d
	wantEvicted(t, tab, vs, 2, 3)
	add() // a b new new: that they were used is forgotten
	wantEvicted(t, tab, vs, 2, 3, 0)
	vs[1].used.Store(true)
	add() // and counts again if they are used again
	wantEvicted(t, tab, vs, 2, 3, 0, 4)
}

// What was used before a touch is no reason for a second chance after it.
func TestTouchTakesNoteOfUse(t *testing.T) {
	tab, vs := newTable(2, "a", "b")
	vs[0].used.Store(true)
	tab.Touch(vs[0])
	tab.Touch(vs[1])
	tab.Add(&value{key: "c"})
	wantEvicted(t, tab, vs, 0)
}

// An eviction does not look for something unused for ever, and not through the whole table.
func TestEvictionEndsIfAllAreUsed(t *testing.T) {
	asked := func(vs []*value) (n int) {
		for _, v := range vs {
			n += int(v.asked.Swap(0))
		}
		return n
	}
	tab, vs := newTable(30, numbers(30)...)
	for _, v := range vs {
		v.used.Store(true)
	}
	for i := range 3 {
		tab.Add(&value{key: fmt.Sprint("new", i)})
		if n := asked(vs); n != keytable.Chances {
			t.Errorf("%d values were looked at, want %d", n, keytable.Chances)
		}
	}
	// Each spared eight and took the ninth.
	wantEvicted(t, tab, vs, 8, 17, 26)

	// Values that are used again before they are looked at again, however often, in tables that are smaller than the
	// number of chances as well.
	for _, max := range []int{1, 2, 3, 7, 8, 9, 100} {
		tab := keytable.New[*value](max)
		var all []*value
		for i := range 3 * max {
			v := &value{key: strconv.Itoa(i), always: true}
			all = append(all, v)
			if got := tab.Add(v); got != v {
				t.Fatalf("%d: the value was not added", max)
			}
			if n := asked(all); n > keytable.Chances {
				t.Errorf("%d: %d values were looked at, want at most %d", max, n, keytable.Chances)
			}
			check(t, tab, min(i+1, max))
		}
	}
}

func TestTouchOfAForgottenValue(t *testing.T) {
	tab, vs := newTable(2, "a", "b", "c")
	wantEvicted(t, tab, vs, 0)
	vs[0].used.Store(true)
	tab.Touch(vs[0])
	wantEvicted(t, tab, vs, 0) // it is not back
	if !vs[0].used.Load() {
		t.Error("a value that is not in the table was asked")
	}
	tab.Touch(&value{key: "b"}) // never was in the table: that of its key is not touched
	tab.Add(&value{key: "d"})
	wantEvicted(t, tab, vs, 0, 1)
}

// A key that was forgotten and comes back has a new value. What is still done with the old one does not concern it.
func TestKeyThatComesBack(t *testing.T) {
	tab, vs := newTable(2, "a", "b", "c") // a is forgotten
	again := &value{key: "a"}
	if got := tab.Add(again); got != again { // and b
		t.Fatal("the forgotten value is still there")
	}
	tab.Add(&value{key: "d"}) // and c: again is the oldest
	tab.Touch(vs[0])
	wantEvicted(t, tab, append(vs, again), 0, 1, 2)
	tab.Add(&value{key: "e"})
	wantEvicted(t, tab, append(vs, again), 0, 1, 2, 3)

	// The old one may come back itself. Then it lives again.
	if got := tab.Add(vs[0]); got != vs[0] {
		t.Fatal("a forgotten value was not added again")
	}
	if got, ok := tab.Get("a"); !ok || got != vs[0] {
		t.Error("it is not there")
	}
	check(t, tab, 2)
}

// All goes on while others add and evict. No key comes twice, and nothing that was not added.
func TestAllWhileOthersAdd(t *testing.T) {
	const max = 3000
	tab := keytable.New[*value](max)
	var running atomic.Int32
	var wg sync.WaitGroup
	for c := range 2 {
		running.Add(1)
		wg.Go(func() {
			defer running.Add(-1)
			rng := rand.New(rand.NewPCG(3, uint64(c)))
			for range 3 * max {
				tab.Add(&value{key: strconv.Itoa(rng.IntN(2 * max))})
			}
		})
	}
	for running.Load() > 0 {
		keys := map[string]bool{}
		for v := range tab.All() {
			if v == nil || keys[v.key] {
				t.Fatalf("%v came twice", v)
			}
			keys[v.key] = true
			if n, err := strconv.Atoi(v.key); err != nil || n >= 2*max {
				t.Fatalf("%q was not added", v.key)
			}
		}
	}
	for range tab.All() {
		break // and all of it need not be read
	}
	wg.Wait()
	check(t, tab, -1)
}

// Values that stay are found by All and by Get at any time, also while the map grows around them.
func TestValuesThatStayAreFound(t *testing.T) {
	const stay, more = 500, 10_000
	tab, vs := newTable(1<<20, numbers(stay)...)
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range more {
			tab.Add(&value{key: fmt.Sprint("more", i)})
		}
		done.Store(true)
	})
	for last := false; !last; {
		last = done.Load()
		found := 0
		for v := range tab.All() {
			if !strings.HasPrefix(v.key, "more") {
				found++
			}
		}
		if found != stay {
			t.Errorf("All has %d values of %d that stay", found, stay)
			break
		}
		for _, v := range vs {
			if got, ok := tab.Get(v.key); !ok || got != v {
				t.Errorf("%q is not found", v.key)
				break
			}
		}
	}
	wg.Wait()
	wantEvicted(t, tab, vs)
	check(t, tab, stay+more)
}

// The owner notes recency only where it does something slow anyway, here at each tenth use of a key. All the same the
// table hits nearly as often as an LRU that knows of every use.
//
// The trace is always the same, but keys fall into other shards in every run.
func TestHitsAsOftenAsTrueLRU(t *testing.T) {
	const keys, uses, slow = 200_000, 150_000, 10
	zipf := rand.NewZipf(rand.New(rand.NewPCG(5, 6)), 1.1, 1, keys-1)
	trace := make([]string, uses)
	names := numbers(keys)
	for i := range trace {
		trace[i] = names[zipf.Uint64()]
	}
	for _, max := range []int{2000, 20_000} {
		model, err := simplelru.NewLRU[string, struct{}](max, nil)
		if err != nil {
			t.Fatal(err)
		}
		tab := keytable.New[*counted](max)
		hits, want := 0, 0
		for _, k := range trace {
			if _, ok := model.Get(k); ok {
				want++
			} else {
				model.Add(k, struct{}{})
			}
			v, ok := tab.Get(k)
			if ok {
				hits++
			} else {
				v = tab.Add(&counted{key: k})
			}
			v.used = true
			if v.uses++; v.uses%slow == 0 {
				tab.Touch(v)
			}
		}
		ratio := float64(hits) / float64(want)
		t.Logf("%d keys of %d: %.1f%% hits, a true LRU %.1f%%, %.4f of it",
			max, keys, 100*float64(hits)/uses, 100*float64(want)/uses, ratio)
		if ratio < 0.97 {
			t.Errorf("%d keys: %d hits, want at least 97%% of %d", max, hits, want)
		}
	}
}

type counted struct {
	key  string
	used bool
	uses int
}

func (c *counted) Key() string { return c.key }

func (c *counted) Used() bool {
	used := c.used
	c.used = false
	return used
}

func (c *counted) Evicted() {}

// Keys come from strangers. Whatever they have in common, they fall evenly into all shards: as many as there is room for
// nearly all fit, and no shard stays empty for long.
func TestHostileKeysFillAllShards(t *testing.T) {
	const max = 8192
	long := strings.Repeat("long/", 200)
	for name, key := range map[string]func(i int) string{
		"numbers":           strconv.Itoa,
		"one prefix":        func(i int) string { return "tenant/00000000-0000-0000-0000-000000000000/" + strconv.Itoa(i) },
		"one suffix":        func(i int) string { return strconv.Itoa(i) + "@example.com" },
		"one length":        func(i int) string { return fmt.Sprintf("%016d", i) },
		"multiples of 4096": func(i int) string { return strconv.Itoa(i << 12) },
		"binary":            func(i int) string { return string([]byte{0, byte(i), 0, byte(i >> 8), 0, byte(i >> 16)}) },
		"long":              func(i int) string { return long[:len(long)-i%8] + strconv.Itoa(i) },
	} {
		t.Run(name, func(t *testing.T) {
			tab := keytable.New[*counted](max)
			for i := range max {
				tab.Add(&counted{key: key(i)})
			}
			// A shard has 512 or a few dozen less: on average 2% are missing.
			if n := tab.Len(); n < max*95/100 {
				t.Errorf("only %d of %d keys fit", n, max)
			}
			shards := tab.Shards()
			if lo, hi := slices.Min(shards), slices.Max(shards); lo < hi*3/4 {
				t.Errorf("the shards hold between %d and %d values", lo, hi)
			}
			for i := range max / 2 {
				tab.Add(&counted{key: key(max + i)})
			}
			if n := tab.Len(); n != max {
				t.Errorf("%d values after many more keys, want %d", n, max)
			}
			if _, err := tab.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The empty key is one like others.
func TestEmptyKey(t *testing.T) {
	tab, vs := newTable(2, "", "a")
	if got := tab.Add(&value{}); got != vs[0] {
		t.Error("the empty key was not found")
	}
	tab.Touch(vs[0])
	tab.Add(&value{key: "b"})
	wantEvicted(t, tab, vs, 1)
	tab.Add(&value{key: "c"})
	wantEvicted(t, tab, vs, 0, 1)
	again := &value{}
	if got := tab.Add(again); got != again {
		t.Error("the empty key was not added again")
	}
	check(t, tab, 2)
}
