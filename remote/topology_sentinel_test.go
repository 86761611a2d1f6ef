package remote_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// steady are the settings for clients of a Sentinel: deadlines hold, and a server that refuses a connection is not asked
// again five times before the call hears of it.
func steady(o *redis.FailoverOptions) { o.ContextTimeoutEnabled, o.DialerRetries = true, 1 }

// The master goes while there are calls. They fail in time and as Redis being away, and go on by themselves on the
// promoted replica, which has never seen a script; what it had been sent is remembered exactly, and of the rest no more
// than was lost is admitted again.
func TestREDIS04_SentinelFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("a failover takes seconds")
	}
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, s *redistest.Sentinel){
		"killed":   func(t *testing.T, s *redistest.Sentinel) { s.Master(t).Kill() },
		"paused":   func(t *testing.T, s *redistest.Sentinel) { s.Master(t).Pause() },
		"failover": func(t *testing.T, s *redistest.Sentinel) { s.Failover(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartSentinel(t)
			old, promoted := s.Master(t), s.Replica(t).Client(t)
			rdb := s.Client(t, steady)
			lim := thousand
			lim.Rate, lim.Burst = 300, 300

			limiters := make([]limiter, len(allModes))
			for i, m := range allModes {
				l, err := m.make(rdb, lim, remote.Options{Timeout: impatience})
				if err != nil {
					t.Fatal(err)
				}
				limiters[i] = l
				if got, err := l.AllowN(ctx, "quiet", 100); err != nil || !got.Allowed {
					t.Fatalf("%s: %+v, %v", m.name, got, err)
				}
			}
			source := remote.NewSource(rdb, remote.Options{Timeout: impatience})
			held := holder(lim, "lent")
			held.ask(t, source, 0, 50)
			delivered(t, old.Client(t), promoted)
			if n := scriptsOf(promoted); n != "0" {
				t.Errorf("the replica knows %s scripts, want none", n)
			}

			var all []*traffic
			for i, m := range allModes {
				all = append(all, drive(t, limiters[i], m.name, "busy", 5*time.Millisecond))
			}
			moves(t, "decides before", 20, all...)
			end(t, s)
			s.Replaced(t, old)
			// On the new master, and not by the old one, which after a failover answers until it is told.
			eventually(t, "the client has followed", func() bool { return scriptsOf(promoted) == "5" })
			moves(t, "decides again", 20, all...)
			for i, f := range all {
				f.check(t)
				admitted := f.admitted + rest(t, limiters[i], "busy")
				if admitted > 2*lim.Burst || admitted < lim.Burst-f.failed {
					t.Errorf("%s: %d admitted of %d with %d failed calls, want at most twice the burst", f.name, admitted, lim.Burst, f.failed)
				}
				t.Logf("%s: no decisions for %v, %d calls failed, longest %v, %d admitted of %d", f.name, f.outage, f.failed, f.longest, admitted, lim.Burst)
			}
			for i, m := range allModes {
				if n := rest(t, limiters[i], "quiet"); n != 200 {
					t.Errorf("%s: %d admitted after it, want the 200 that were left", m.name, n)
				}
			}
			// The lease has lived on.
			if g := held.ask(t, source, 30, 20); g.Status != lease.OK || g.Level != 250 || g.Lent != 20 {
				t.Errorf("lease: %+v, want OK, level 250, lent 20", g)
			}
		})
	}
}

func scriptsOf(rdb *redis.Client) string {
	return strings.TrimSpace(rdb.InfoMap(ctx, "memory").Item("Memory", "number_of_cached_scripts"))
}

// tenant is one lease as its process sees it.
type tenant struct {
	req lease.Request
}

// holder is a process that has no lease of the key yet.
func holder(lim limit.Limit, key string) *tenant {
	return &tenant{lease.Request{Key: key, Limit: lim, Lease: lease.Holding{
		ID: "holder", Demand: 1, MaxLeased: int64(lim.Burst), TTL: time.Hour,
	}}}
}

// ask tells the source that so many tokens more are used, and that it wants to hold so many.
func (h *tenant) ask(t *testing.T, source *remote.Source, used, want int64) lease.Grant {
	t.Helper()
	l := &h.req.Lease
	l.Seq++
	l.Used, l.Held, l.Want = l.Used+used, l.Held-used, want
	l.Held = min(l.Held, want)
	var g [1]lease.Grant
	source.Acquire(ctx, []lease.Request{h.req}, g[:])
	if g[0].Err != nil {
		t.Fatalf("lease: %v", g[0].Err)
	}
	l.Held, l.Epoch = g[0].Granted-l.Used, g[0].Epoch
	if g[0].Expiry != 0 {
		l.Expiry = g[0].Expiry
	}
	return g[0]
}

// A replica that had not been sent everything becomes the master: exactly what was lost is admitted again, and a lease
// that it never heard of empties the bucket as soon as its holder shows up.
func TestREDIS04_LaggingReplica(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--repl-diskless-sync", "no") // which would begin 5 s later
	host, port, _ := strings.Cut(srv.Addr(), ":")
	master := srv.Client(t)
	replica := redistest.Start(t, "--replicaof", host+" "+port).Client(t)
	on := func(m mode, rdb *redis.Client) limiter {
		t.Helper()
		l, err := m.make(rdb, thousand, remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	take := func(m mode, rdb *redis.Client, n int) {
		t.Helper()
		if got, err := on(m, rdb).AllowN(ctx, "k", n); err != nil || !got.Allowed {
			t.Fatalf("%s: %+v, %v", m.name, got, err)
		}
	}
	for _, m := range allModes {
		take(m, master, 300)
	}
	eventually(t, "the replica is in step", func() bool {
		return replica.DBSize(ctx).Val() == int64(len(allModes))
	})
	delivered(t, master, replica)
	if err := replica.ReplicaOf(ctx, "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	held := holder(thousand, "k")
	held.ask(t, remote.NewSource(master, remote.Options{Timeout: patience}), 0, 100)
	for _, m := range allModes {
		take(m, master, 500)
	}
	srv.Kill()
	for _, m := range allModes {
		if m.name == tokenBucket.name {
			continue
		}
		if n := rest(t, on(m, replica), "k"); n != 700 {
			t.Errorf("%s: %d admitted by the replica, want 700: the 200 that were left and the 500 that were lost", m.name, n)
		}
	}
	take(tokenBucket, replica, 100)
	g := held.ask(t, remote.NewSource(replica, remote.Options{Timeout: patience}), 40, 60)
	if g.Status != lease.Loss || g.Level != 0 || g.Lent != 60 {
		t.Errorf("the holder of a lost lease: %+v, want Loss, an empty bucket, 60 lent", g)
	}
	if n := rest(t, on(tokenBucket, replica), "k"); n != 0 {
		t.Errorf("%d admitted after the loss was found, want 0", n)
	}
}
