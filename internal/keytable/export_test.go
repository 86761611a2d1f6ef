package keytable

import "fmt"

// Check compares the map with the lists while nobody can change them, and returns how many values there are.
func (t *Table[V]) Check() (int, error) {
	for i := range t.shards {
		t.shards[i].mu.Lock()
		defer t.shards[i].mu.Unlock()
	}
	total, capacity := 0, 0
	for i := range t.shards {
		s := &t.shards[i]
		n := s.recent.Len()
		if n > s.max {
			return 0, fmt.Errorf("shard %d holds %d values, more than %d", i, n, s.max)
		}
		for _, v := range s.recent.Keys() {
			if t.shard(v.Key()) != s {
				return 0, fmt.Errorf("%.40q is in shard %d, not in its own", v.Key(), i)
			}
			if got, ok := t.values.Load(v.Key()); !ok || got != v {
				return 0, fmt.Errorf("%.40q of shard %d is not what the map has", v.Key(), i)
			}
		}
		total, capacity = total+n, capacity+s.max
	}
	// All of the lists are in the map, so it holds nothing else if it holds as many.
	if n := t.values.Size(); n != total {
		return 0, fmt.Errorf("%d values in the map, %d in the lists", n, total)
	}
	seen := 0
	for range t.values.Range {
		seen++
	}
	if seen != total {
		return 0, fmt.Errorf("%d values are found in the map, %d in the lists", seen, total)
	}
	if total > capacity {
		return 0, fmt.Errorf("%d values, and room for %d", total, capacity)
	}
	return total, nil
}

// Shards is how many values each shard holds.
func (t *Table[V]) Shards() []int {
	n := make([]int, len(t.shards))
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n[i] = s.recent.Len()
		s.mu.Unlock()
	}
	return n
}

// Chances is how many used values an eviction spares.
const Chances = chances
