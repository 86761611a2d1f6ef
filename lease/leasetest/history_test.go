package leasetest

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// history is a random run of several processes that lease from one bucket over a network that loses, repeats, delays
// and reorders. All of it happens in virtual time, in microseconds, and follows from the seed.
type history struct {
	rng  *rand.Rand
	plan plan

	now    int64 // the true time
	skew   int64 // by which the clock of the bucket is ahead of it
	queue  events
	events int

	bucket   Bucket
	old      *State // for a rollback
	envelope Envelope
	procs    []*process
	allowed  int64 // excess, in tokens, that what was done to the bucket may cause

	err error // the first broken promise other than the envelope
}

// plan is what a history is made of.
type plan struct {
	lim       limit.Limit
	other     limit.Limit // if not zero, requests bring one or the other
	slack     int64
	maxLeased int64
	ttl       time.Duration
	fixed     bool // leases of a fixed size, else by demand

	clockBack                       bool // steps back of the bucket's clock
	resets, flushes, rollbacks, fwd bool // things with a bound of their own
	lower                           bool // other takes the place of lim half-way, for good
	mistake                         mistake
}

// mistake is a rule that the processes break, so that a test can show that the envelope finds out.
type mistake int

const (
	noMistake mistake = iota
	keepWhatIsReturned
	renewWithoutReply
	reuseID
	addBackFailedTake
	refundByPlainAdd
	overReportUse
)

func (h *history) limit() limit.Limit {
	if h.plan.other.Rate != 0 && !h.plan.lower && h.chance(2) {
		return h.plan.other
	}
	return h.plan.lim
}

// larger is the larger of the burst and of the rate of all limits in use.
func (h *history) larger() limit.Limit {
	lim := h.plan.lim
	lim.Burst, lim.Rate = max(lim.Burst, h.plan.other.Burst), max(lim.Rate, h.plan.other.Rate)
	return lim
}

// chance is true in one of n cases.
func (h *history) chance(n int) bool { return h.rng.IntN(n) == 0 }

// upTo is a random time, of any order of magnitude up to a maximum.
func (h *history) upTo(most int64) int64 {
	for h.chance(2) && most > 10 {
		most /= 4
	}
	return h.rng.Int64N(most + 1)
}

func (h *history) life() int64 { return h.plan.ttl.Microseconds() }

// clock is the time of the bucket.
func (h *history) clock() int64 { return h.now + h.skew }

// event is something that happens at a time; of two at the same time the one planned first does.
type eventAt struct {
	at    int64
	order int
	do    func()
}

type events []eventAt

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(eventAt)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (h *history) in(delay int64, do func()) {
	h.events++
	heap.Push(&h.queue, eventAt{h.now + delay, h.events, do})
}

// pass lets time pass and what was planned happen.
func (h *history) pass(d int64) {
	until := h.now + d
	for len(h.queue) > 0 && h.queue[0].at <= until {
		e := heap.Pop(&h.queue).(eventAt)
		h.now = e.at
		e.do()
	}
	h.now = until
}

// process is one process and its lease.
type process struct {
	h     *history
	name  string
	ids   int
	life  int // a new one after each crash: nothing that was on the way reaches it
	wakes int64

	id       string
	state    lease.State
	tokens   int64 // may be below 0, as in package local
	deadline int64
	seq      int64 // of the newest request
	waiting  int64 // for its answer, until then; 0 if not
	credit   int64 // to be given back with the next request
	takes    []take

	demand        lease.Demand
	rtt           lease.RTT
	used, refused int64 // for demand
}

// take is an admission from memory that may be put back.
type take struct {
	at, n, seq int64
	id         string
}

func (p *process) begin() {
	p.ids++
	p.id = fmt.Sprintf("%s.%d.%d", p.name, p.life, p.ids)
	if p.h.plan.mistake == reuseID {
		p.id = fmt.Sprintf("%s.%d", p.name, p.life)
	}
	p.state.Begin(p.id)
	p.tokens, p.deadline, p.seq, p.waiting = 0, 0, 0, 0
}

func (p *process) held() int64 { return max(0, p.tokens) }

// live is how many tokens could be taken now.
func (p *process) live() int64 {
	if p.h.now >= p.deadline {
		return 0
	}
	return p.held()
}

