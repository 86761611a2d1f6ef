// Package keytable is a map of keys that never holds more than a given number of them, and is read without a lock.
//
// An LRU list that is kept up by every look-up makes all of them wait for each other. Here a look-up is one load from a
// concurrent map. Recency is noted by Touch, which the owner calls where it does something slow anyway, and a value that
// was used in between gets a second chance before it is forgotten: together that hits as often as a true LRU.
package keytable

import (
	"hash/maphash"
	"iter"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/puzpuzpuz/xsync/v4"
)

// Value is what a Table holds, a pointer as a rule. Its methods are called under a lock of the table, which they must
// not call.
type Value interface {
	comparable
	// Key is the key under which it was added.
	Key() string
	// Used reports whether it was used since Used or Touch was last called for it.
	Used() bool
	// Evicted is told that the table has forgotten it to make room.
	Evicted()
}

// Table maps keys to values. It is safe for concurrent use.
type Table[V Value] struct {
	values *xsync.Map[string, V]
	seed   maphash.Seed
	shards []shard[V]
}

// shard is a share of the keys in the order of their recency. All changes to the map of a key are made under the lock of
// its shard, so that both always hold the same.
type shard[V Value] struct {
	mu     sync.Mutex
	recent *simplelru.LRU[V, struct{}] // by value, whose key it knows: two words less for each
	max    int
	_      [40]byte // the locks of two shards are not on one cache line
}

const (
	maxShards = 64
	// minShard is the least number of keys in a shard: with fewer, some would be crowded while others have room.
	minShard = 512
	// chances is how many values an eviction looks at in search of one that was not used.
	chances = 8
)

// New returns a Table that holds at most max keys, and at least one.
func New[V Value](max int) *Table[V] {
	if max < 1 {
		max = 1
	}
	n := 1
	for n < maxShards && max/(2*n) >= minShard {
		n *= 2
	}
	t := &Table[V]{values: xsync.NewMap[string, V](), seed: maphash.MakeSeed(), shards: make([]shard[V], n)}
	for i := range t.shards {
		s := &t.shards[i]
		s.max = max / n
		if i < max%n {
			s.max++
		}
		s.recent, _ = simplelru.NewLRU[V, struct{}](s.max+1, nil) // never evicts by itself
	}
	return t
}

func (t *Table[V]) shard(key string) *shard[V] {
	return &t.shards[maphash.String(t.seed, key)%uint64(len(t.shards))]
}

// Get finds the value of a key. It does not count as use.
func (t *Table[V]) Get(key string) (V, bool) { return t.values.Load(key) }

// Add adds v under its key, unless there is a value already; it returns the one that is there.
func (t *Table[V]) Add(v V) V {
	key := v.Key()
	s := t.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := t.values.Load(key); ok {
		return old
	}
	for s.recent.Len() >= s.max {
		t.evictLocked(s)
	}
	s.recent.Add(v, struct{}{})
	t.values.Store(key, v)
	return v
}

// evictLocked forgets the value that was not used for longest, or, if many in a row were, one of those.
func (t *Table[V]) evictLocked(s *shard[V]) {
	v, _, _ := s.recent.GetOldest()
	for range chances {
		if !v.Used() {
			break
		}
		s.recent.Get(v) // now the newest
		v, _, _ = s.recent.GetOldest()
	}
	s.recent.Remove(v)
	t.values.Delete(v.Key())
	v.Evicted()
}

// Touch makes v the most recently used value, if it is in the table.
func (t *Table[V]) Touch(v V) {
	s := t.shard(v.Key())
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.recent.Get(v); ok {
		v.Used()
	}
}

// Len is how many values there are. While some come and go it is an estimate, and may be a little more than there can be.
func (t *Table[V]) Len() int { return t.values.Size() }

// All are the values, in no order. Such that come or go meanwhile may be among them or not.
func (t *Table[V]) All() iter.Seq[V] {
	return func(yield func(V) bool) {
		t.values.Range(func(_ string, v V) bool { return yield(v) })
	}
}
