package benchmarks

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// BenchmarkServer measures what a call costs the server, by its own count: microseconds of the token bucket script, for
// one key that so many processes lease from. Entries=0 is a caller that does not lease.
func BenchmarkServer(b *testing.B) {
	for _, entries := range []int{0, 1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			w := new(wire)
			rdb := w.client()
			defer rdb.Close()
			src := remote.NewSource(rdb, remote.Options{Prefix: fmt.Sprintf("server%d:", time.Now().UnixNano()), Timeout: time.Second})
			states := make([]lease.State, max(1, entries))
			held := make([]int64, len(states))
			call := func(i int) {
				s := &states[i%len(states)]
				reqs := []lease.Request{{Key: "k", Limit: limit.PerSecond(1_000_000), Costs: []lease.Run{{Cost: 1, Count: 1}}}}
				if entries > 0 {
					if !s.Open() {
						s.Begin(strconv.Itoa(i % len(states)))
					}
					used := held[i%len(states)] / 2 // half of the lease was spent since the last call
					held[i%len(states)] -= used
					h := &reqs[0].Lease
					s.Ask(h, held[i%len(states)], 100)
					h.Demand, h.MaxLeased, h.TTL = 10, 500_000, 200*time.Millisecond
				}
				grants := make([]lease.Grant, 1)
				src.Acquire(context.Background(), reqs, grants)
				switch g := &grants[0]; {
				case g.Err != nil:
					b.Fatal(g.Err)
				case g.Status == lease.Stale: // its turn came after it had ended
					s.End()
					held[i%len(states)] = 0
				case entries > 0:
					held[i%len(states)] += s.Accept(g)
				}
			}
			for i := range len(states) {
				call(i)
			}
			if err := rdb.ConfigResetStat(context.Background()).Err(); err != nil {
				b.Skip("the embedded Redis does not count")
			}
			i := 0
			for b.Loop() {
				call(i)
				i++
			}
			info, err := rdb.Info(context.Background(), "commandstats").Result()
			if err != nil {
				b.Fatal(err)
			}
			m := regexp.MustCompile(`cmdstat_evalsha:.*usec_per_call=([0-9.]+)`).FindStringSubmatch(info)
			if m == nil {
				b.Fatal("no count of evalsha")
			}
			us, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(us, "server-us/call")
		})
	}
}
