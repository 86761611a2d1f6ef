package leasetest

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// The rules of docs/protocol.md one by one, on one bucket: 100 tokens, ten a second. Times are milliseconds.
func TestBucket(t *testing.T) {
	lim := limit.PerSecond(10).WithBurst(100)
	type step struct {
		at    int64
		req   lease.Request
		want  lease.Grant // Now, Epoch and what is not compared are left out
		check string      // level, lent, holders as text
	}
	exact := func(n int) lease.Request { return lease.Request{Costs: []lease.Run{{Cost: 1, Count: n}}} }
	ask := func(seq, used, held, want, epoch, expiry int64, costs ...lease.Run) lease.Request {
		return lease.Request{Costs: costs, Lease: lease.Holding{
			ID: "a", Seq: seq, Used: used, Held: held, Want: want, Demand: 10, Epoch: epoch, Expiry: expiry, MaxLeased: 50, TTL: time.Second, Dry: 5,
		}}
	}
	const epoch = 10_000_000
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"lent, and given back", []step{
			{0, ask(1, 0, 0, 40, 0, 0), lease.Grant{Granted: 40, Expiry: 1100}, "60 40 1"},
			{500, ask(2, 10, 0, 0, epoch, 1100), lease.Grant{Granted: 10, Expiry: 1600}, "90 0 1"},
		}},
		{"what is lent keeps its place free until it is reported", []step{
			{0, ask(1, 0, 0, 50, 0, 0), lease.Grant{Granted: 50, Expiry: 1100}, "50 50 1"},
			{900, exact(0), lease.Grant{Admitted: []int{0}}, "50 50 1"},
			{1000, ask(2, 50, 0, 0, epoch, 1100), lease.Grant{Granted: 50, Expiry: 2100}, "50 0 1"},
			{2000, exact(0), lease.Grant{Admitted: []int{0}}, "60 0 1"},
		}},
		{"and until it has ended", []step{
			{0, ask(1, 0, 0, 50, 0, 0), lease.Grant{Granted: 50, Expiry: 1100}, "50 50 1"},
			{1099, exact(0), lease.Grant{Admitted: []int{0}}, "50 50 1"},
			{1200, exact(0), lease.Grant{Admitted: []int{0}}, "51 0 0"},
		}},
		{"late and repeated requests change nothing", []step{
			{0, ask(2, 0, 0, 40, 0, 0), lease.Grant{Granted: 40, Expiry: 1100}, "60 40 1"},
			{1, ask(2, 0, 0, 40, 0, 0), lease.Grant{Status: lease.Stale}, "60 40 1"},
			{2, ask(1, 0, 0, 40, 0, 0, lease.Run{Cost: 1, Count: 1}), lease.Grant{Status: lease.Stale}, "60 40 1"},
			{1101, ask(3, 0, 40, 40, epoch, 1100), lease.Grant{Status: lease.Stale}, "60 0 0"},
		}},
		{"a lost grant is taken back, or given again", []step{
			{0, ask(1, 0, 0, 40, 0, 0), lease.Grant{Granted: 40, Expiry: 1100}, "60 40 1"},
			{10, ask(2, 0, 0, 20, 0, 0), lease.Grant{Granted: 20, Expiry: 1110}, "80 20 1"},
		}},
		{"costs come before leases, in order", []step{
			{0, ask(1, 0, 0, 50, 0, 0, lease.Run{Cost: 40, Count: 3}, lease.Run{Cost: 5, Count: 5}),
				lease.Grant{Granted: 0, Admitted: []int{2, 4}, Expiry: 1100, Scarce: true}, "0 0 1"},
		}},
		{"no more than the bucket may lend", []step{
			{0, ask(1, 0, 0, 60, 0, 0), lease.Grant{Granted: 50, Expiry: 1100}, "50 50 1"},
		}},
		{"credit and debt", []step{
			{0, exact(30), lease.Grant{Admitted: []int{30}}, "70 0 0"},
			{0, lease.Request{Credit: 10}, lease.Grant{}, "80 0 0"},
			{0, lease.Request{Credit: 30}, lease.Grant{}, "100 0 0"},
			{0, lease.Request{Credit: -150}, lease.Grant{}, "-50 0 0"},
			{0, lease.Request{Credit: -150}, lease.Grant{}, "-100 0 0"},
			{1000, exact(1), lease.Grant{Admitted: []int{0}, Scarce: true}, "-90 0 0"},
		}},
		{"the clock a little back", []step{
			{0, exact(100), lease.Grant{Admitted: []int{100}}, "0 0 0"},
			{-4000, exact(1), lease.Grant{Admitted: []int{0}, Scarce: true, Lag: 4 * time.Second}, "0 0 0"},
			{1000, exact(0), lease.Grant{Admitted: []int{0}}, "10 0 0"},
		}},
		{"the clock far back", []step{
			{0, exact(100), lease.Grant{Admitted: []int{100}}, "0 0 0"},
			{-6000, exact(1), lease.Grant{Admitted: []int{0}, Scarce: true}, "0 0 0"},
			{-5000, exact(0), lease.Grant{Admitted: []int{0}}, "10 0 0"},
		}},
		{"slack", []step{
			{0, ask(1, 0, 0, 50, 0, 0), lease.Grant{Granted: 50, Expiry: 1100}, "50 50 1"},
			{1000, lease.Request{Slack: 5}, lease.Grant{}, "55 50 1"},
		}},
	} {
		var b Bucket
		for i, s := range tt.steps {
			s.req.Key, s.req.Limit = "k", lim
			if s.req.Lease.Expiry != 0 {
				s.req.Lease.Expiry = epoch + s.req.Lease.Expiry*1000
			}
			if s.want.Expiry != 0 {
				s.want.Expiry = epoch + s.want.Expiry*1000
			}
			got := b.Do(epoch+s.at*1000, s.req)
			if check := fmt.Sprint(got.Level, got.Lent, got.Holders); check != s.check {
				t.Errorf("%s, step %d: %s, want %s", tt.name, i, check, s.check)
			}
			s.want.Now, s.want.Epoch = got.Now, got.Epoch
			s.want.Level, s.want.Frac, s.want.Lent, s.want.Holders = got.Level, got.Frac, got.Lent, got.Holders
			if len(got.Admitted) == 0 {
				got.Admitted = nil
			}
			if !reflect.DeepEqual(got, s.want) {
				t.Errorf("%s, step %d:\n got %+v\nwant %+v", tt.name, i, got, s.want)
			}
		}
	}
}

