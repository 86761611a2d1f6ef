package remote_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

var (
	differentialSteps = flag.Int("differential.steps", 0, "steps of each history of the differential test; 0 is a short form")
	differentialSeed  = flag.Uint64("differential.seed", 1, "first seed of the differential test")
)

// TestDifferential runs the script and the model of it on the same random requests, sane and hostile ones, and
// compares what they answer and everything they keep after each.
func TestDifferential(t *testing.T) {
	const day = 24 * time.Hour
	limits := []limit.Limit{
		{Rate: 100, Period: time.Second, Burst: 100},
		{Rate: 10, Period: time.Second, Burst: 7},
		{Rate: 3, Period: 7 * time.Second, Burst: 20},
		{Rate: 1, Period: day, Burst: 104249},
		{Rate: 999983, Period: day, Burst: 999983},
		{Rate: 1e9, Period: time.Second, Burst: 1e9},
		{Rate: 7, Period: time.Hour, Burst: 1e7},
		{Rate: 1, Period: time.Microsecond, Burst: 1},
		{Rate: 50, Period: time.Minute, Burst: 1000},
	}
	steps := *differentialSteps
	if steps == 0 {
		steps = 500
	}
	for i, lim := range limits {
		if err := lim.Validate(); err != nil {
			t.Fatal(err)
		}
		t.Run(strings.ReplaceAll(lim.String(), "/", " per "), func(t *testing.T) {
			redistest.Each(t, time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC), func(t *testing.T, b *redistest.Backend) {
				t.Parallel()
				seed := *differentialSeed + uint64(i)
				d := &differential{
					t: t, b: b, rng: rand.New(rand.NewPCG(seed, 0)), lims: []limit.Limit{lim},
					src:   remote.NewSource(b.Client, remote.Options{Prefix: "d:", Timeout: 20 * time.Second}),
					known: map[string]*told{}, tally: map[string]int{},
				}
				if i%2 == 1 { // in every other history the limit changes
					d.lims = append(d.lims, limits[(i+1)%len(limits)])
				}
				for step := range steps {
					d.step()
					if t.Failed() {
						t.Fatalf("seed %d, step %d", seed, step)
					}
				}
				t.Logf("%d steps: %v", steps, d.tally)
			})
		})
	}
}

// TestDifferential_manyLeases has more leases end at once, and more of them move with the clock, than fit into one command
// of a Lua script.
func TestDifferential_manyLeases(t *testing.T) {
	const leases = 10_000
	redistest.Each(t, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), func(t *testing.T, b *redistest.Backend) {
		d := &differential{
			t: t, b: b, src: remote.NewSource(b.Client, remote.Options{Prefix: "d:", Timeout: 20 * time.Second}),
		}
		ask := func(reqs ...lease.Request) {
			t.Helper()
			was := d.model.State()
			grants := make([]lease.Grant, len(reqs))
			d.src.Acquire(t.Context(), reqs, grants)
			for i, g := range grants {
				if want := d.model.Do(d.micros(), reqs[i]); g.Err != nil || g.Level != want.Level || g.Lent != want.Lent {
					t.Fatalf("request %d: %+v, want %+v", i, g, want)
				}
			}
			d.check("after", was, nil)
		}
		lim := limit.PerSecond(2 * leases)
		request := func(id string) lease.Request {
			req := lease.Request{Key: differentialKey, Limit: lim}
			req.Lease = lease.Holding{ID: id, Seq: 1, Want: 1, Demand: 1, MaxLeased: 2 * leases, TTL: time.Second}
			return req
		}
		ask(request("first"))
		s := d.model.State()
		s.Level -= leases
		fields := []any{"n", s.Level, "o", 1 + leases, "d", 1 + leases, "c", 1 + leases}
		for i := range leases {
			id := strconv.Itoa(i)
			s.Entries[id] = s.Entries["first"]
			fields = append(fields, "@"+id, fmt.Sprintf("1 1 0 1 %d", s.First))
		}
		d.model.Restore(s)
		if err := b.Client.HSet(t.Context(), differentialRedis, fields...).Err(); err != nil {
			t.Fatal(err)
		}
		d.set(d.micros() - 10_000_000)
		ask(request("last"))
		d.set(d.micros() + 2_000_000)
		ask(lease.Request{Key: differentialKey, Limit: lim, Costs: []lease.Run{{Cost: 1, Count: 1}}})
		if n := len(d.model.State().Entries); n != 0 {
			t.Errorf("%d leases are left", n)
		}
	})
}

