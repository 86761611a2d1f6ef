package main

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
	"github.com/hybridlimit/hybrid/limit"
)

// draws is how many keys a load prepares; a power of two.
const draws = 1 << 16

// zipfKeys is how many different keys the skewed loads use.
const zipfKeys = 10_000

// load is one way to ask: how many goroutines in a closed loop, over which keys.
type load struct {
	name       string
	hot        bool
	goroutines int
	keys       []string // draws of them, to be used in turn
}

// hotKeys and skewedKeys cost the same to step through, so that loads differ in what the limiters do with them.
func hotKeys(key string) []string {
	keys := make([]string, draws)
	for i := range keys {
		keys[i] = key
	}
	return keys
}

func allKeys() []string {
	keys := make([]string, zipfKeys)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	return keys
}

func skewedKeys() []string {
	all := allKeys()
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, zipfKeys-1)
	keys := make([]string, draws)
	for i := range keys {
		keys[i] = all[zipf.Uint64()]
	}
	return keys
}

// loads are all pairs of {hot, Zipf} and numbers of goroutines.
func loads(goroutines ...int) []load {
	hot, skewed := hotKeys("hot"), skewedKeys()
	var ls []load
	for _, g := range goroutines {
		ls = append(ls, load{"hot-" + strconv.Itoa(g), true, g, hot})
	}
	for _, g := range goroutines {
		ls = append(ls, load{"zipf-" + strconv.Itoa(g), false, g, skewed})
	}
	return ls
}

// subject is a peer that is ready to be asked.
type subject struct {
	Peer
	allow  allowFunc
	closer func()
	trips  *atomic.Int64
}

