//go:build unix

package hybrid_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
)

var (
	chaosFor  = flag.Duration("chaos", 0, "for how long things go wrong in TestChaos, on two CPUs; 0: until each has gone wrong once")
	chaosSeed = flag.Uint64("chaos.seed", 0, "replay the faults of TestChaos, not their timing, from this seed; 0 is a new one")
)

// TestChaos lets six limiters of all kinds live through everything that may happen to a Redis. What they admit stays
// within the bounds of docs/guarantees.md, with the allowances of what really happened and no others; no call takes long;
// and when Redis is well they use it again by themselves. With -v it prints the table of docs/operations.md.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	logging.Disable() // go-redis writes every failed dial to stderr
	t.Cleanup(logging.Enable)
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-chaos.seed=%d", seed)
	started := time.Now()
	makers := []struct {
		name string
		make func(t *testing.T, rng *rand.Rand) *arena
	}{{"server", single}, {"sentinel", sentinel}, {"cluster", cluster}, {"clock", stepped}}
	arenas := make([]*arena, len(makers))
	stalls := watchStalls(t)
	t.Run("arenas", func(t *testing.T) {
		for i, m := range makers {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				a := m.make(t, rand.New(rand.NewPCG(seed, uint64(i))))
				a.stalls = stalls
				a.run(*chaosFor / 2) // two of the four at a time
				a.check(t)
				arenas[i] = a
			})
		}
	})
	if t.Failed() {
		t.Logf("-chaos.seed=%d", seed)
	}
	arenas = slices.DeleteFunc(arenas, func(a *arena) bool { return a == nil }) // without a redis-server, or of -run
	report(t, arenas, seed, time.Since(started))
}

// arena is a kind of Redis with a fleet on it, and what can happen to them.
type arena struct {
	t       *testing.T
	name    string
	rng     *rand.Rand
	fleet   *fleet
	deck    []fault
	oneLane bool // all keys are on one server: a member has one breaker

	stalls     *stalls
	events     []*event
	end        int64
	goroutines float64 // the most that a limiter and its client had while nothing was answered
	worst      float64 // excess, in bursts, beyond what is allowed
	worstShare float64 // of a process over its share, in bursts of it
	opened     int     // times that a breaker was
	probes     int
	atOnce     []time.Duration // what calls took while it was
}

func (a *arena) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// eventually waits for what a server is about to do.
func (a *arena) eventually(what string, ok func() bool) {
	a.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); pause(10*time.Millisecond, end) {
		if time.Now().After(end) {
			a.t.Fatalf("%s: not so after 30s", what)
		}
	}
}

// run lets each fault of the deck happen once, in any order, and so on until the time is over.
func (a *arena) run(d time.Duration) {
	a.t.Cleanup(func() {
		for _, e := range a.events {
			if a.t.Failed() {
				a.t.Logf("%s: %s: from %v to %v", a.name, e.fault, time.UnixMicro(e.from), time.UnixMicro(e.over))
			}
		}
	})
	until := time.Now().Add(d)
	calm := func() {
		d := time.Duration(200+a.rng.IntN(200)) * time.Millisecond
		pause(d, time.Now().Add(d))
	}
	calm()
	for {
		a.rng.Shuffle(len(a.deck), func(i, j int) { a.deck[i], a.deck[j] = a.deck[j], a.deck[i] })
		for _, f := range a.deck {
			e := &event{arena: a, fault: f.name, members: slices.Clone(a.fleet.members), leeways: make([][]leeway, len(a.fleet.keys))}
			a.events = append(a.events, e)
			e.from = time.Now().UnixMicro()
			f.do(e)
			e.over = time.Now().UnixMicro()
			e.recover()
			if e.after != nil {
				e.after()
			}
			calm()
		}
		if !time.Now().Before(until) {
			break
		}
	}
	a.fleet.stop()
	chaosLimiters.Add(-int64(len(a.fleet.members)))
	a.end = time.Now().UnixMicro()
	for _, m := range a.fleet.members {
		// What goes on meanwhile are leases that are given back.
		told, most := m.seen.told(), int64(len(a.fleet.keys))
		if sent := m.lim.Stats().Calls; sent < told || sent > told+most {
			a.t.Errorf("%s: the Observer was told of %d calls, Stats of %d", m.name, told, sent)
		}
		ctx, cancel := context.WithTimeout(context.Background(), latest)
		if err := m.lim.Close(ctx); err != nil {
			a.t.Errorf("%s: %s: %v", a.name, m.name, err)
		}
		cancel()
	}
}

