package lease_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

const (
	us  = time.Microsecond
	ms  = time.Millisecond
	sec = time.Second
)

func TestTuning_Validate(t *testing.T) {
	for _, tt := range []struct {
		tuning lease.Tuning
		want   string // a part of the error; empty if there is none
	}{
		{lease.Tuning{}, ""},
		{lease.Tuning{Size: 1, Refresh: 1, TTL: 1, MaxLeased: 1, Slack: 1}, ""},
		{lease.Tuning{Size: -1}, "LeaseSize -1"},
		{lease.Tuning{Refresh: -1}, "Refresh -1ns"},
		{lease.Tuning{TTL: -1}, "LeaseTTL -1ns"},
		{lease.Tuning{MaxLeased: -0.1}, "MaxLeased -0.1"},
		{lease.Tuning{MaxLeased: 1.1}, "MaxLeased 1.1"},
		{lease.Tuning{MaxLeased: math.NaN()}, "MaxLeased NaN"},
		{lease.Tuning{Slack: -0.1}, "Slack -0.1"},
		{lease.Tuning{Slack: 1.1}, "Slack 1.1"},
		{lease.Tuning{Slack: math.NaN()}, "Slack NaN"},
	} {
		err := tt.tuning.Validate()
		if (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, limit.ErrInvalid) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.tuning, err, tt.want)
		}
	}
}

func TestNewTerms(t *testing.T) {
	perMinute := limit.PerMinute(600)
	for _, tt := range []struct {
		name   string
		lim    limit.Limit
		tuning lease.Tuning
		want   lease.Terms
	}{
		{"a second", limit.PerSecond(1000), lease.Tuning{}, lease.Terms{Tau: 50 * ms, TTL: 200 * ms, MaxLeased: 250, Dry: 100}},
		{"a minute", perMinute, lease.Tuning{}, lease.Terms{Tau: sec, TTL: 4 * sec, MaxLeased: 150, Dry: 20}},
		{"a day", limit.PerDay(1), lease.Tuning{}, lease.Terms{Tau: sec, TTL: 4 * sec, Dry: 1}},
		{"half a second", limit.PerSecond(1000).WithBurst(500), lease.Tuning{}, lease.Terms{Tau: 25 * ms, TTL: 100 * ms, MaxLeased: 125, Dry: 60}},
		{"100 ms", limit.PerSecond(1000).WithBurst(100), lease.Tuning{}, lease.Terms{Tau: 5 * ms, TTL: 40 * ms, MaxLeased: 25, Dry: 13}},
		{"20 ms", limit.PerSecond(1000).WithBurst(20), lease.Tuning{}, lease.Terms{Tau: ms, TTL: 10 * ms, MaxLeased: 5, Dry: 3}},
		{"a microsecond", limit.Every(us), lease.Tuning{}, lease.Terms{Tau: us, TTL: us, Dry: 2}},
		{"Refresh", limit.PerSecond(1000), lease.Tuning{Refresh: 20 * ms}, lease.Terms{Tau: 20 * ms, TTL: 80 * ms, MaxLeased: 250, Dry: 60}},
		{"long Refresh", perMinute, lease.Tuning{Refresh: 10 * sec}, lease.Terms{Tau: 10 * sec, TTL: 30 * sec, MaxLeased: 150, Dry: 200}},
		{"TTL", perMinute, lease.Tuning{TTL: 7 * sec}, lease.Terms{Tau: sec, TTL: 7 * sec, MaxLeased: 150, Dry: 20}},
		{"short TTL", perMinute, lease.Tuning{TTL: ms}, lease.Terms{Tau: sec, TTL: ms, MaxLeased: 150, Dry: 20}},
		{"long TTL", perMinute, lease.Tuning{TTL: time.Hour}, lease.Terms{Tau: sec, TTL: 30 * sec, MaxLeased: 150, Dry: 20}},
		{"MaxLeased", perMinute, lease.Tuning{MaxLeased: 0.5}, lease.Terms{Tau: sec, TTL: 4 * sec, MaxLeased: 300, Dry: 20}},
		{"Slack", perMinute, lease.Tuning{Slack: 0.1}, lease.Terms{Tau: sec, TTL: 4 * sec, MaxLeased: 150, Slack: 60, Dry: 20}},
		{"Size", perMinute, lease.Tuning{Size: 10}, lease.Terms{Tau: sec, TTL: 4 * sec, MaxLeased: 150, Dry: 20, Fixed: 10}},
		{"large Size", perMinute, lease.Tuning{Size: 1000}, lease.Terms{Tau: sec, TTL: 4 * sec, MaxLeased: 150, Dry: 20, Fixed: 150}},
		{"Size for a small burst", limit.PerSecond(3), lease.Tuning{Size: 10}, lease.Terms{Tau: 50 * ms, TTL: 200 * ms, MaxLeased: 1, Dry: 1, Fixed: 1}},
	} {
		tt.want.Limit = tt.lim
		if got := lease.NewTerms(tt.lim, tt.tuning); got != tt.want {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, got, tt.want)
		}
	}
}

func TestLife(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		0: 0, ms: 0, 2 * ms: 2*ms - 2*us - ms, sec: 998 * ms, 10 * sec: 9989 * ms,
	} {
		if got := lease.Life(ttl); got != want {
			t.Errorf("%v: %v, want %v", ttl, got, want)
		}
	}
}