func TestBucket_State(t *testing.T) {
	var b Bucket
	if s := b.State(); s.Exists {
		t.Errorf("a new bucket keeps %+v", s)
	}
	req := lease.Request{Limit: limit.PerSecond(10)}
	req.Lease = lease.Holding{ID: "a", Seq: 1, Want: 2, Demand: 3, MaxLeased: 5, TTL: time.Second}
	b.Do(1000, req)
	old := b.State()
	if old.Lent() != 2 || old.Demand() != 3 || old.Holders() != 1 || old.Entries["a"].Outstanding() != 2 || old.Level != 8 {
		t.Errorf("%+v", old)
	}
	old.Entries["b"] = Entry{} // a copy
	if n := len(b.State().Entries); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
	b.Restore(old)
	old.Entries["c"] = Entry{}
	if n := len(b.State().Entries); n != 2 {
		t.Errorf("%d entries after Restore, want 2", n)
	}
	if b.Flush(); b.State().Exists {
		t.Error("something is left")
	}
	if b.Reset(2000, req.Limit) {
		t.Error("a reset found something")
	}
}

// After a reset holders are told so, once, and for as long as their leases would have lived.
func TestBucket_Reset(t *testing.T) {
	lim := limit.PerSecond(10)
	req := lease.Request{Limit: lim}
	req.Lease = lease.Holding{ID: "a", Seq: 1, Want: 5, MaxLeased: 5, TTL: 5 * time.Second}
	var b Bucket
	g := b.Do(1e6, req)
	if !b.Reset(1.5e6, lim) {
		t.Fatal("nothing to reset")
	}
	if s := b.State(); s.Level != 10 || s.Mark != MarkReset || s.Epoch == g.Epoch || len(s.Entries) != 0 {
		t.Errorf("%+v", s)
	}
	// Other calls do not shorten that time.
	b.Do(1.6e6, lease.Request{Limit: lim, Costs: []lease.Run{{Cost: 1, Count: 1}}})
	req.Lease = lease.Holding{ID: "a", Seq: 2, Used: 2, Held: 3, Want: 5, MaxLeased: 5, TTL: 5 * time.Second, Epoch: g.Epoch, Expiry: g.Expiry}
	if got := b.Do(g.Expiry-1, req); got.Status != lease.Reset || got.Granted != 0 {
		t.Errorf("%+v, want Reset", got)
	}
	if got := b.Do(g.Expiry, req); got.Status != lease.Stale {
		t.Errorf("%+v, want Stale", got)
	}
}