// open makes a peer with a client of its own. A backend is needed only for peers over Redis.
func (p Peer) open(b *measure.Backend, lim limit.Limit) (*subject, error) {
	s := &subject{Peer: p, trips: new(atomic.Int64)}
	var rdb *redis.Client
	if p.Redis {
		rdb = redis.NewClient(measure.Options(b.Addr, s.trips))
	}
	allow, closer, err := p.New(rdb, lim)
	if err != nil {
		if rdb != nil {
			rdb.Close()
		}
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	s.allow, s.closer = allow, func() {
		closer()
		if rdb != nil {
			rdb.Close()
		}
	}
	return s, nil
}

// pass is what one limiter did under one load for a short time.
type pass struct {
	decisions int           // answered before the end, errors not counted
	denied    int           // of these
	failed    int           // calls that returned an error
	asked     int           // all calls, also those that were under way at the end
	elapsed   time.Duration // from the start to the end
	latency   histogram
	allocs    uint64
	trips     int64
	commands  int64 // -1 if the server does not tell
	yard      *pass // of the yardstick in turns with it, or nil
}

func (p *pass) perSecond() float64 { return float64(p.decisions) / p.elapsed.Seconds() }
func (p *pass) nanos() float64     { return float64(p.elapsed.Nanoseconds()) / float64(p.decisions) }
func (p *pass) per(n float64) float64 {
	return n / float64(max(p.asked, 1))
}

// worker is what one goroutine counts. Each has its own, so that counting does not make them wait for each other.
type worker struct {
	decisions, denied, failed, asked int
	latency                          histogram
	_                                [64]byte // no shared cache line
}

// run asks in a closed loop for d. Every every-th call is timed; 0 times none.
func (s *subject) run(l load, d time.Duration, every int) *pass {
	workers := make([]worker, l.goroutines)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var before, after runtime.MemStats
	trips := s.trips.Load()
	runtime.ReadMemStats(&before)
	start := time.Now()
	for g := range workers {
		w := &workers[g]
		wg.Go(func() { w.loop(s.allow, l.keys, g*7919, every, &stop) })
	}
	time.Sleep(d)
	stop.Store(true)
	p := &pass{elapsed: time.Since(start)}
	wg.Wait()
	runtime.ReadMemStats(&after)
	p.allocs = after.Mallocs - before.Mallocs
	p.trips = s.trips.Load() - trips
	for g := range workers {
		w := &workers[g]
		p.decisions += w.decisions
		p.denied += w.denied
		p.failed += w.failed
		p.asked += w.asked
		p.latency.merge(&w.latency)
	}
	return p
}

// loop asks without a deadline and without a way to cancel, as the benchmarks of all these libraries do. With a context
// that can end, those that let callers leave early hand the call to another goroutine: see docs/benchmarks.md.
func (w *worker) loop(allow allowFunc, keys []string, first, every int, stop *atomic.Bool) {
	ctx := context.Background()
	var decisions, denied, failed, asked int
	due := every
	for i := first; ; i++ {
		key := keys[i&(draws-1)]
		var ok bool
		var err error
		if due--; due == 0 {
			due = every
			start := time.Now()
			ok, err = allow(ctx, key)
			w.latency.add(time.Since(start))
		} else {
			ok, err = allow(ctx, key)
		}
		asked++
		// What ends after the end does not count: with few calls per pass the tail would be a large part of it.
		if stop.Load() {
			break
		}
		switch {
		case err != nil:
			failed++
		case !ok:
			denied++
			fallthrough
		default:
			decisions++
		}
	}
	w.decisions, w.denied, w.failed, w.asked = decisions, denied, failed, asked
}

// measure is run after a lead-in that is not counted, with the statistics of the server around it.
func (s *subject) measure(ctx context.Context, b *measure.Backend, l load, d time.Duration, timed bool) (*pass, error) {
	lead := s.run(l, d/3, 0)
	every := 0
	if timed {
		// Reading the clock twice costs nothing beside a round trip, but doubles the cost of an answer from memory.
		// Seven divides no usual lease size, so that refills are met as often as they come.
		every = 1
		if lead.nanos()*float64(l.goroutines) < 5_000 {
			every = 7
		}
	}
	if !s.Redis || b == nil {
		return s.run(l, d, every), nil
	}
	before, err := b.Commands(ctx)
	if err != nil {
		return nil, err
	}
	p := s.run(l, d, every)
	after, err := b.Commands(ctx)
	if err != nil {
		return nil, err
	}
	if p.commands = after - before; before < 0 {
		p.commands = -1
	}
	time.Sleep(s.Settle)
	return p, nil
}

// turns is how many parts a pass is cut into that takes turns with another.
const turns = 3

// beside is measure in turns with the yardstick, whose pass goes with the result.
func (s *subject) beside(ctx context.Context, yardstick *subject, b *measure.Backend, l load, d time.Duration) (*pass, error) {
	sum := &pass{yard: new(pass)}
	for range turns {
		y, err := yardstick.measure(ctx, b, l, d/turns, true)
		if err != nil {
			return nil, err
		}
		p, err := s.measure(ctx, b, l, d/turns, true)
		if err != nil {
			return nil, err
		}
		sum.yard.add(y)
		sum.add(p)
	}
	return sum, nil
}

// add puts another pass of the same limiter under the same load to this one.
func (p *pass) add(o *pass) {
	p.decisions += o.decisions
	p.denied += o.denied
	p.failed += o.failed
	p.asked += o.asked
	p.elapsed += o.elapsed
	p.latency.merge(&o.latency)
	p.allocs += o.allocs
	p.trips += o.trips
	p.commands += o.commands
}

// touch asks once for every key, so that no pass pays for first sight.
func (s *subject) touch(ctx context.Context) {
	var wg sync.WaitGroup
	keys := allKeys()
	for g := range 64 {
		wg.Go(func() {
			for i := g; i < len(keys); i += 64 {
				s.allow(ctx, keys[i])
			}
		})
	}
	wg.Wait()
}

// verdict is how close a limiter came to an ideal token bucket under more demand than it may admit.
type verdict struct {
	admitted, offered, failed int
	trips                     int64
	ideal                     float64 // Burst + Rate*W, W from before the first call to after the last
}

// probe offers perSecond requests for one key for d, from goroutines that each keep to a timetable, and counts what is
// admitted. The offer is paced because a flood from this process would take the processor from Redis as well.
func (s *subject) probe(ctx context.Context, lim limit.Limit, key string, goroutines int, perSecond float64, d time.Duration) verdict {
	var wg sync.WaitGroup
	var admitted, offered, failed atomic.Int64
	gap := time.Duration(float64(goroutines) / perSecond * float64(time.Second))
	trips := s.trips.Load()
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			due := gap * time.Duration(g) / time.Duration(goroutines)
			for ; due < d; due += gap {
				now := time.Since(start)
				if now >= d {
					return // too slow for the timetable
				}
				time.Sleep(due - now)
				ok, err := s.allow(ctx, key)
				offered.Add(1)
				if err != nil {
					failed.Add(1)
				} else if ok {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	return verdict{
		admitted: int(admitted.Load()),
		offered:  int(offered.Load()),
		failed:   int(failed.Load()),
		trips:    s.trips.Load() - trips,
		ideal:    float64(lim.Burst) + float64(lim.Rate)*elapsed.Seconds()/lim.Period.Seconds(),
	}
}

// histogram counts durations in steps of a sixteenth of a power of two, so that a quantile is right within 3 %.
type histogram struct {
	n      int
	counts [64 * 16]uint32
}

func (h *histogram) add(d time.Duration) {
	h.n++
	h.counts[slot(uint64(max(d, 0)))]++
}

func slot(v uint64) int {
	if v < 16 {
		return int(v)
	}
	shift := bits.Len64(v) - 5
	return shift*16 + int(v>>shift)
}

// middle is the middle of the durations that share a slot.
func middle(slot int) time.Duration {
	if slot < 32 {
		return time.Duration(slot)
	}
	shift := slot/16 - 1
	low := uint64(slot-shift*16) << shift
	return time.Duration(low + 1<<shift/2)
}

func (h *histogram) merge(o *histogram) {
	h.n += o.n
	for i, c := range o.counts {
		h.counts[i] += c
	}
}

// quantile is 0 if nothing was added.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int(q * float64(h.n))
	for i, c := range h.counts {
		if rank -= int(c); rank < 0 {
			return middle(i)
		}
	}
	return 0
}