func TestTerms_Idle(t *testing.T) {
	if got := (lease.Terms{Tau: 50 * ms, TTL: sec}).Idle(); got != 250*ms {
		t.Errorf("%v, want a quarter of TTL", got)
	}
	if got := (lease.Terms{Tau: 50 * ms, TTL: 100 * ms}).Idle(); got != 50*ms {
		t.Errorf("%v, want Tau", got)
	}
}

// steadyDemand is what is known after a second at a rate.
func steadyDemand(tau time.Duration, perSecond int64) (d lease.Demand, now int64) {
	const steps = 100
	d.Add(0, tau, 0, 0)
	for range steps {
		now += int64(sec / steps)
		d.Add(now, tau, perSecond/steps, 0)
	}
	return d, now
}

func TestTerms_Want(t *testing.T) {
	lim := limit.PerSecond(10_000)
	const never = -1
	for _, tt := range []struct {
		name   string
		tuning lease.Tuning
		demand int64 // per second
		leased int64 // size of a lease, half of tau ago and a bit less
		paced  time.Duration
		rtt    time.Duration
		held   int64
		want   int64
	}{
		{"demand", lease.Tuning{}, 1000, 0, never, ms, 0, 67},
		{"demand, some held", lease.Tuning{}, 1000, 0, never, ms, 60, 67},
		{"not more than MaxLeased", lease.Tuning{MaxLeased: 0.01}, 10_000, 0, never, ms, 0, 100},
		{"worth it", lease.Tuning{}, 200, 0, never, ms, 0, 14},
		{"many calls", lease.Tuning{Refresh: 20 * ms}, 100, 0, never, ms, 0, 3},
		{"not worth it", lease.Tuning{Refresh: 20 * ms}, 0, 0, never, ms, 0, 0},
		{"many calls, but one token each", lease.Tuning{Refresh: ms}, 100, 0, never, 0, 0, 0},
		{"used up at once", lease.Tuning{}, 0, 100, never, ms, 0, 200},
		{"used up at once, more than MaxLeased", lease.Tuning{MaxLeased: 0.01}, 0, 100, never, ms, 0, 100},
		{"back from a refusal", lease.Tuning{Refresh: 10 * ms}, 1000, 0, 0, ms, 0, 80},
		{"back from a refusal, a little", lease.Tuning{Refresh: 10 * ms}, 0, 0, 0, ms, 0, 0},
		{"a while back", lease.Tuning{Refresh: 10 * ms}, 1000, 0, 240 * ms, ms, 0, 14},
		{"a short while back", lease.Tuning{Refresh: 10 * ms}, 1000, 0, 239 * ms, ms, 0, 80},
		{"slow", lease.Tuning{}, 1000, 0, never, 21 * ms / 3, 0, 0},
		{"nearly slow", lease.Tuning{}, 1000, 0, never, 20 * ms / 3, 0, 67},
		{"fixed", lease.Tuning{Size: 10}, 0, 0, never, ms, 5, 15},
		{"fixed, slow", lease.Tuning{Size: 10}, 0, 0, never, 60 * ms, 5, 15},
		{"fixed, too slow", lease.Tuning{Size: 10}, 0, 0, never, 70 * ms, 5, 0},
	} {
		terms := lease.NewTerms(lim, tt.tuning)
		d, now := steadyDemand(terms.Tau, tt.demand)
		var rtt lease.RTT
		rtt.Add(tt.rtt) // High is three times that
		if tt.leased > 0 {
			d.Leased(now-int64(terms.Tau/2), tt.leased)
			if got := terms.Want(&d, &rtt, tt.held, now); got != 0 {
				t.Errorf("%s: %d, want none after half of tau", tt.name, got)
			}
			d.Leased(now-int64(terms.Tau/2)+1, tt.leased)
		}
		if tt.paced != never {
			d.Refused(now - int64(tt.paced))
		}
		if got := terms.Want(&d, &rtt, tt.held, now); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// Few tokens a second are worth a lease too if it lasts long.
func TestTerms_Want_slow(t *testing.T) {
	terms := lease.NewTerms(limit.PerMinute(6000), lease.Tuning{})
	for perTau, want := range map[int64]int64{5: 0, 6: 8, 9: 12} {
		var d lease.Demand
		var now int64
		d.Add(now, terms.Tau, 0, 0)
		for range 100 {
			now += int64(terms.Tau)
			d.Add(now, terms.Tau, perTau, 0)
		}
		if got := terms.Want(&d, new(lease.RTT), 0, now); got != want {
			t.Errorf("%d in tau: %d, want %d", perTau, got, want)
		}
	}
}

func TestTerms_Mark(t *testing.T) {
	terms := lease.NewTerms(limit.PerSecond(10_000), lease.Tuning{})
	d, _ := steadyDemand(terms.Tau, 1000)
	for _, tt := range []struct {
		rtt  time.Duration
		size int64
		want int64
	}{
		{0, 0, 0}, {0, 2, 0}, {0, 3, 0}, {0, 4, 1}, {0, 100, 25},
		{ms, 100, 25}, {10 * ms / 3, 100, 25}, {5 * ms, 100, 30}, {20 * ms, 100, 50}, {20 * ms, 3, 1}, {20 * ms, 2, 0},
	} {
		var rtt lease.RTT
		rtt.Add(tt.rtt)
		if got := terms.Mark(&d, &rtt, tt.size); got != tt.want && got != tt.want-1 { // the demand is an estimate
			t.Errorf("%d tokens, %v: %d, want %d", tt.size, tt.rtt, got, tt.want)
		}
	}
}