// takeOne is what package local does for one token: a take that finds nothing leaves less than nothing behind.
func (p *process) takeOne() {
	h := p.h
	p.tokens--
	if p.tokens < 0 {
		p.refused++
		if h.plan.mistake == addBackFailedTake {
			life := p.life
			h.in(h.upTo(h.life()/4), func() {
				if p.life == life {
					p.tokens++
				}
			})
		}
		return
	}
	p.spent(1)
}

// takeMany takes n tokens or none.
func (p *process) takeMany(n int64) {
	if p.tokens < n {
		p.refused += n
		return
	}
	p.tokens -= n
	p.spent(n)
}

func (p *process) spent(n int64) {
	if p.h.now >= p.deadline {
		return // taken too late: lost
	}
	p.used += n
	p.h.envelope.Add(p.h.now, n)
	p.takes = append(p.takes, take{p.h.now, n, p.seq, p.id})
}

// putBack undoes a take: in memory if nobody else can have heard of it, else by a credit.
func (p *process) putBack() {
	h := p.h
	if len(p.takes) == 0 {
		return
	}
	i := h.rng.IntN(len(p.takes))
	t := p.takes[i]
	p.takes = append(p.takes[:i], p.takes[i+1:]...)
	switch {
	case h.plan.mistake == refundByPlainAdd, t.id == p.id && t.seq == p.seq && h.now < p.deadline:
		p.tokens = p.held() + t.n
		h.envelope.Add(t.at, -t.n)
	default:
		p.credit += t.n
	}
}

// forget ends the lease without a word.
func (p *process) forget() {
	p.begin()
	p.takes = nil
}

// expire throws away tokens whose time is over. It may count them as used, or give them back with the next request; and
// if it does not come to that, the answer to a request that is under way may renew them.
func (p *process) expire() {
	switch h := p.h; h.rng.IntN(3) {
	case 0:
		p.tokens = 0
	case 1:
		p.state.GiveUp(p.held())
		p.tokens = 0
	}
}

// ask sends the next request; want is how many tokens the process wants to hold after it.
func (p *process) ask(costs []lease.Run, want int64) {
	h := p.h
	if h.now < p.waiting {
		return // one request at a time
	}
	if h.now >= p.deadline {
		p.expire()
	}
	held := p.held()
	for _, c := range costs {
		if int64(c.Cost) > held {
			want = 0 // what is left is too little: it goes back first
		}
	}
	if want < held {
		p.state.GiveUp(held - want)
		if h.plan.mistake != keepWhatIsReturned {
			p.tokens = want
		}
		held = want
	}
	if h.plan.fixed && len(costs) > 0 || h.chance(2) {
		want = max(want, held+h.rng.Int64N(int64(h.plan.lim.Burst)/2+1))
	}
	lim := h.limit()
	req := lease.Request{Key: "k", Limit: lim, Slack: h.plan.slack, Costs: costs, Credit: p.credit}
	p.credit = 0 // never sent twice
	p.state.Ask(&req.Lease, held, want)
	if h.plan.mistake == overReportUse && held > 0 {
		req.Lease.Used += h.rng.Int64N(held + 1)
	}
	if h.plan.mistake == renewWithoutReply && p.deadline > h.now {
		p.deadline = max(p.deadline, h.now+lease.Life(h.plan.ttl).Microseconds())
	}
	p.seq = req.Lease.Seq
	req.Lease.Demand = h.rng.Int64N(int64(lim.Burst) + 1)
	req.Lease.MaxLeased, req.Lease.TTL, req.Lease.Dry = h.plan.maxLeased, h.plan.ttl, int64(lim.Burst)/4
	p.waiting = h.now + 1 + h.upTo(h.life())
	seq, id, life, sent := p.seq, p.id, p.life, h.now
	h.send(req, func(g lease.Grant) {
		if p.life == life {
			p.receive(id, seq, sent, g)
		}
	})
}

// receive takes the answer to a request; only that to the newest counts.
func (p *process) receive(id string, seq, sent int64, g lease.Grant) {
	h := p.h
	if h.now < p.wakes { // stopped: it finds the answer when it goes on
		h.in(p.wakes-h.now, func() { p.receive(id, seq, sent, g) })
		return
	}
	if id != p.id || seq != p.seq || h.now >= p.waiting && h.chance(2) {
		return
	}
	p.waiting = 0
	if g.Status == lease.Stale || g.Status == lease.Reset {
		p.begin()
		return
	}
	in := p.state.Accept(&g)
	if in < 0 {
		h.fail("%d tokens came in", in)
	}
	if g.Expiry != 0 {
		p.deadline = max(p.deadline, sent+lease.Life(h.plan.ttl).Microseconds())
	} else if in > 0 {
		h.fail("%d tokens of a lease that was not renewed", in)
	}
	p.tokens = p.held() + in
}

