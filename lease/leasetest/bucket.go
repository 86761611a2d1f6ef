package leasetest

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// Bucket is the bucket of one key: what the script in Redis does, in plain Go and written from docs/protocol.md to be
// read, not to be fast. A test runs both on the same requests and finds them equal, in what they answer and in what
// they keep.
//
// The zero Bucket was never used, which is the same as full. A Bucket is not safe for concurrent use; see [Source].
type Bucket struct {
	state State
	moved tally
	bug   bug
}

// State is all that a Bucket keeps, in the terms of the hash in Redis. Times are microseconds by the clock of the
// bucket.
type State struct {
	// Exists is false if there is no hash: the bucket is full, nothing is lent, and the other fields are 0.
	Exists bool
	// Level is how many whole tokens there are, negative for a debt, and Frac a started one in units of 1/Micros.
	Level, Frac int64
	// Time is when the bucket was last filled.
	Time int64
	// Tokens per Micros microseconds, in lowest terms, and Burst are the limit last applied.
	Tokens, Micros, Burst int64
	// Largest is the largest burst that was ever lowered.
	Largest int64
	// Epoch is new whenever the hash is made. Mark says how: see the constants.
	Epoch int64
	Mark  int64
	// First is a time before which no lease is looked at, Last one after which none does; 0 if there is none. Leased is
	// whether the hash has fields about leases, which it has not before the first one.
	First, Last int64
	Leased      bool
	// Entries are the leases by ID, those that hold nothing included.
	Entries map[string]Entry
	// Deadline is when the hash is gone.
	Deadline int64
}

// What Mark says about an epoch.
const (
	MarkNone  = 0
	MarkReset = 1 // a reset made it
	MarkLoss  = 2 // a lease turned out to be lost in it
)

// Entry is one lease.
type Entry struct {
	Seq int64 // the last request that was accepted
	// Granted is what was lent in all less what came back, Used what is known to be spent of that.
	Granted, Used int64
	Demand        int64
	Expiry        int64
}

// Outstanding is how many tokens the lease may still have.
func (e Entry) Outstanding() int64 { return e.Granted - e.Used }

// Lent is how many tokens are out on all leases.
func (s *State) Lent() int64 {
	var n int64
	for _, e := range s.Entries {
		n += e.Outstanding()
	}
	return n
}

// Demand is the sum over all leases.
func (s *State) Demand() int64 {
	var n int64
	for _, e := range s.Entries {
		n += e.Demand
	}
	return n
}

// Holders is how many leases hold tokens or want some.
func (s *State) Holders() int64 {
	var n int64
	for _, e := range s.Entries {
		if e.Outstanding() > 0 || e.Demand > 0 {
			n++
		}
	}
	return n
}

func (s *State) clone() State {
	c := *s
	c.Entries = maps.Clone(s.Entries)
	return c
}

func (s *State) rate() bucket.Rate { return bucket.Rate{Tokens: s.Tokens, Micros: s.Micros} }

// grace is by how much longer than asked for the bucket keeps a lease.
const grace = 100 * time.Millisecond

// longest is as long as a hash is kept at most, 285 years: the largest number of microseconds that is exact in Redis.
const longest = 1 << 53

// maxLag is how far the clock may be behind before it counts as set back.
const maxLag = 5_000_000

// State returns a copy of all that the bucket keeps.
func (b *Bucket) State() State { return b.state.clone() }

// Restore makes the bucket what it was when s was taken, as a failover to a replica that is behind does.
func (b *Bucket) Restore(s State) { b.state = s.clone() }

// Flush makes the bucket forget everything.
func (b *Bucket) Flush() { b.state = State{} }

// Reset does what [lease.Source] implementations do for a reset: the bucket is full, and all leases are void. It
// reports whether there was anything to reset.
func (b *Bucket) Reset(now int64, lim limit.Limit) bool {
	b.expire(now)
	old := b.state
	if !old.Exists {
		return false
	}
	lag := max(0, old.Time-now)
	if lag > maxLag { // the clock was set back, and the leases move with it
		old.Last -= lag
		lag = 0
	}
	now += lag
	b.state = State{}
	if old.Last <= now {
		return true // nothing is out that would have to be told
	}
	rate := bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
	b.state = State{
		Exists: true, Level: int64(lim.Burst), Time: now,
		Tokens: rate.Tokens, Micros: rate.Micros, Burst: int64(lim.Burst),
		Epoch: max(now, old.Epoch+1), Mark: MarkReset,
		Last: old.Last, Leased: true, Deadline: now - lag + toLive(old.Last-now+lag),
	}
	return true
}