// recover waits until Redis has decided for each member again.
func (e *event) recover() {
	keys := e.keys
	if keys == nil {
		keys = e.allKeys()
	}
	served := func(m *member) (at int64) {
		first, last := int64(math.MaxInt64), int64(0)
		for _, k := range keys {
			at := m.decided[k].Load()
			if at < e.over {
				at = math.MaxInt64
			}
			first, last = min(first, at), max(last, at)
		}
		if e.keys == nil {
			return first
		}
		return last
	}
	back := make([]int64, len(e.members))
	for slices.Contains(back, 0) {
		pause(time.Millisecond, time.Now().Add(time.Second))
		for i, m := range e.members {
			if at := served(m); back[i] == 0 && at < math.MaxInt64 {
				back[i] = at
			}
		}
		now := time.Now().UnixMicro()
		if time.Duration(now-e.over)*time.Microsecond > latest+e.stalls.within(e.over, now) {
			for i, m := range e.members {
				if back[i] == 0 {
					e.t.Errorf("%s: %s: %s is not served by Redis %v after it is well: %+v", e.name, e.fault, m.name, latest, m.lim.Stats())
				}
			}
			break
		}
	}
	e.noticed = time.Now().UnixMicro()
	for _, at := range back {
		if at > 0 {
			e.recovered = append(e.recovered, time.Duration(at-e.over)*time.Microsecond)
		}
	}
}

// countGoroutines counts those that the library and go-redis have started, not those of callers, proxies and other tests.
func (a *arena) countGoroutines() {
	buf := make([]byte, 16<<20)
	n := 0
	for stack := range bytes.SplitSeq(buf[:runtime.Stack(buf, true)], []byte("\n\n")) {
		if !bytes.Contains(stack, []byte("hybrid_test.")) && !bytes.Contains(stack, []byte("internal/redistest")) &&
			(bytes.Contains(stack, []byte(modulePath)) || bytes.Contains(stack, []byte(goRedisPath))) {
			n++
		}
	}
	a.goroutines = max(a.goroutines, float64(n)/float64(chaosLimiters.Load()))
}

// check holds what happened to the docs.
func (a *arena) check(t *testing.T) {
	f := a.fleet
	if f.wrong != nil {
		t.Errorf("%s: %v", a.name, f.wrong)
	}
	all := f.calls(f.members, 0, math.MaxInt64)
	for i := range all {
		c := &all[i]
		if c.took() <= longestCall {
			continue
		}
		if lost := a.stalls.within(c.from, c.to); c.took()-lost > longestCall {
			t.Errorf("%s: a call took %v, of which this process stood still for %v; want at most %v, 4 times Timeout; %s",
				a.name, c.took(), lost, longestCall, a.when(c.from))
			break
		}
	}
	a.worst, a.worstShare = math.Inf(-1), math.Inf(-1)
	for i, k := range f.keys {
		var allowed []leeway
		for _, e := range a.events {
			allowed = append(allowed, e.leeways[i]...)
		}
		over := excessBeyond(admittedBy(all, i, limit.Remote, limit.Local), k.limit, allowed)
		if over > 1e-6 {
			t.Errorf("%s: key %d (%v): %.3f tokens above the bound and what is allowed for what happened", a.name, i, k.limit, over)
		}
		a.worst = max(a.worst, over/float64(k.limit.Burst))
		a.checkShares(t, i)
	}
	a.checkBreakers(t)
	// A janitor, for each key a flight, the one behind it and a pipeline; and go-redis, which dials.
	if most := 12.0; a.goroutines > most {
		t.Errorf("%s: %.1f goroutines for each limiter while nothing was answered, want at most %v", a.name, a.goroutines, most)
	}
}

