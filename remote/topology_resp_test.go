package remote_test

import (
	"reflect"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// The same requests at the same times have the same answers over RESP2 and RESP3, in every mode and for leases, single
// and in pipelines, also those that a bucket refuses.
func TestProtocols_sameAnswers(t *testing.T) {
	type log struct {
		results []limit.Result
		grants  []lease.Grant
	}
	answers := func(t *testing.T, protocol int) (l log) {
		redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
			rdb := b.NewClient(t, func(o *redis.Options) { o.Protocol = protocol })
			for _, m := range allModes {
				r := startWith(t, b, rdb, m, per(7, 60), remote.Options{Timeout: patience})
				for i, n := range []int{0, 3, 1, 7, 2, 1, 1, 0, 4} {
					l.results = append(l.results, r.at(float64(5*i)).ask(n))
				}
			}
			source := remote.NewSource(rdb, remote.Options{Timeout: patience})
			one, two := holder(per(100, 60), "lent"), holder(per(100, 60), "lent")
			two.req.Lease.ID = "another"
			for _, step := range [][2]int64{{0, 20}, {5, 40}, {40, 0}, {0, 90}} {
				l.grants = append(l.grants, one.ask(t, source, step[0], step[1]), two.ask(t, source, 0, 10))
			}
			stale := one.req
			stale.Lease.Seq--
			grants := make([]lease.Grant, 4)
			source.Acquire(ctx, append(requests(per(5, 60), 3, 2), stale), grants)
			l.grants = append(l.grants, grants...)
		})
		return l
	}
	two, three := answers(t, 2), answers(t, 3)
	if len(two.results) == 0 || len(two.grants) == 0 {
		t.Fatal("no answers")
	}
	if !reflect.DeepEqual(two, three) {
		t.Errorf("over RESP2 %+v\nover RESP3 %+v", two, three)
	}
	if g := two.grants[len(two.grants)-1]; g.Err != nil || g.Status != lease.Stale {
		t.Errorf("a repeated request: %+v, want Stale", g)
	}
}