const (
	differentialKey   = "k"
	differentialRedis = "d:{k}tb1"
)

// differential is one history.
type differential struct {
	t     *testing.T
	b     *redistest.Backend
	rng   *rand.Rand
	src   *remote.Source
	model leasetest.Bucket
	lims  []limit.Limit

	ids   int
	known map[string]*told // leases by ID
	saved *saved           // for a rollback
	lax   bool             // do not compare times to live
	tally map[string]int
}

// told is what the holder of a lease has heard of it.
type told struct {
	seq, granted, used, epoch, expiry int64
	spoiled                           bool // nonsense was said about it
}

type saved struct {
	state  leasetest.State
	fields map[string]string
	ttl    time.Duration
}

func (d *differential) micros() int64 { return d.b.Now().UnixMicro() }

// set moves the clock. When time goes back, miniredis does as it likes with times to live: from then on it is believed.
func (d *differential) set(us int64) {
	d.lax = d.lax || us < d.micros() && d.b.Name == "miniredis"
	d.b.Set(time.UnixMicro(us))
	s := d.model.State()
	if us >= s.Deadline {
		d.model.Flush() // now, because the next call may come when time has gone back again
	}
	if !d.lax {
		return
	}
	s.Deadline = math.MaxInt64
	if !d.b.Exists(differentialRedis) {
		s = leasetest.State{}
	}
	d.model.Restore(s)
}

func (d *differential) step() {
	d.pass()
	lim := d.limit()
	switch n := d.rng.IntN(100); {
	case n < 2:
		d.tally["reset"]++
		was := d.model.State()
		d.model.Reset(d.micros(), lim)
		d.check("reset", was, d.src.Reset(d.t.Context(), differentialKey, lim))
	case n < 3:
		d.tally["flush"]++
		d.model.Flush()
		d.check("flush", leasetest.State{}, d.b.Client.Del(d.t.Context(), differentialRedis).Err())
	case n < 5:
		d.save()
	case n < 6:
		d.rollback()
	default:
		d.request(lim)
	}
}

func (d *differential) limit() limit.Limit {
	if d.rng.IntN(20) == 0 {
		d.lims[0], d.lims[len(d.lims)-1] = d.lims[len(d.lims)-1], d.lims[0]
	}
	return d.lims[0]
}

// pass lets time pass: often to an instant at which something happens, or one off it.
func (d *differential) pass() {
	now, s := d.micros(), d.model.State()
	switch d.rng.IntN(24) {
	case 0:
		d.tally["step back"]++
		d.set(now - d.rng.Int64N(5_000_001))
	case 1:
		d.tally["step far back"]++
		d.set(now - 5_000_000 - d.rng.Int64N(100_000_000))
	case 2, 3:
		d.set(max(now, s.First+d.rng.Int64N(3)-1))
	case 4:
		if d.rng.IntN(8) == 0 {
			d.set(max(now, min(s.Deadline, now+1e12)+d.rng.Int64N(3)-1))
		}
	case 5, 6:
		for _, e := range s.Entries {
			d.set(max(now, e.Expiry+d.rng.Int64N(3)-1))
			break
		}
	case 7, 8, 9:
	case 10:
		d.set(now + d.rng.Int64N(d.lims[0].Period.Microseconds()*2))
	default:
		d.set(now + d.rng.Int64N([]int64{2, 1000, 10_000, 100_000, 3_000_000}[d.rng.IntN(5)]))
	}
}

// upTo is a number that is often small and seldom more than n.
func (d *differential) upTo(n int64) int64 {
	switch d.rng.IntN(6) {
	case 0:
		return 0
	case 1:
		return n
	case 2:
		return d.rng.Int64N(max(n, 1) + 2)
	case 3:
		return d.rng.Int64N(max(n/4, 1) + 2)
	default:
		return d.rng.Int64N(min(max(n, 1), 10) + 1)
	}
}