// when says what went on at a time.
func (a *arena) when(at int64) string {
	text := "before all faults"
	for _, e := range a.events {
		if e.from <= at {
			text = fmt.Sprintf("%v after the beginning of %q, which was over after %v", time.Duration(at-e.from)*time.Microsecond,
				e.fault, time.Duration(e.over-e.from)*time.Microsecond)
		}
	}
	return text
}

// checkShares holds what FailLocal admitted to the share of each process: one nth of the rate, and one nth of the burst for
// each bucket that it may have begun.
func (a *arena) checkShares(t *testing.T, key int) {
	lim := a.fleet.keys[key].limit
	n := len(a.fleet.members)
	own := limit.Limit{Rate: lim.Rate, Period: lim.Period * time.Duration(n)} // the burst is that of each bucket
	burst := float64(max(1, lim.Burst/n))
	for _, m := range a.fleet.members {
		if m.opts.OnFailure != hybrid.FailLocal {
			continue
		}
		calls := a.fleet.calls([]*member{m}, 0, math.MaxInt64)
		calls = slices.DeleteFunc(calls, func(c chaosCall) bool { return c.key != key })
		shares := m.shares(calls)
		for i := range shares {
			shares[i].tokens *= burst
		}
		in := admittedBy(calls, key, limit.Fallback)
		if len(in) == 0 {
			continue
		}
		over := excessBeyond(in, own, shares)
		if over > 1e-6 {
			t.Errorf("%s: %s admitted %.3f tokens of key %d more than its share", a.name, m.name, over, key)
		}
		a.worstShare = max(a.worstShare, over/burst)
	}
}

// checkBreakers looks at the times in which Redis was not asked: it is probed as often as the docs say, and nobody waits.
func (a *arena) checkBreakers(t *testing.T) {
	if !a.oneLane {
		return
	}
	for _, m := range a.fleet.members {
		calls := a.fleet.calls([]*member{m}, 0, math.MaxInt64)
		m.seen.mu.Lock()
		closings := slices.Clone(m.seen.closings)
		m.seen.mu.Unlock()
		for _, c := range closings {
			a.opened, a.probes = a.opened+1, a.probes+c.calls
			// Beside the probes, the flights that were just about to go.
			d := time.Duration(c.to-c.from) * time.Microsecond
			if most := mostProbes(d) + len(a.fleet.keys); c.calls > most {
				t.Errorf("%s: %s: %d calls to Redis in the %v in which it was not to be asked, want at most %d", a.name, m.name, c.calls, d, most)
			}
		}
		for _, c := range calls {
			for _, open := range closings {
				if c.from > open.from && c.to < open.to {
					a.atOnce = append(a.atOnce, c.took())
				}
			}
		}
	}
	if a.opened == 0 {
		t.Errorf("%s: no breaker has opened", a.name)
	}
	if p99 := quantile(a.atOnce, 0.99); p99 > chaosTimeout/4 {
		t.Errorf("%s: while Redis was not to be asked, one in a hundred of %d calls took more than %v", a.name, len(a.atOnce), p99)
	}
}

func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[int(q*float64(len(all)-1))]
}

// row is what came of one kind of fault.
type row struct {
	arena, fault    string
	times           int
	lasted          []time.Duration
	took, recovered []time.Duration
	origins         [limit.Fallback + 1]int
	excess, allowed float64 // in bursts
}

