package lease_test

import (
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// A lease in steps: what is said with held tokens held, what is heard, and how many tokens come in by it.
func TestState(t *testing.T) {
	const epoch, expiry = 7, 9
	type step struct {
		giveUp     int64
		held, want int64
		said       lease.Holding
		heard      *lease.Grant // nil if the answer is lost
		in         int64
	}
	grant := func(granted int64) *lease.Grant { return &lease.Grant{Granted: granted, Epoch: epoch, Expiry: expiry} }
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"used and renewed", []step{
			{0, 0, 10, lease.Holding{Seq: 1, Want: 10}, grant(10), 10},
			{0, 4, 10, lease.Holding{Seq: 2, Used: 6, Held: 4, Want: 10, Epoch: epoch, Expiry: expiry}, grant(16), 6},
			{0, 10, 10, lease.Holding{Seq: 3, Used: 6, Held: 10, Want: 10, Epoch: epoch, Expiry: expiry}, grant(16), 0},
		}},
		{"a lost answer comes with the next", []step{
			{0, 0, 10, lease.Holding{Seq: 1, Want: 10}, nil, 0},
			{0, 0, 10, lease.Holding{Seq: 2, Want: 10}, grant(10), 10},
			{0, 3, 10, lease.Holding{Seq: 3, Used: 7, Held: 3, Want: 10, Epoch: epoch, Expiry: expiry}, nil, 0},
			{0, 1, 10, lease.Holding{Seq: 4, Used: 9, Held: 1, Want: 10, Epoch: epoch, Expiry: expiry}, grant(19), 9},
		}},
		{"given back", []step{
			{0, 0, 10, lease.Holding{Seq: 1, Want: 10}, grant(10), 10},
			{7, 0, 0, lease.Holding{Seq: 2, Used: 3, Epoch: epoch, Expiry: expiry}, grant(3), 0},
			{0, 0, 5, lease.Holding{Seq: 3, Used: 3, Want: 5, Epoch: epoch, Expiry: expiry}, grant(8), 5},
		}},
		{"given up while the request was out, and renewed", []step{
			{0, 0, 10, lease.Holding{Seq: 1, Want: 10}, grant(10), 10},
			{4, 6, 6, lease.Holding{Seq: 2, Held: 6, Want: 6, Epoch: epoch, Expiry: expiry}, grant(10), 4},
		}},
		{"nothing written down", []step{
			{0, 0, 5, lease.Holding{Seq: 1, Want: 5}, &lease.Grant{Epoch: 3}, 0},
			{0, 0, 5, lease.Holding{Seq: 2, Want: 5}, grant(5), 5},
			{0, 0, 5, lease.Holding{Seq: 3, Used: 5, Want: 5, Epoch: epoch, Expiry: expiry}, &lease.Grant{Granted: 5, Epoch: epoch}, 0},
			{0, 0, 5, lease.Holding{Seq: 4, Used: 5, Want: 5, Epoch: epoch, Expiry: expiry}, grant(10), 5},
		}},
		{"lost by the bucket and written down again", []step{
			{0, 0, 10, lease.Holding{Seq: 1, Want: 10}, grant(10), 10},
			{0, 8, 10, lease.Holding{Seq: 2, Used: 2, Held: 8, Want: 10, Epoch: epoch, Expiry: expiry},
				&lease.Grant{Status: lease.Loss, Granted: 10, Epoch: 20, Expiry: 30}, 0},
			{0, 8, 10, lease.Holding{Seq: 3, Used: 2, Held: 8, Want: 10, Epoch: 20, Expiry: 30}, grant(12), 2},
		}},
	} {
		var s lease.State
		if s.Open() {
			t.Error("the zero State is open")
		}
		s.Begin("id")
		for i, step := range tt.steps {
			s.GiveUp(step.giveUp)
			if got := s.Used(step.held); got != step.said.Used {
				t.Errorf("%s, step %d: used %d, want %d", tt.name, i, got, step.said.Used)
			}
			said := lease.Holding{Demand: 5, MaxLeased: 6, TTL: 7, Dry: 8}
			step.said.ID, step.said.Demand, step.said.MaxLeased, step.said.TTL, step.said.Dry = "id", 5, 6, 7, 8
			if s.Ask(&said, step.held, step.want); said != step.said {
				t.Errorf("%s, step %d: said %+v, want %+v", tt.name, i, said, step.said)
			}
			if step.heard == nil {
				continue
			}
			if in := s.Accept(step.heard); in != step.in {
				t.Errorf("%s, step %d: %d came in, want %d", tt.name, i, in, step.in)
			}
		}
		s.Begin("other")
		var said lease.Holding
		if s.Ask(&said, 0, 1); said != (lease.Holding{ID: "other", Seq: 1, Want: 1}) || !s.Open() {
			t.Errorf("%s: a new lease says %+v", tt.name, said)
		}
		if s.End(); s != (lease.State{}) {
			t.Errorf("%s: left after the end: %+v", tt.name, s)
		}
	}
}

// A holder that gets nothing because the bucket is dry is told no epoch: the next time it asks, it must not be told
// that its lease has ended.
func TestState_dry(t *testing.T) {
	var b leasetest.Bucket
	var s lease.State
	s.Begin("id")
	now := int64(1_000_000)
	ask := func(costs ...lease.Run) lease.Grant {
		req := lease.Request{Key: "k", Limit: limit.PerMinute(5), Costs: costs}
		s.Ask(&req.Lease, 0, 2)
		req.Lease.MaxLeased, req.Lease.TTL = 5, time.Second
		now += 1000
		g := b.Do(now, req)
		s.Accept(&g)
		return g
	}
	b.Do(now, lease.Request{Limit: limit.PerMinute(5), Costs: []lease.Run{{Cost: 5, Count: 1}}})
	for range 3 {
		if g := ask(lease.Run{Cost: 1, Count: 1}); g.Status != lease.OK || g.Expiry != 0 || g.Granted != 0 {
			t.Fatalf("%+v, want OK and nothing", g)
		}
	}
	now += 60_000_000
	if g := ask(); g.Status != lease.OK || g.Granted != 2 || g.Expiry == 0 {
		t.Errorf("%+v, want 2 tokens", g)
	}
}

// Whatever a bucket answers, used and held add up to what came in, and sequence numbers rise.
func FuzzState(f *testing.F) {
	f.Add([]byte{0, 10, 1, 3, 0, 0, 2, 7, 3, 0})
	f.Add([]byte{0, 255, 2, 200, 1, 1, 0, 0, 3, 9, 2, 128})
	f.Fuzz(func(t *testing.T, data []byte) {
		var s lease.State
		s.Begin("id")
		in, seq := int64(0), int64(0)
		for len(data) >= 2 {
			op, x := data[0]%4, int64(int8(data[1]))*1_000_003
			data = data[2:]
			switch op {
			case 0:
				var h lease.Holding
				if s.Ask(&h, x, x+1); h.Used+h.Held != in || h.Seq != seq+1 || h.Want != x+1 {
					t.Fatalf("%+v, want used and held to be %d and sequence %d", h, in, seq+1)
				}
				seq = h.Seq
			case 1:
				s.GiveUp(x)
				in -= x
			case 2:
				g := lease.Grant{Granted: x, Epoch: x, Expiry: x & 1, Status: lease.Status(x & 3)}
				if got := s.Accept(&g); got != x-in {
					t.Fatalf("%d came in, want %d", got, x-in)
				}
				in = x
			case 3:
				s.Begin("id")
				in, seq = 0, 0
			}
			if s.Used(0) != in {
				t.Fatalf("%d came in, want %d", s.Used(0), in)
			}
		}
	})
}
