package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
	"github.com/hybridlimit/hybrid/lease"
)

// purse is a lease.Source without buckets: it pays whatever is asked for and keeps nothing, so that a million keys cost
// what the limiter keeps of them.
type purse struct {
	lends bool // as much as is wanted; else it only pays
}

// Acquire implements lease.Source.
func (p *purse) Acquire(_ context.Context, reqs []lease.Request, grants []lease.Grant) {
	for i, req := range reqs {
		h := &req.Lease
		g := lease.Grant{Now: time.Now().UnixMicro(), Epoch: 1, Level: int64(req.Limit.Burst), Granted: h.Used + h.Held, Holders: 1}
		for _, c := range req.Costs {
			g.Admitted = append(g.Admitted, c.Count)
		}
		if p.lends && h.ID != "" {
			g.Granted = h.Used + max(h.Held, h.Want)
			g.Expiry = g.Now + h.TTL.Microseconds()
		}
		grants[i] = g
	}
}

// manyKeys are of 16 bytes each, in one piece of memory.
func manyKeys(n int) []string {
	var text strings.Builder
	text.Grow(16 * n)
	for i := range n {
		fmt.Fprintf(&text, "user:%011d", i)
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = text.String()[16*i : 16*(i+1)]
	}
	return keys
}

// idleBytes is the memory that an idle key takes: one that was asked for once, holds no tokens and waits for nothing. The
// text of the keys is there before, so it is not in the difference; the strings that point at it are, as part of what
// the limiter keeps.
func idleBytes(n int) (result, error) {
	keys := manyKeys(n)
	room := 1 << 10
	for room < n {
		room *= 2
	}
	before := settledHeap()
	l, err := hybrid.NewFrom(&purse{}, hybrid.PerSecond(100), hybrid.Options{MaxKeys: room, Timeout: time.Minute})
	if err != nil {
		return result{}, err
	}
	var wg sync.WaitGroup
	var denied atomic.Int64
	const askers = 8
	for g := range askers {
		wg.Go(func() {
			for i := g; i < n; i += askers {
				if r, err := l.Allow(context.Background(), keys[i]); err != nil || !r.Allowed {
					denied.Add(1)
				}
			}
		})
	}
	wg.Wait()
	heap := settledHeap() - before
	stats := l.Stats()
	r := result{
		values: []float64{float64(heap) / float64(max(stats.Keys, 1))},
		counts: fmt.Sprintf("%s keys remembered, %d tokens held", measure.Thousands(float64(stats.Keys)), stats.Held),
	}
	if stats.Keys < n || stats.Held > 0 || denied.Load() > 0 {
		r.void = fmt.Sprintf("%d keys not remembered, %d not admitted", n-stats.Keys, denied.Load())
	}
	runtime.KeepAlive(keys)
	return r, l.Close(context.Background())
}

// settledHeap is the memory in use once no more of it becomes free: what lies idle may be given up a little later.
func settledHeap() int64 {
	var m runtime.MemStats
	least := int64(math.MaxInt64)
	for unchanged := 0; unchanged < 5; unchanged++ {
		runtime.GC()
		runtime.ReadMemStats(&m)
		if now := int64(m.HeapAlloc); now < least-least/1000 {
			least, unchanged = now, 0
		}
		time.Sleep(100 * time.Millisecond)
	}
	return least
}

func (l *lab) idleKeys() ([]result, error) {
	n := 1_000_000
	if l.short {
		n = 10_000
	}
	r, err := idleBytes(n)
	return []result{r}, err
}

// trace is a list of keys, by number, and their names.
type trace struct {
	names []string
	keys  []uint32
}

func newTrace(distinct, length int) *trace {
	t := &trace{manyKeys(distinct), make([]uint32, length)}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(3, 4)), 1.1, 1, uint64(distinct-1))
	for i := range t.keys {
		t.keys[i] = uint32(zipf.Uint64())
	}
	return t
}

// hits replays the trace on a limiter that remembers so many keys and returns the share that it knew.
//
// It shows in the results, so that nothing needs to be known about the table: a key that is new holds no tokens and is
// paid by the source, and one that is known has a lease that lasts and is paid from memory. That leases last is also the
// hardest case for a table that takes note of a key only when it calls for it: here it never does.
func (t *trace) hits(capacity int) (ratio float64, keys int, err error) {
	ample := hybrid.Limit{Rate: 1_000_000, Period: time.Second, Burst: 2_000_000_000}
	l, err := hybrid.NewFrom(&purse{lends: true}, ample, hybrid.Options{
		MaxKeys: capacity, LeaseSize: 1_000_000_000, MaxLeased: 1, LeaseTTL: time.Hour, Timeout: time.Minute,
	})
	if err != nil {
		return 0, 0, err
	}
	ctx := context.Background()
	hits := 0
	for _, key := range t.keys {
		switch r, err := l.Allow(ctx, t.names[key]); {
		case err != nil || !r.Allowed:
			return 0, 0, fmt.Errorf("a request of the trace: %+v, %v", r, err)
		case r.Origin == hybrid.Local:
			hits++
		default:
			// What the key that had to go has held is given back by another goroutine. Should the key come again
			// before that is done, its request would be paid along with that, and bring no lease.
			runtime.Gosched()
		}
	}
	keys = l.Stats().Keys
	return float64(hits) / float64(len(t.keys)), keys, l.Close(ctx)
}

// hitsOfLRU is the same for a true LRU.
func (t *trace) hitsOfLRU(capacity int) (ratio float64, err error) {
	m, err := simplelru.NewLRU[uint32, struct{}](capacity, nil)
	if err != nil {
		return 0, err
	}
	hits := 0
	for _, key := range t.keys {
		if _, ok := m.Get(key); ok {
			hits++
		} else {
			m.Add(key, struct{}{})
		}
	}
	return float64(hits) / float64(len(t.keys)), nil
}

var capacities = []int{10_000, 100_000}

func (l *lab) hitRatio() ([]result, error) {
	distinct, length := 1_000_000, 4_000_000
	if l.short {
		distinct, length = 100_000, 50_000
	}
	t := newTrace(distinct, length)
	var results []result
	for _, capacity := range capacities {
		lru, err := t.hitsOfLRU(capacity)
		if err != nil {
			return nil, err
		}
		ours, keys, err := t.hits(capacity)
		if err != nil {
			return nil, err
		}
		results = append(results, result{
			values: []float64{ours / lru},
			counts: fmt.Sprintf("hits %.4f, LRU %.4f; %s keys at the end", ours, lru, measure.Thousands(float64(keys))),
		})
	}
	return results, nil
}