// A key that is gone must have been full.
func TestBucket_deadline(t *testing.T) {
	lim := limit.PerMinute(600)
	for _, lent := range []int64{0, 1, 150} {
		var b Bucket
		req := lease.Request{Limit: lim}
		req.Lease = lease.Holding{ID: "a", Seq: 1, Want: lent, Demand: 1, MaxLeased: 150, TTL: 4 * time.Second}
		b.Do(0, req)
		gone := b.State().Deadline
		before := b.Do(gone-1, lease.Request{Limit: lim})
		if after := b.Do(gone, lease.Request{Limit: lim}); before.Level != 600 || after.Level != 600 {
			t.Errorf("%d lent: %d just before the key is gone, %d then", lent, before.Level, after.Level)
		}
		if s := b.State(); gone > 4_100_000+lent*100_000+1_001_000 {
			t.Errorf("%d lent: kept until %d: %+v", lent, gone, s)
		}
	}
}

// Whatever is asked, the bucket never holds more than it may, and its sums are right.
func FuzzBucket(f *testing.F) {
	f.Add([]byte("a bucket"))
	f.Add(slices.Repeat([]byte{1, 2, 3, 0, 255, 7, 9, 128}, 40))
	limits := []limit.Limit{
		limit.PerSecond(100), limit.PerSecond(1), limit.PerDay(999_983), {Rate: 3, Period: 7 * time.Second, Burst: 50}, {Rate: 1e9, Period: time.Second, Burst: 1e9},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		number := func() int64 { // mostly small, of any size and sign
			if len(data) < 9 {
				data = nil
				return 0
			}
			n := int64(binary.LittleEndian.Uint64(data[1:])) >> min(data[0], 63)
			n %= 1 << 50 // counts add up below 2^53
			data = data[9:]
			return n
		}
		positive := func() int64 {
			n := number()
			return max(n, -n)
		}
		var b Bucket
		now := int64(1 << 40)
		for len(data) > 0 {
			now += number() % (1 << 36)
			now = max(now, 1<<30)
			lim := limits[positive()%int64(len(limits))]
			if positive()%16 == 1 {
				b.Reset(now, lim)
				continue
			}
			req := lease.Request{Limit: lim, Credit: number(), Slack: positive()}
			for range positive() % 3 {
				req.Costs = append(req.Costs, lease.Run{Cost: int(positive()), Count: int(positive() % 1000)})
			}
			if n := positive() % 4; n > 0 {
				req.Lease = lease.Holding{
					ID: fmt.Sprint(n), Seq: positive() % 100, Used: positive(), Held: positive(), Want: positive(), Demand: positive() % 1000,
					Epoch: positive(), Expiry: positive(), MaxLeased: positive(), Dry: positive(), TTL: time.Duration(positive() % (1 << 40)),
				}
				if known := b.State(); positive()%2 == 0 {
					req.Lease.Epoch, req.Lease.Expiry = known.Epoch, known.Last
				}
			}
			g := b.Do(now, req)
			decided := g.Status == lease.OK || g.Status == lease.Loss
			room := max(0, int64(lim.Burst)-max(0, g.Lent-req.Slack))
			rate := limitRate(lim)
			switch {
			case decided && g.Level > room, g.Level < -(1 << 51):
				t.Fatalf("%+v\n%+v: level above %d", req, g, room)
			case decided && (g.Frac < 0 || g.Frac >= rate):
				t.Fatalf("%+v\n%+v: a started token of %d in %d", req, g, g.Frac, rate)
			case decided != (len(g.Admitted) == len(req.Costs)) && len(req.Costs) > 0:
				t.Fatalf("%+v\n%+v: admitted", req, g)
			case g.Lent < 0 || g.Holders < 0 || g.Lag < 0 || g.Lag > maxLag*time.Microsecond:
				t.Fatalf("%+v\n%+v", req, g)
			}
			for i, k := range g.Admitted {
				if k < 0 || k > req.Costs[i].Count {
					t.Fatalf("%+v\n%+v: admitted", req, g)
				}
			}
			s := b.State()
			for id, e := range s.Entries {
				if e.Outstanding() < 0 || e.Used < 0 || s.First > max(e.Expiry, s.Time+50_000) || s.Last < e.Expiry {
					t.Fatalf("%+v\n%+v: entry %s", req, s, id)
				}
			}
			if s.Exists && s.Deadline <= now {
				t.Fatalf("%+v\n%+v: gone already", req, s)
			}
		}
	})
}

// limitRate is in how many units a token of the limit is counted.
func limitRate(lim limit.Limit) int64 {
	a, b := int64(lim.Rate), lim.Period.Microseconds()
	for b != 0 {
		a, b = b, a%b
	}
	return lim.Period.Microseconds() / a
}