// toLive is the time to live of a hash that is needed for so long: in whole milliseconds, and a second longer.
func toLive(needed int64) int64 { return ((needed+999)/1000 + 1000) * 1000 }

// expire removes the hash if its time has come.
func (b *Bucket) expire(now int64) {
	if b.state.Exists && now >= b.state.Deadline {
		for _, e := range b.state.Entries {
			b.moved.expired += e.Outstanding()
		}
		b.state = State{}
	}
}

// Do answers one request at the time now, in microseconds, which may be less than before.
func (b *Bucket) Do(now int64, req lease.Request) lease.Grant {
	b.expire(now)
	c := newCall(b, now, &req)
	c.tellTime()
	c.endLeases()
	c.refill(c.now)
	stored := c.rate()
	if c.state.Exists && (stored != c.limit || c.state.Burst != c.burst) {
		c.changeLimit(stored)
	}
	status := c.settle()
	if status == lease.Stale || status == lease.Reset {
		return c.grant(status) // and nothing of all this is kept
	}
	c.clamp()
	c.takeBack()
	c.credit()
	admitted, scarce := c.decide()
	expiry := int64(0)
	if c.leased() {
		scarce = c.lend() || scarce
		expiry = c.renew()
	}
	g := c.grant(status)
	g.Granted, g.Expiry, g.Admitted, g.Scarce = c.entry.Granted, expiry, admitted, scarce
	if c.changed {
		c.keep()
		b.state, b.moved = c.state, c.moved
	}
	return g
}

// call is one request on its way through the steps of docs/protocol.md. It works on a copy of the state.
type call struct {
	req   *lease.Request
	limit bucket.Rate // of the request; the one in state is the stored one
	burst int64

	now, lag int64
	state    State
	changed  bool // whether the state is to be kept
	other    bool // whether the limit is not the stored one
	moved    tally
	bug      bug

	// entry is the lease of the caller, taken out of the state while the call is on; known is whether the bucket
	// had one. expiry is what the caller knows of it.
	entry  Entry
	known  bool
	expiry int64
}

func newCall(b *Bucket, now int64, req *lease.Request) *call {
	c := &call{
		req: req, limit: bucket.NewRate(int64(req.Limit.Rate), req.Limit.Period.Microseconds()), burst: int64(req.Limit.Burst),
		now: now, state: b.state.clone(), moved: b.moved, bug: b.bug, expiry: req.Lease.Expiry,
	}
	if !c.state.Exists {
		c.state = State{
			Level: c.burst, Time: now, Tokens: c.limit.Tokens, Micros: c.limit.Micros, Burst: c.burst, Epoch: now,
		}
	}
	if c.state.Entries == nil {
		c.state.Entries = map[string]Entry{}
	}
	return c
}

func (c *call) rate() bucket.Rate { return c.state.rate() }

// leased is whether the request is about a lease.
func (c *call) leased() bool { return c.req.Lease.ID != "" }

// lent and holders count the caller's entry while it is out of the state.
func (c *call) lent() int64 { return c.state.Lent() + c.entry.Outstanding() }

func (c *call) holders() int64 {
	n := c.state.Holders()
	if c.entry.Outstanding() > 0 || c.entry.Demand > 0 {
		n++
	}
	return n
}

// tellTime is step 1: time does not run backwards. After a step back by more than maxLag the whole bucket moves with
// the clock and nothing is minted; after a smaller one time stands still.
func (c *call) tellTime() {
	behind := c.state.Time - c.now
	switch {
	case behind <= 0:
	case behind <= maxLag:
		c.lag, c.now = behind, c.state.Time
	default:
		for id, e := range c.state.Entries {
			e.Expiry = max(0, e.Expiry-behind)
			c.state.Entries[id] = e
		}
		for _, t := range []*int64{&c.state.First, &c.state.Last, &c.expiry} {
			if *t > 0 {
				*t = max(1, *t-behind)
			}
		}
		c.state.Time, c.changed = c.now, true
	}
}

// room is what the bucket may hold of a burst: what is lent, beyond the slack, must not be filled up.
func (c *call) room(burst int64) int64 {
	return max(0, burst-max(0, c.lent()-c.req.Slack))
}

