package lease_test

import (
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

func TestNewRefusal(t *testing.T) {
	second, minute := limit.PerSecond(1000), limit.PerMinute(60)
	for _, tt := range []struct {
		name    string
		lim     limit.Limit
		tuning  lease.Tuning
		grant   lease.Grant
		cost    int64
		chance  float64
		paced   time.Duration // how long it holds
		certain time.Duration // and how long without a pace
	}{
		{"pace", second, lease.Tuning{}, lease.Grant{}, 1, 1, 60 * ms, ms},
		{"three quarters of it", second, lease.Tuning{}, lease.Grant{}, 1, 0, 45 * ms, ms},
		{"by chance", second, lease.Tuning{}, lease.Grant{}, 1, 0.5, 52500 * us, ms},
		{"Tau", second, lease.Tuning{Refresh: 100 * ms}, lease.Grant{}, 1, 1, 100 * ms, ms},
		{"a token for each process", second, lease.Tuning{}, lease.Grant{Holders: 200}, 1, 1, 200 * ms, ms},
		{"not longer than half of the burst lasts", second, lease.Tuning{}, lease.Grant{Holders: 2000}, 1, 1, 500 * ms, ms},
		{"short burst", second.WithBurst(20), lease.Tuning{}, lease.Grant{}, 1, 1, 10 * ms, ms},
		{"a large cost", second, lease.Tuning{}, lease.Grant{Level: 100}, 600, 1, 500 * ms, 500 * ms},
		{"a large cost, and tokens that may come back", second, lease.Tuning{}, lease.Grant{Level: 100, Lent: 400}, 600, 1, 100 * ms, 100 * ms},
		{"more lent than the burst", second, lease.Tuning{}, lease.Grant{Level: 0, Lent: 4000}, 600, 1, 60 * ms, 0},
		{"a started token", second, lease.Tuning{}, lease.Grant{Level: 0}, 100, 1, 100 * ms, 100 * ms},
		{"debt", second, lease.Tuning{}, lease.Grant{Level: -100}, 1, 1, 101 * ms, 101 * ms},
		{"not longer than a second", minute, lease.Tuning{}, lease.Grant{Level: -10}, 1, 1, sec, sec},
		{"many processes at a low rate", limit.PerDay(10), lease.Tuning{Refresh: ms}, lease.Grant{Level: 9, Lent: 1, Holders: 1e9}, 10, 1, sec, 0},
	} {
		const sent = int64(77 * time.Hour)
		terms := lease.NewTerms(tt.lim, tt.tuning)
		if got := lease.NewRefusal(terms, &tt.grant, tt.cost, sent, tt.chance).Until() - sent; got != int64(tt.paced) {
			t.Errorf("%s: holds for %v, want %v", tt.name, time.Duration(got), tt.paced)
		}
		if got := lease.NewCertainRefusal(terms, &tt.grant, tt.cost, sent).Until() - sent; got != int64(tt.certain) {
			t.Errorf("%s: certain for %v, want %v", tt.name, time.Duration(got), tt.certain)
		}
	}
}

func TestRefusal_Denies(t *testing.T) {
	// A token each 10 ms; the bucket had 3 and a half.
	lim := limit.PerSecond(100)
	terms := lease.NewTerms(lim, lease.Tuning{})
	const sent = int64(time.Hour)
	r := lease.NewRefusal(terms, &lease.Grant{Level: 3, Frac: 5000, Lent: 90, Holders: 5}, 5, sent, 1) // for 60 ms
	for _, tt := range []struct {
		after     time.Duration
		cost      int64
		denied    bool
		remaining int
		retry     time.Duration
		reset     time.Duration
	}{
		{0, 5, true, 3, 60 * ms, 965 * ms},
		{0, 4, false, 0, 0, 0},
		{0, 20, true, 3, 165 * ms, 965 * ms},
		{20 * ms, 5, true, 5, 40 * ms, 945 * ms},
		{20 * ms, 20, true, 5, 145 * ms, 945 * ms},
		{60*ms - 1, 5, true, 9, 1, 905*ms + 1},
		{60 * ms, 5, false, 0, 0, 0},
		{60 * ms, 100, false, 0, 0, 0},
	} {
		got, denied := r.Denies(sent+int64(tt.after), tt.cost)
		want := limit.Result{}
		if tt.denied {
			want = limit.Result{Verdict: limit.Verdict{Origin: limit.Local}, Remaining: tt.remaining, RetryAfter: tt.retry, ResetAfter: tt.reset}
		}
		if denied != tt.denied || got != want {
			t.Errorf("%v, cost %d: %+v, %v, want %+v, %v", tt.after, tt.cost, got, denied, want, tt.denied)
		}
	}
	var none *lease.Refusal
	if _, denied := none.Denies(0, 1); denied || none.Until() != 0 {
		t.Error("no refusal denies")
	}
	r = lease.NewRefusal(terms, &lease.Grant{Level: -3}, 1, sent, 1)
	if got, _ := r.Denies(sent, 1); got.Remaining != 0 {
		t.Errorf("%+v, want none remaining of a debt", got)
	}
}
