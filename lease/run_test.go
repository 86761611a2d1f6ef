package lease_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

func TestTotal(t *testing.T) {
	if got := lease.Total([]lease.Run{{Cost: 2, Count: 3}, {Cost: 1 << 30, Count: 1 << 20}, {Cost: 0, Count: 9}}); got != 6+1<<50 {
		t.Errorf("%d", got)
	}
	if got := lease.Total(nil); got != 0 {
		t.Errorf("%d", got)
	}
}

func TestGrant_Pay(t *testing.T) {
	// A token each 10 ms.
	lim := limit.PerSecond(100)
	allowed := func(remaining int) limit.Result {
		return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Remote}, Remaining: remaining}
	}
	denied := func(remaining int, retry, reset time.Duration) limit.Result {
		return limit.Result{Verdict: limit.Verdict{Origin: limit.Remote}, Remaining: remaining, RetryAfter: retry, ResetAfter: reset}
	}
	for _, tt := range []struct {
		name  string
		grant lease.Grant
		costs []lease.Run
		lent  int64
		want  [][]limit.Result
	}{
		{"all", lease.Grant{Level: 90, Admitted: []int{3, 1}}, []lease.Run{{Cost: 2, Count: 3}, {Cost: 4, Count: 1}}, 0,
			[][]limit.Result{{allowed(98), allowed(96), allowed(94)}, {allowed(90)}}},
		{"some", lease.Grant{Level: 1, Frac: 5000, Admitted: []int{2, 0, 1}}, []lease.Run{{Cost: 4, Count: 3}, {Cost: 9, Count: 1}, {Cost: 2, Count: 1}}, 0,
			[][]limit.Result{
				{allowed(7), allowed(3), denied(3, 5*ms, 965*ms)},
				{denied(3, 55*ms, 965*ms)},
				{allowed(1)},
			}},
		{"before the lease was lent", lease.Grant{Level: 10, Admitted: []int{1}}, []lease.Run{{Cost: 1, Count: 2}}, 25,
			[][]limit.Result{{allowed(35), denied(35, us, 650*ms)}}},
		{"nothing", lease.Grant{Level: 100, Admitted: []int{5}}, []lease.Run{{Cost: 0, Count: 5}}, 0,
			[][]limit.Result{{allowed(100), allowed(100), allowed(100), allowed(100), allowed(100)}}},
		{"debt", lease.Grant{Level: -50, Admitted: []int{0}}, []lease.Run{{Cost: 1, Count: 1}}, 0,
			[][]limit.Result{{denied(0, 510*ms, 1500*ms)}}},
		{"the clock is behind", lease.Grant{Level: 0, Lag: 2 * sec, Admitted: []int{0}}, []lease.Run{{Cost: 1, Count: 1}}, 0,
			[][]limit.Result{{denied(0, 2010*ms, 3*sec)}}},
		{"more than this limit's burst", lease.Grant{Level: 200, Admitted: []int{1}}, []lease.Run{{Cost: 1, Count: 1}}, 0,
			[][]limit.Result{{allowed(100)}}},
	} {
		var got [][]limit.Result
		paid := tt.grant.Pay(lim, tt.costs, tt.lent)
		for i, p := range paid {
			var results []limit.Result
			for k := range tt.costs[i].Count {
				results = append(results, p.Result(k))
			}
			got = append(got, results)
			if p.Cost != tt.costs[i].Cost || p.Admitted != tt.grant.Admitted[i] {
				t.Errorf("%s: %+v", tt.name, p)
			}
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, got, tt.want)
		}
	}
}