// send brings a request to the bucket and the answer back, or not.
func (h *history) send(req lease.Request, answer func(lease.Grant)) {
	run := func(answer func(lease.Grant)) { h.run(req, answer) }
	short := func() int64 { return h.upTo(h.life() / 10) }
	switch h.rng.IntN(16) {
	case 0, 1: // lost on the way
	case 2, 3: // done, and nobody hears of it
		h.in(short(), func() { run(nil) })
	case 4: // late
		h.in(h.upTo(4*h.life()), func() { run(answer) })
	case 5: // repeated, of which only a lease takes no harm
		h.in(short(), func() { run(answer) })
		if req.Lease.ID != "" {
			h.in(h.upTo(4*h.life()), func() { run(nil) })
		}
	case 6: // the answer is late
		h.in(short(), func() { run(func(g lease.Grant) { h.in(h.upTo(2*h.life()), func() { answer(g) }) }) })
	case 7: // no time passes at all
		run(answer)
	default:
		h.in(short(), func() { run(func(g lease.Grant) { h.in(short(), func() { answer(g) }) }) })
	}
}

// run lets the bucket decide, and writes down what it admitted.
func (h *history) run(req lease.Request, answer func(lease.Grant)) {
	before := h.bucket.moved
	g := h.bucket.Do(h.clock(), req)
	if g.Status == lease.Loss && !h.plan.clockBack && !h.plan.disturbed() && h.plan.mistake == noMistake && h.bucket.bug == noBug {
		h.fail("a loss where nothing was lost: %+v", req.Lease)
	}
	// Stricter than promised: of a credit only what raised the bucket counts, and a charge counts as an admission.
	if n := h.bucket.moved.credited - before.credited; n != 0 {
		h.envelope.Add(h.now, -n)
	}
	if n := h.bucket.moved.charged - before.charged; n != 0 {
		h.envelope.Add(h.now, n)
	}
	for i, k := range g.Admitted {
		if n := int64(k) * int64(req.Costs[i].Cost); n > 0 {
			h.envelope.Add(h.now, n)
		}
	}
	if answer != nil {
		answer(g)
	}
	h.check()
}

// exact is a process without a lease.
func (h *history) exact(costs []lease.Run, credit int64) {
	h.send(lease.Request{Key: "k", Limit: h.limit(), Slack: h.plan.slack, Costs: costs, Credit: credit}, func(lease.Grant) {})
}

// drain spends all that can be spent at this moment.
func (h *history) drain() {
	for _, p := range h.procs {
		if h.now >= p.wakes {
			p.takeMany(p.held())
		}
	}
	h.run(lease.Request{Key: "k", Limit: h.plan.lim, Slack: h.plan.slack, Costs: []lease.Run{{Cost: 1, Count: h.plan.lim.Burst}}}, nil)
}

func (h *history) costs() []lease.Run {
	var runs []lease.Run
	for range 1 + h.rng.IntN(3) {
		cost := 1
		if h.chance(3) {
			cost = 1 + h.rng.IntN(max(1, h.plan.lim.Burst/3))
		}
		runs = append(runs, lease.Run{Cost: cost, Count: 1 + h.rng.IntN(4)})
	}
	return runs
}