func (d *differential) request(lim limit.Limit) {
	burst := int64(lim.Burst)
	req := lease.Request{Key: differentialKey, Limit: lim}
	if d.rng.IntN(10) == 0 {
		req.Slack = d.upTo(burst)
	}
	switch d.rng.IntN(12) {
	case 0:
		req.Credit = d.upTo(burst)
	case 1:
		req.Credit = -d.upTo(2 * burst)
	}
	for range d.rng.IntN(4) {
		req.Costs = append(req.Costs, lease.Run{Cost: int(d.upTo(burst)), Count: 1 + d.rng.IntN(5)})
	}
	if d.rng.IntN(10) == 0 {
		for range lease.MaxRuns - len(req.Costs) {
			req.Costs = append(req.Costs, lease.Run{Cost: 1 + d.rng.IntN(3), Count: 1 + d.rng.IntN(3)})
		}
	}
	var k *told
	if d.rng.IntN(4) > 0 {
		k = d.lease(&req, burst)
	}
	now := d.micros()
	was := d.model.State()
	want := d.model.Do(now, req)
	got := make([]lease.Grant, 1)
	d.src.Acquire(d.t.Context(), []lease.Request{req}, got)
	if want.Admitted == nil {
		want.Admitted = []int{}
	}
	what := fmt.Sprintf("at %d: %+v", now, req)
	if k != nil && k.spoiled && got[0].Err != nil && strings.Contains(got[0].Err.Error(), "unexpected reply") {
		d.tally["refused"]++ // by the client, which trusts no reply; what the script keeps has to be the same
		got[0] = want
	}
	if !reflect.DeepEqual(got[0], want) {
		d.t.Errorf("%s\n was %+v\n got %+v\nwant %+v", what, was, got[0], want)
	}
	d.check(what, was, got[0].Err)
	d.tally[[]string{"ok", "stale", "void", "loss"}[want.Status]]++
	if want.Scarce {
		d.tally["scarce"]++
	}
	if k != nil && d.rng.IntN(6) > 0 { // else the reply is lost
		k.granted, k.epoch = want.Granted, want.Epoch
		if want.Expiry != 0 {
			k.expiry = want.Expiry
		}
		if want.Status == lease.Stale || want.Status == lease.Reset {
			delete(d.known, req.Lease.ID)
		}
	}
}

// lease makes the request one about a lease: mostly as its holder would, now and then nonsense.
func (d *differential) lease(req *lease.Request, burst int64) *told {
	var id string
	if len(d.known) < 3 || d.rng.IntN(20) == 0 && len(d.known) < 40 {
		d.ids++
		id = "p" + strconv.Itoa(d.ids)
		d.known[id] = &told{}
	} else {
		n := d.rng.IntN(d.ids) // some one, the same in every run of the seed
		for i := 0; ; i++ {
			id = "p" + strconv.Itoa(1+(n+i)%d.ids)
			if d.known[id] != nil {
				break
			}
		}
	}
	k := d.known[id]
	k.seq++
	k.used += min(d.upTo(k.granted-k.used), k.granted-k.used)
	h := &req.Lease
	*h = lease.Holding{
		ID: id, Seq: k.seq, Used: k.used, Held: k.granted - k.used, Demand: d.upTo(burst / 10),
		Epoch: k.epoch, Expiry: k.expiry, MaxLeased: burst/4 + d.upTo(burst), Dry: d.upTo(burst),
		TTL: time.Duration(1+d.rng.Int64N(3_000_000)) * time.Microsecond,
	}
	if d.rng.IntN(3) == 0 {
		h.Held -= min(h.Held, d.upTo(h.Held))
		k.granted = h.Used + h.Held
	}
	h.Want = h.Held + d.upTo(burst/4)
	if d.rng.IntN(8) == 0 {
		k.spoiled = true
		d.tally["nonsense"]++
		switch d.rng.IntN(8) {
		case 0:
			h.Seq = max(1, h.Seq-d.rng.Int64N(4))
		case 1:
			h.Used += d.upTo(burst)
		case 2:
			h.Held += d.upTo(burst)
		case 3:
			h.Want = 0
		case 4:
			h.Epoch += d.rng.Int64N(2)
		case 5:
			h.Expiry = max(0, h.Expiry-d.rng.Int64N(1e7))
		case 6:
			h.Used = max(0, h.Used-d.upTo(burst))
		case 7:
			h.MaxLeased = 0
		}
	}
	return k
}