// refill brings the bucket to the time t, by the stored limit and by what is lent until then.
func (c *call) refill(t int64) {
	level := bucket.Level{N: c.state.Level, F: c.state.Frac}
	room := c.room(c.state.Burst)
	if level.N >= room {
		level = bucket.Full(room)
	} else {
		rate := c.rate()
		if c.bug == refillByNewLimit {
			rate = c.limit
		}
		level = level.After(rate, room, t-c.state.Time)
	}
	c.state.Level, c.state.Frac = level.N, level.F
	c.state.Time = max(c.state.Time, t)
}

// pause is the time between two looks at all leases, in microseconds.
const pause = 50_000

// endLeases is step 3: leases that have ended are taken out in the order in which they ended, each after a refill up
// to its end.
func (c *call) endLeases() {
	if c.bug == settleBeforeRefill {
		c.settleEarly()
	}
	if c.state.First == 0 || c.now < c.state.First {
		return
	}
	ids := slices.SortedFunc(maps.Keys(c.state.Entries), func(a, b string) int {
		return cmp.Compare(c.state.Entries[a].Expiry, c.state.Entries[b].Expiry)
	})
	c.state.First = 0
	for _, id := range ids {
		e := c.state.Entries[id]
		if e.Expiry > c.now {
			c.state.First = max(e.Expiry, c.now+pause) // not again for a moment
			break
		}
		if c.bug != endBeforeRefill {
			c.refill(e.Expiry)
		}
		delete(c.state.Entries, id)
		c.moved.expired += e.Outstanding()
	}
	c.changed = true
}

// changeLimit keeps whole tokens and scales a started one down. The sum is that of the script, whose numbers are
// doubles.
func (c *call) changeLimit(stored bucket.Rate) {
	c.other = true
	if c.state.Burst > c.burst {
		c.state.Largest = max(c.state.Largest, c.state.Burst)
	}
	less := 1e-15
	f := float64(c.state.Frac) / float64(stored.Micros) * float64(c.limit.Micros) * (1 - less)
	c.state.Frac = min(c.limit.Micros-1, int64(math.Floor(f)))
}

// settle is step 4: what the lease has used is not outstanding any more, and the lease that the bucket has lost is
// written down again. It must not come before the refill: what was lent until now kept the bucket from filling until
// now.
func (c *call) settle() lease.Status {
	if !c.leased() {
		return lease.OK
	}
	h := &c.req.Lease
	e, found := c.state.Entries[h.ID]
	told := h.Epoch != 0 // the caller has had an answer
	lost := told && h.Epoch != c.state.Epoch
	switch {
	case found && h.Seq <= e.Seq && c.bug != noFence:
		return lease.Stale // late or repeated
	case told && c.now >= c.expiry && (!found || lost || h.Used+h.Held > e.Granted):
		return lease.Stale // the lease has ended, and an entry is that of a late copy of the first request
	case lost && c.state.Mark == MarkReset:
		return lease.Reset
	}
	delete(c.state.Entries, h.ID)
	c.entry, c.known = e, found
	used := max(0, min(h.Used-e.Used, e.Outstanding()))
	c.entry.Used += used
	c.moved.used += used
	c.changed = c.changed || used > 0
	c.entry.Demand = h.Demand

	if !lost && (!told || h.Used+h.Held <= e.Granted) {
		return lease.OK
	}
	if c.bug != lossIgnored {
		c.moved.found += h.Held - c.entry.Outstanding()
		c.entry.Granted, c.entry.Used = h.Used+h.Held, h.Used
	}
	if c.state.Mark != MarkLoss { // once in an epoch the bucket starts from nothing
		c.state.Mark = MarkLoss
		if c.bug != lossIgnored {
			c.state.Level, c.state.Frac = min(c.state.Level, 0), 0
		}
	}
	c.changed = true
	return lease.Loss
}

// clamp keeps the bucket to what it may hold of the burst of the request.
func (c *call) clamp() { c.raise(0) }

// raise puts n tokens into the bucket as far as there is room, and says how many that were.
func (c *call) raise(n int64) int64 {
	before := c.state.Level
	c.state.Level = min(before+n, c.room(c.burst))
	if c.state.Level == c.room(c.burst) {
		c.state.Frac = 0 // what is above the brim is lost
	}
	return c.state.Level - before
}

// takeBack returns tokens that are lent and not held: the caller gave them up before it asked, or never heard of them
// and will not accept them now.
func (c *call) takeBack() {
	n := c.entry.Outstanding() - c.req.Lease.Held
	if !c.leased() || n <= 0 {
		return
	}
	c.entry.Granted -= n
	c.raise(n)
	c.moved.returned += n
	c.changed = true
}

