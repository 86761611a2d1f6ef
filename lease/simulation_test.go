package lease_test

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// simulation is some processes that lease from one bucket as those of package hybrid do, and an ideal bucket to which
// the same requests come at once. It runs in virtual time, in nanoseconds, and follows from the seed.
type simulation struct {
	rng    *rand.Rand
	lim    limit.Limit
	tuning lease.Tuning
	rtt    time.Duration

	now    int64
	queue  timers
	bucket leasetest.Bucket
	nodes  []*node

	ideal     bucket.Level
	idealTime int64 // microseconds

	requests, admitted, allowed int64 // allowed: by the ideal bucket
	calls                       int64
	shortfall                   float64 // the largest allowed - admitted less 0.1 % of allowed
}

// origin is the time at which a simulation begins, so that 0 stays what it means in the protocol.
const origin = 1e9

type timer struct {
	at int64
	do func()
}

type timers []timer

func (q timers) Len() int           { return len(q) }
func (q timers) Less(i, j int) bool { return q[i].at < q[j].at }
func (q timers) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *timers) Push(x any)        { *q = append(*q, x.(timer)) }
func (q *timers) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (s *simulation) in(d time.Duration, do func()) { heap.Push(&s.queue, timer{s.now + int64(d), do}) }

func newSimulation(seed uint64, n int, lim limit.Limit, tuning lease.Tuning) *simulation {
	s := &simulation{
		rng: rand.New(rand.NewPCG(seed, 0)), lim: lim, tuning: tuning, rtt: time.Millisecond, now: origin,
		ideal: bucket.Full(int64(lim.Burst)), idealTime: origin / 1000,
	}
	for i := range n {
		s.nodes = append(s.nodes, &node{sim: s, name: strconv.Itoa(i), terms: lease.NewTerms(lim, tuning)})
	}
	return s
}

// load says how many requests per second come to a process at a time.
type load func(node int, at time.Duration) float64

// run lets requests come for some time.
func (s *simulation) run(d time.Duration, l load) {
	end := s.now + int64(d)
	for i, n := range s.nodes {
		var next func()
		next = func() {
			if s.now >= end {
				return
			}
			rate := l(i, time.Duration(s.now-origin))
			if rate == 0 {
				s.in(time.Millisecond, next)
				return
			}
			// A Poisson stream, but a gap is not longer than a load may take to change.
			gap := time.Duration(s.rng.ExpFloat64() / rate * float64(time.Second))
			if most := 10 * time.Millisecond; gap > most {
				s.in(most, next)
				return
			}
			s.in(gap, func() {
				s.arrive(n)
				next()
			})
		}
		next()
	}
	for len(s.queue) > 0 && s.queue[0].at < end {
		t := heap.Pop(&s.queue).(timer)
		s.now = t.at
		t.do()
	}
	s.now = end
}

// arrive is one request for one token.
func (s *simulation) arrive(n *node) {
	s.requests++
	rate := bucket.NewRate(int64(s.lim.Rate), s.lim.Period.Microseconds())
	s.ideal = s.ideal.After(rate, int64(s.lim.Burst), s.now/1000-s.idealTime)
	s.idealTime = s.now / 1000
	if s.ideal.N > 0 {
		s.ideal.N--
		s.allowed++
	}
	n.allow()
	s.shortfall = max(s.shortfall, float64(s.allowed-s.admitted-n.waiting())-0.001*float64(s.allowed))
}

func (s *simulation) ratio() float64 { return float64(s.admitted) / float64(s.allowed) }

// node is one process. It does what the entry of a key in package hybrid does.
type node struct {
	sim   *simulation
	name  string
	ids   int
	terms lease.Terms

	state            lease.State
	tokens, deadline int64
	seen             int64

	demand       lease.Demand
	rtt          lease.RTT
	refusal      *lease.Refusal
	paid, denied int64
	mark         int64

	batch   int  // callers who wait for the next flight
	flying  bool // one is out
	queued  bool // the next one is to start, be there callers or not
	idle    bool // and may give everything back
	watched bool
	calls   int64
}

func (n *node) waiting() int64 { return int64(n.batch) }

func (n *node) held() int64 {
	if n.sim.now >= n.deadline {
		return 0
	}
	return n.tokens
}

func (n *node) allow() {
	if n.held() > 0 {
		n.tokens--
		n.sim.admitted++
		if n.tokens == n.mark && n.sim.now >= n.refusal.Until() {
			n.start()
		}
		return
	}
	if _, ok := n.refusal.Denies(n.sim.now, 1); ok {
		return
	}
	n.batch++
	n.start()
}

// start begins a flight, or leaves word that another one is wanted.
func (n *node) start() {
	if n.flying {
		n.queued = true
		return
	}
	n.flying, n.queued = true, false
	costs := n.batch
	n.batch = 0
	if costs > 0 && n.held() >= int64(costs) {
		n.tokens -= int64(costs)
		n.sim.admitted += int64(costs)
		n.land()
		return
	}
	returning := n.idle && costs == 0
	n.idle = false
	if costs == 0 && !returning && n.tokens > n.mark {
		n.land()
		return
	}
	n.ask(costs, returning)
}