func (d *differential) save() {
	ttl, ok := d.b.PTTL(differentialRedis)
	if !ok {
		return
	}
	d.saved = &saved{d.model.State(), d.b.Client.HGetAll(d.t.Context(), differentialRedis).Val(), ttl}
}

// restore puts a whole hash in the place of another.
const restore = `redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return redis.call('PEXPIRE', KEYS[1], ARGV[1])`

func (d *differential) rollback() {
	if d.saved == nil || d.saved.ttl == 0 || !d.saved.state.Exists {
		return
	}
	d.tally["rollback"]++
	s := d.saved.state
	s.Deadline = d.micros() + d.saved.ttl.Microseconds()
	d.model.Restore(s)
	args := []any{d.saved.ttl.Milliseconds()}
	for field, value := range d.saved.fields {
		args = append(args, field, value)
	}
	d.check("rollback", s, d.b.Client.Eval(d.t.Context(), restore, []string{differentialRedis}, args...).Err())
}

// check compares all that the bucket in Redis and the model keep.
func (d *differential) check(what string, was leasetest.State, err error) {
	if err != nil {
		d.t.Errorf("%s\n was %+v\n%v", what, was, err)
		return
	}
	now := d.micros()
	want := d.model.State()
	if want.Exists && now >= want.Deadline {
		want = leasetest.State{}
	}
	got, err := hashState(d.b.Client.HGetAll(d.t.Context(), differentialRedis).Val(), &want)
	if err != nil {
		d.t.Errorf("%s\n%v", what, err)
		return
	}
	got.Deadline = want.Deadline
	if want.Entries == nil {
		want.Entries = map[string]leasetest.Entry{}
	}
	if !reflect.DeepEqual(got, want) {
		d.t.Errorf("%s\n was %+v\n now %+v\nwant %+v", what, was, got, want)
	}
	// A millisecond of difference may come from the doubles of the script; far off, from those of the test's clock.
	if d.lax {
		return
	}
	ttl, ok := d.b.PTTL(differentialRedis)
	left := limit.Micros(want.Deadline - now).Truncate(time.Millisecond)
	if ok != want.Exists || ok && (ttl-left).Abs() > time.Millisecond {
		d.t.Errorf("%s\n was %+v\ntime to live %v, %v, want %v, %v", what, was, ttl, ok, left, want.Exists)
	}
}

// hashState reads a hash as docs/protocol.md describes it, and compares its sums with those of the model.
func hashState(fields map[string]string, model *leasetest.State) (leasetest.State, error) {
	s := leasetest.State{Entries: map[string]leasetest.Entry{}}
	if len(fields) == 0 {
		return s, nil
	}
	s.Exists = true
	var lent, demand, holders int64
	numbers := map[string]*int64{
		"n": &s.Level, "f": &s.Frac, "t": &s.Time, "e": &s.Epoch, "z": &s.Mark, "m": &s.Largest,
		"o": &lent, "d": &demand, "c": &holders, "x": &s.First, "y": &s.Last,
	}
	for name, text := range fields {
		var err error
		switch id, isEntry := strings.CutPrefix(name, "@"); {
		case isEntry:
			var e leasetest.Entry
			_, err = fmt.Sscanf(text, "%d %d %d %d %d", &e.Seq, &e.Granted, &e.Used, &e.Demand, &e.Expiry)
			s.Entries[id] = e
		case name == "L":
			_, err = fmt.Sscanf(text, "%d %d %d", &s.Tokens, &s.Micros, &s.Burst)
		case numbers[name] != nil:
			*numbers[name], err = strconv.ParseInt(text, 10, 64)
		default:
			err = fmt.Errorf("unknown")
		}
		if err != nil {
			return s, fmt.Errorf("field %s = %q: %v", name, text, err)
		}
	}
	_, s.Leased = fields["o"]
	if lent != model.Lent() || demand != model.Demand() || holders != model.Holders() {
		return s, fmt.Errorf("o, d, c = %d, %d, %d, want %d, %d, %d\n now %v", lent, demand, holders, model.Lent(), model.Demand(), model.Holders(), fields)
	}
	return s, nil
}