// step is one thing that happens.
func (h *history) step() {
	p := h.procs[h.rng.IntN(len(h.procs))]
	if h.now < p.wakes {
		p = h.procs[0]
		if h.now < p.wakes {
			h.pass(h.upTo(h.life()))
			return
		}
	}
	switch h.rng.IntN(24) {
	case 0, 1:
		for range 1 + h.rng.IntN(5) {
			p.takeOne()
		}
	case 2, 3:
		p.takeMany(1 + h.rng.Int64N(p.held()+1))
	case 4: // hoard, and spend at the last moment
		at, life := p.deadline-1, p.life
		if at > h.now {
			h.in(at-h.now, func() {
				if p.life == life && h.now >= p.wakes {
					p.takeMany(p.held())
				}
			})
		}
	case 5, 6, 7:
		p.ask(h.costs(), p.held())
	case 8, 9, 10:
		p.ask(nil, p.held()+p.wish())
	case 11:
		p.ask(nil, h.rng.Int64N(p.held()+1)) // give back what is idle
	case 12: // evicted, with or without a last word, and soon made again
		if h.chance(2) {
			p.waiting = 0
			p.ask(nil, 0)
		}
		p.forget()
	case 13: // a crash
		if h.chance(3) {
			p.life++
			p.forget()
			p.credit = 0
		}
	case 14:
		if h.chance(3) {
			p.wakes = h.now + h.upTo(4*h.life())
		}
	case 15, 16:
		p.putBack()
	case 17:
		h.exact(h.costs(), 0)
	case 18:
		if h.chance(3) {
			h.exact(nil, -h.rng.Int64N(int64(h.plan.lim.Burst)))
		}
	case 19:
		if h.chance(2) {
			h.drain()
		}
	case 20:
		if h.plan.clockBack && h.chance(3) {
			back := h.upTo(8_000_000)
			h.skew -= back
		}
	case 21:
		if h.now >= p.deadline {
			p.expire()
		}
		h.disturb()
	default:
		h.pass(h.upTo(h.life()))
	}
	switch {
	case h.chance(40): // long enough for the bucket to be full, and gone
		h.pass(h.rng.Int64N(h.plan.lim.ResetAfter(0).Microseconds() + 3_000_000))
	case h.chance(3):
		h.pass(h.upTo(h.life() / 2))
	case h.chance(8): // to the end of a lease, or to the end of the bucket
		at := h.bucket.state.First
		if h.chance(2) {
			at = h.bucket.state.Deadline
		}
		h.pass(max(0, at-h.clock()+h.rng.Int64N(3)-1))
		if h.chance(2) {
			h.drain()
		}
	}
}

// wish is how many more tokens a process wants to hold.
func (p *process) wish() int64 {
	h := p.h
	if h.plan.fixed {
		return 1 + h.rng.Int64N(int64(h.plan.lim.Burst)/2+1)
	}
	terms := lease.NewTerms(h.plan.lim, lease.Tuning{TTL: h.plan.ttl, MaxLeased: 0.5})
	p.demand.Add(h.now*1000, terms.Tau, p.used, p.refused)
	p.used, p.refused = 0, 0
	p.rtt.Add(time.Duration(1+h.upTo(h.life()/100)) * time.Microsecond)
	return max(0, terms.Want(&p.demand, &p.rtt, p.held(), h.now*1000)-p.held())
}

// disturb is what the bound does not cover. Each has a bound of its own, which is added to what is allowed.
func (h *history) disturb() {
	look := h.bucket
	level := max(0, look.Do(h.clock(), lease.Request{Limit: h.plan.lim, Slack: h.plan.slack}).Level)
	lent := look.state.Lent()
	burst := int64(h.plan.lim.Burst)
	switch {
	case h.plan.resets && h.chance(3):
		// Its purpose is to admit more: that does not count. What was out may be used once more.
		h.envelope.Add(h.now, level-burst)
		h.allowed += lent
		h.bucket.Reset(h.clock(), h.plan.lim)
	case h.plan.flushes && h.chance(3):
		h.allowed += burst - level + lent
		h.bucket.Flush()
		h.pass(1) // so that the next epoch has another name
	case h.plan.rollbacks && h.chance(2):
		if h.old != nil {
			h.allowed += burst - level + lent
			h.bucket.Restore(*h.old)
			h.old = nil
		} else {
			s := h.bucket.State()
			h.old = &s
		}
	case h.plan.fwd && h.chance(3):
		jump := h.upTo(4 * h.life())
		rate, period := int64(h.plan.lim.Rate), h.plan.lim.Period.Microseconds()
		h.allowed += min(burst, (jump*rate+period-1)/period)
		h.skew += jump
	}
}

// change puts the other limit in force. What is on the way is lost, and what was admitted before is not looked at.
func (h *history) change() {
	h.queue = nil
	h.plan.lim = h.plan.other
	h.run(lease.Request{Limit: h.plan.lim, Slack: h.plan.slack, Credit: -1}, nil)
	h.allowed = h.bucket.state.Lent()
	h.envelope = Envelope{}
}

func (h *history) fail(format string, args ...any) {
	if h.err == nil {
		h.err = fmt.Errorf("at %d: "+format, append([]any{h.now}, args...)...)
	}
}