// credit is step 5.
func (c *call) credit() {
	n := c.req.Credit
	before := c.state.Level
	switch {
	case n > 0:
		c.moved.credited += c.raise(n)
	case n < 0:
		c.state.Level = max(before+n, min(before, -c.burst)) // a debt of at most Burst
		c.moved.charged += max(0, before) - max(0, c.state.Level)
	}
	c.changed = c.changed || c.state.Level != before
}

// decide is step 6: the costs one after another, as if each had come alone.
func (c *call) decide() (admitted []int, scarce bool) {
	admitted = make([]int, len(c.req.Costs))
	for i, run := range c.req.Costs {
		cost := int64(run.Cost)
		if cost > 0 && c.other {
			c.changed = true // a refusal tells a wait by the new limit, so until then the refill has to be by that too
		}
		for admitted[i] < run.Count && cost <= max(0, c.state.Level) {
			if cost == 0 {
				admitted[i] = run.Count
				break
			}
			many := min(int64(run.Count-admitted[i]), c.state.Level/cost)
			c.state.Level -= many * cost
			admitted[i] += int(many)
			c.changed = true
		}
		scarce = scarce || admitted[i] < run.Count
	}
	return admitted, scarce
}

// lend is step 7, and says whether tokens are scarce.
func (c *call) lend() (scarce bool) {
	h := &c.req.Lease
	more := h.Want - c.entry.Outstanding()
	if more <= 0 {
		return false
	}
	level := c.state.Level
	// A share for this process, for each other one and for whoever comes next; or one by demand. In doubles, as in
	// the script.
	share := float64(level) / float64(c.state.Holders()+2)
	if all := c.state.Demand() + h.Demand; all > 0 {
		share = max(share, float64(level)*float64(h.Demand)/float64(all))
	}
	part := max(0, min(more, level, int64(math.Floor(share))))
	lent := max(0, min(part, h.MaxLeased-c.lent()))
	// Cut short for want of tokens, not by the bound on all leases.
	scarce = part < more && lent == part && level < h.Dry
	if lent > 0 {
		c.state.Level -= lent
		c.entry.Granted += lent
		c.moved.lent += lent
		c.changed = true
	}
	return scarce
}

// renew prolongs the lease and puts it back into the state, if there is anything to write down: tokens, or a change, or
// now and then that more is wanted.
func (c *call) renew() (expiry int64) {
	h := &c.req.Lease
	life := h.TTL.Microseconds()
	soon := 2*(c.entry.Expiry-c.now) < life
	if c.entry.Outstanding() <= 0 && !c.changed && (h.Demand == 0 || c.known && !soon) {
		return 0
	}
	c.entry.Seq = h.Seq
	c.entry.Expiry = max(c.entry.Expiry, c.now+life+grace.Microseconds())
	c.changed, c.state.Leased = true, true
	if c.state.First == 0 || c.entry.Expiry < c.state.First {
		c.state.First = c.entry.Expiry
	}
	c.state.Last = max(c.state.Last, c.entry.Expiry)
	return c.entry.Expiry
}

// keep is step 9: the state with the limit of the request, and until when it has to be kept.
func (c *call) keep() {
	s := &c.state
	s.Exists, s.Time = true, c.now
	s.Tokens, s.Micros, s.Burst = c.limit.Tokens, c.limit.Micros, c.burst
	lent := c.lent()
	if c.leased() {
		s.Entries[c.req.Lease.ID] = c.entry
	}
	// A missing hash says that the bucket is full, by whatever limit in use, and no lease is alive. Until the last
	// lease has ended, what is lent keeps its place free; only then can it fill up.
	span := func(n int64) int64 { return min(c.limit.Span(n), longest) }
	full := span(max(s.Burst, s.Largest) - s.Level)
	ended := s.Last - c.now + span(lent)
	switch c.bug {
	case ownTTL:
		ended = c.req.Lease.TTL.Microseconds() + grace.Microseconds()
	case lentNotRefilled:
		ended = s.Last - c.now
	case largestForgotten:
		full = span(s.Burst - s.Level)
	}
	// While the clock is behind, time stands still here and goes on there.
	s.Deadline = c.now - c.lag + toLive(min(max(full, ended)+c.lag, longest))
}

// grant is what every answer says.
func (c *call) grant(status lease.Status) lease.Grant {
	return lease.Grant{
		Status: status, Now: c.now, Lag: limit.Micros(c.lag), Epoch: c.state.Epoch,
		Level: c.state.Level, Frac: c.state.Frac, Lent: c.lent(), Holders: int(c.holders()),
	}
}