// rows are what came of each fault of the arena.
func (a *arena) rows() []*row {
	var all []*row
	for n, e := range a.events {
		i := slices.IndexFunc(all, func(r *row) bool { return r.fault == e.fault })
		if i < 0 {
			i = len(all)
			all = append(all, &row{arena: a.name, fault: e.fault, excess: math.Inf(-1)})
		}
		r := all[i]
		r.times++
		r.lasted = append(r.lasted, time.Duration(e.over-e.from)*time.Microsecond)
		r.recovered = append(r.recovered, e.recovered...)
		for _, c := range a.fleet.calls(e.members, e.from, e.noticed) {
			if e.keys == nil || slices.Contains(e.keys, c.key) {
				r.took = append(r.took, c.took())
				r.origins[c.origin]++
			}
		}
		until := a.end
		if n+1 < len(a.events) {
			until = a.events[n+1].from
		}
		for i, k := range a.fleet.keys {
			burst := float64(k.limit.Burst)
			in := admittedBy(a.fleet.calls(a.fleet.members, e.from, until), i, limit.Remote, limit.Local)
			r.excess = max(r.excess, excess(in, k.limit)/burst)
			allowed := 0.0
			for _, x := range e.leeways[i] {
				allowed += x.tokens / burst
			}
			r.allowed = max(r.allowed, allowed)
		}
	}
	slices.SortFunc(all, func(x, y *row) int { return strings.Compare(x.fault, y.fault) })
	return all
}

// report prints the table, and checks that enough has happened.
func report(t *testing.T, arenas []*arena, seed uint64, took time.Duration) {
	var s strings.Builder
	s.WriteString("| Redis | fault | times | lasted, median | a call: p50 | longest | by Redis | from memory | by policy | errors | served again after, median | longest | worst excess, in bursts | allowed |\n")
	s.WriteString("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	var recovered []time.Duration
	var origins [limit.Fallback + 1]int
	var wg sync.WaitGroup
	rows := make([][]*row, len(arenas))
	for i, a := range arenas {
		wg.Go(func() { rows[i] = a.rows() })
	}
	wg.Wait()
	for _, r := range slices.Concat(rows...) {
		n := 0
		for o, k := range r.origins {
			origins[o] += k
			n += k
		}
		share := func(o limit.Origin) string {
			return fmt.Sprintf("%.1f %%", 100*float64(r.origins[o])/float64(max(1, n)))
		}
		fmt.Fprintf(&s, "| %s | %s | %d | %v | %v | %v | %s | %s | %s | %s | %v | %v | %.2f | %.2f |\n",
			r.arena, r.fault, r.times, short(quantile(r.lasted, 0.5)), short(quantile(r.took, 0.5)), short(quantile(r.took, 1)),
			share(limit.Remote), share(limit.Local), share(limit.Fallback), share(0),
			short(quantile(r.recovered, 0.5)), short(quantile(r.recovered, 1)), r.excess, r.allowed)
		recovered = append(recovered, r.recovered...)
	}
	for _, o := range []limit.Origin{limit.Remote, limit.Local, limit.Fallback} {
		if origins[o] == 0 && len(arenas) == 4 {
			t.Errorf("no decision came by %v", o)
		}
	}
	if median := quantile(recovered, 0.5); median > soon {
		t.Errorf("half of the times a process was served by Redis again later than %v after it was well", median)
	}
	for _, a := range arenas {
		fmt.Fprintf(&s, "\n%s: worst excess beyond what is allowed %.3f bursts, of the shares of FailLocal %.3f; at most %.1f goroutines for a limiter while nothing was answered",
			a.name, a.worst, a.worstShare, a.goroutines)
		if a.oneLane {
			fmt.Fprintf(&s, "; breakers opened %d times, %d probes; while open %d calls, p50 %v, p99 %v, longest %v",
				a.opened, a.probes, len(a.atOnce), short(quantile(a.atOnce, 0.5)), short(quantile(a.atOnce, 0.99)), short(quantile(a.atOnce, 1)))
		}
	}
	t.Logf("seed %d, %v:\n%s", seed, took.Round(time.Second), s.String())
}

// short has three digits at most.
func short(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