func (n *node) land() {
	n.flying = false
	if n.batch > 0 || n.queued {
		n.start()
	}
}

// afterlife is as in package hybrid.
const afterlife = 90 * time.Millisecond

func (n *node) ask(costs int, returning bool) {
	s := n.sim
	used := n.state.Used(n.tokens)
	n.demand.Add(s.now, n.terms.Tau, used-n.seen+n.paid, n.denied)
	n.seen, n.paid, n.denied = used, 0, 0
	if n.state.Open() && n.deadline != 0 {
		switch {
		case s.now >= n.deadline+int64(afterlife):
			n.end()
		case s.now >= n.deadline:
			n.state.GiveUp(n.tokens)
			n.tokens = 0
		}
	}
	if costs > 0 || returning {
		n.state.GiveUp(n.tokens)
		n.tokens = 0
	}
	req := lease.Request{Key: "k", Limit: s.lim, Slack: n.terms.Slack}
	if costs > 0 {
		req.Costs = []lease.Run{{Cost: 1, Count: costs}}
	}
	want := int64(0)
	if !returning {
		want = n.terms.Want(&n.demand, &n.rtt, n.tokens, s.now)
		if n.terms.Fixed > 0 {
			want = max(0, want-int64(costs))
		}
	}
	want = max(want, n.tokens)
	if want > 0 || n.state.Open() {
		if !n.state.Open() {
			n.ids++
			n.state.Begin(n.name + "." + strconv.Itoa(n.ids))
		}
		n.state.Ask(&req.Lease, n.tokens, want)
		req.Lease.Demand = n.demand.InTau()
		req.Lease.MaxLeased, req.Lease.Dry, req.Lease.TTL = n.terms.MaxLeased, n.terms.Dry, n.terms.TTL
	}
	s.calls++
	n.calls++
	sent := s.now
	s.in(s.rtt/2, func() {
		g := s.bucket.Do(s.now/1000, req)
		s.in(s.rtt/2, func() { n.accept(&req, &g, sent) })
	})
}

func (n *node) end() {
	n.tokens, n.deadline, n.seen = 0, 0, 0
	n.state.End()
}

func (n *node) accept(req *lease.Request, g *lease.Grant, sent int64) {
	s := n.sim
	n.rtt.Add(time.Duration(s.now - sent))
	count := 0
	if len(req.Costs) > 0 {
		count = req.Costs[0].Count
	}
	if g.Status == lease.Stale || g.Status == lease.Reset {
		n.end()
		if count > 0 {
			n.ask(count, false)
		} else {
			n.land()
		}
		return
	}
	lent := int64(0)
	if req.Lease.ID != "" {
		if lent = n.state.Accept(g); g.Expiry != 0 {
			n.deadline = max(n.deadline, sent+int64(lease.Life(req.Lease.TTL)))
			n.tokens += lent
		}
		if lent > 0 {
			n.demand.Leased(s.now, lent)
			n.mark = n.terms.Mark(&n.demand, &n.rtt, req.Lease.Held+lent)
			n.watch()
		}
	}
	n.refusal = nil
	if count > 0 {
		admitted := g.Admitted[0]
		s.admitted += int64(admitted)
		n.paid += int64(admitted)
		n.denied += int64(count - admitted)
	}
	if g.Scarce {
		n.refusal = lease.NewRefusal(n.terms, g, 1, sent, s.rng.Float64())
		n.demand.Refused(n.refusal.Until())
	}
	n.land()
}

// watch gives tokens back that lie idle.
func (n *node) watch() {
	if n.watched {
		return
	}
	n.watched = true
	last, since := int64(-1), n.sim.now
	var look func()
	look = func() {
		switch held := n.held(); {
		case held == 0:
			n.watched = false
			return
		case held != last:
			last, since = held, n.sim.now
		case n.sim.now-since >= int64(n.terms.Idle()):
			since = n.sim.now
			n.idle = true
			n.start()
		}
		n.sim.in(10*time.Millisecond, look)
	}
	n.sim.in(10*time.Millisecond, look)
}

// loads are those of docs/guarantees.md, at n processes and r tokens per second.
func loads(n int, r float64) map[string]load {
	share := r / float64(n)
	return map[string]load{
		"even 2x":   func(int, time.Duration) float64 { return 2 * share },
		"even 0.8x": func(int, time.Duration) float64 { return 0.8 * share },
		"skewed 2x": func(i int, _ time.Duration) float64 {
			if i == 0 {
				return 0.9 * 2 * r
			}
			return 0.1 * 2 * r / float64(n-1)
		},
		"bursts": func(_ int, at time.Duration) float64 {
			if at%time.Second < 100*time.Millisecond {
				return 9 * share
			}
			return 0
		},
		"roaming": func(i int, at time.Duration) float64 {
			if int(at/(200*time.Millisecond))%n == i {
				return 0.9 * r
			}
			return 0
		},
	}
}

// promised is the largest shortfall that is promised at any time, above 0.1 %.
func promised(t lease.Terms) float64 {
	rate := float64(t.Limit.Rate) / t.Limit.Period.Seconds()
	return math.Ceil(3 * rate * max(t.Tau, 50*time.Millisecond).Seconds())
}