// check looks at the invariants of the proof, where nothing is done on purpose to break them.
func (h *history) check() {
	s := &h.bucket.state
	m := h.bucket.moved
	if h.plan.mistake != noMistake || h.bucket.bug != noBug || h.plan.disturbed() {
		return
	}
	if s.Exists {
		lent := s.Lent()
		room := max(0, s.Burst-max(0, lent-h.plan.slack))
		if s.Level > room || s.Level == room && s.Frac != 0 {
			h.fail("level %d and %d, but room for %d", s.Level, s.Frac, room)
		}
		if m.lent+m.found != m.used+m.returned+m.expired+lent {
			h.fail("%+v and %d lent: tokens were made or lost", m, lent)
		}
	}
	var held int64
	for _, p := range h.procs {
		held += p.live()
	}
	look := h.bucket
	if g := look.Do(h.clock(), lease.Request{Limit: h.plan.lim, Slack: h.plan.slack}); held > g.Lent {
		h.fail("%d tokens are held, but only %d lent", held, g.Lent)
	}
}

func (p plan) disturbed() bool { return p.resets || p.flushes || p.rollbacks || p.fwd }

// settle ends all faults, lets every process that is alive ask once more, and checks that no token is unaccounted for.
func (h *history) settle() {
	h.pass(8*h.life() + 10_000_000) // also until a clock that was set back has caught up
	for _, p := range h.procs {
		p.wakes, p.waiting = 0, 0
		for range 2 {
			var req lease.Request
			req.Limit, req.Slack = h.plan.lim, h.plan.slack
			if h.now >= p.deadline {
				p.begin()
			}
			want := p.held() + 1
			p.state.Ask(&req.Lease, p.held(), want)
			p.seq = req.Lease.Seq
			req.Lease.MaxLeased, req.Lease.TTL = h.plan.maxLeased, h.plan.ttl
			id, seq, now := p.id, p.seq, h.now
			p.waiting = h.now + 1
			h.run(req, func(g lease.Grant) { p.receive(id, seq, now, g) })
		}
		e := h.bucket.state.Entries[p.id]
		if p.held() != e.Outstanding() {
			h.fail("%s holds %d, and %d are lent to it", p.id, p.held(), e.Outstanding())
		}
	}
	var held int64
	for _, p := range h.procs {
		held += p.held()
	}
	if lent := h.bucket.state.Lent(); held != lent && !h.plan.disturbed() && h.plan.mistake == noMistake && h.bucket.bug == noBug {
		h.fail("%d are held, %d lent", held, lent)
	}
}

// newPlan is a random plan without anything that has a bound of its own.
func newPlan(rng *rand.Rand) plan {
	burst := []int{1, 5, 20, 100, 100, 100}[rng.IntN(6)]
	// The burst lasts from half a second to a minute.
	lasts := time.Duration(500+rng.IntN(1<<(3+rng.IntN(14)))) * time.Millisecond
	lim := limit.Limit{Rate: max(1, burst*(1+rng.IntN(3))), Period: lasts, Burst: burst}
	most := lim.ResetAfter(0) / 2
	if rng.IntN(3) == 0 {
		most *= 4 // the bound does not need a short life
	}
	return plan{
		lim: lim, slack: []int64{0, 0, 3, 10}[rng.IntN(4)], fixed: rng.IntN(2) == 0, clockBack: rng.IntN(4) == 0,
		ttl:       max(40*time.Millisecond, time.Duration(rng.Int64N(int64(most)))).Truncate(time.Microsecond),
		maxLeased: 1 + rng.Int64N(int64(burst)),
	}
}

// useTwo adds a limit with a smaller burst and another rate.
func (p *plan) useTwo() {
	p.other = p.lim
	p.other.Burst = max(1, p.lim.Burst/3)
	p.other.Rate *= 2
}

// play runs one history.
func play(seed, n uint64, change func(*plan), b bug) *history {
	rng := rand.New(rand.NewPCG(seed, n))
	h := &history{rng: rng, plan: newPlan(rng), now: 1_700_000_000_000_000}
	if change != nil {
		change(&h.plan)
	}
	h.bucket.bug = b
	for i := range 1 + rng.IntN(4) {
		p := &process{h: h, name: fmt.Sprint("p", i)}
		p.begin()
		h.procs = append(h.procs, p)
	}
	steps := 30 + rng.IntN(150)
	for i := range steps {
		if h.plan.lower && i == steps/2 {
			h.change()
		}
		h.step()
	}
	h.drain()
	h.settle()
	h.drain()
	return h
}
