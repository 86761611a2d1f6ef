package remote_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/remote"
)

// steadyCluster are the settings for clients of a Cluster: as steady, and the client asks once in a second who serves
// what. By default it does once in a minute, or when a node redirects it, which a dead one does not.
func steadyCluster(o *redis.ClusterOptions) {
	o.ContextTimeoutEnabled, o.DialerRetries, o.ClusterStateReloadInterval = true, 1, time.Second
}

// A slot moves to another node and back under load, and then its master hands over to its replica, as an operator makes
// it. Nobody sees an error, nothing is lost, and exactly the limit is admitted.
func TestKEY03_SlotsChangeHands(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 2)
	rdb := c.Client(t, steadyCluster)
	// What follows a brace is not hashed: as many keys as one likes in one slot.
	const slot = "{m}"
	inSlot := func(name string) string { return "m}" + name }
	home := c.Master(t, slot)
	away := c.Nodes[0]
	if away == home {
		away = c.Nodes[1]
	}
	keysOn := func(n *redistest.Node) int {
		t.Helper()
		keys, err := n.Client(t).ClusterGetKeysInSlot(ctx, int(rdb.ClusterKeySlot(ctx, slot).Val()), 1000).Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}

	var all []*traffic
	var limiters []limiter
	for _, m := range allModes {
		l, err := m.make(rdb, thousand, remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		limiters = append(limiters, l)
		all = append(all, drive(t, l, m.name, inSlot("k"), 2*time.Millisecond))
	}
	source := remote.NewSource(rdb, remote.Options{Timeout: patience})
	held := holder(thousand, inSlot("lent"))
	// Leases come in pipelines, for keys here and elsewhere; in the middle of it some are at home and some away.
	reqs := requests(thousand, 12, 1)
	for i := range reqs[:6] {
		reqs[i].Key = inSlot(reqs[i].Key)
	}
	grants := make([]lease.Grant, len(reqs))
	level, born, used := int64(1000), 0, int64(0)
	step := func(what string) {
		t.Helper()
		moves(t, what, 20, all...)
		level--
		source.Acquire(ctx, reqs, grants)
		for i, g := range grants {
			if g.Err != nil || g.Level != level {
				t.Errorf("%s: grant %d: %+v, want level %d", what, i, g, level)
			}
		}
		used++
		if g := held.ask(t, source, 1, 50); g.Status != lease.OK || g.Lent != 50 || g.Level != 950-used {
			t.Errorf("%s: lease: %+v, want OK, 50 lent, level %d", what, g, 950-used)
		}
		// Keys that are made now, one call by itself and two in a pipeline.
		born++
		for i, l := range limiters {
			if got, err := l.Allow(ctx, inSlot(fmt.Sprint("born", born))); err != nil || got.Remaining != 999 {
				t.Errorf("%s: %s of a new key: %+v, %v", what, allModes[i].name, got, err)
			}
		}
		fresh := requests(thousand, 2, 1)
		for i := range fresh {
			fresh[i].Key = inSlot(fmt.Sprint("fresh", born, i))
		}
		source.Acquire(ctx, fresh, grants[:2])
		for i, g := range grants[:2] {
			if g.Err != nil || g.Level != 999 {
				t.Errorf("%s: new grant %d: %+v, want level 999", what, i, g)
			}
		}
	}

	held.ask(t, source, 0, 50)
	step("before it moves")
	for _, way := range [][2]*redistest.Node{{home, away}, {away, home}} {
		from, to := way[0], way[1]
		m := c.Migrate(t, slot, to)
		step("while it begins to move")
		m.Move(t, keysOn(from)/2)
		if keysOn(from) < 5 || keysOn(to) < 5 {
			t.Errorf("%d keys have yet to move and %d are there, want some on both sides", keysOn(from), keysOn(to))
		}
		step("in the middle of it")
		for m.Move(t, math.MaxInt16) > 0 {
		}
		step("when all keys have moved")
		m.Finish(t)
		step("after it moved")
	}
	c.Failover(t, slot)
	step("after a handover")
	for i, f := range all {
		f.stop()
		if f.failed > 0 || f.wrong != nil {
			t.Errorf("%s: %d calls failed: %v", f.name, f.failed, f.wrong)
		}
		if n := f.admitted + rest(t, limiters[i], inSlot("k")); n != 1000 {
			t.Errorf("%s: %d admitted, %d of them after all moves, want 1000", f.name, n, n-f.admitted)
		}
		t.Logf("%s: %d admitted while it moved, longest %v", f.name, f.admitted, f.longest)
	}
}

// A master goes. The keys of the others notice nothing, those of its own come back by themselves when its replica serves
// them; what the replica had been sent is remembered.
func TestREDIS04_ClusterFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("a failover takes seconds")
	}
	t.Parallel()
	// By default a cluster that misses some slots serves none.
	c := redistest.StartCluster(t, 3, 3, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000")
	rdb := c.Client(t, steadyCluster)
	lim := thousand
	within := func(timeout time.Duration) []limiter {
		t.Helper()
		limiters := make([]limiter, len(allModes))
		for i, m := range allModes {
			var err error
			if limiters[i], err = m.make(rdb, lim, remote.Options{Timeout: timeout}); err != nil {
				t.Fatal(err)
			}
		}
		return limiters
	}
	limiters, calm := within(impatience), within(bearable)
	// One key for each master.
	keys := make([]string, 3)
	for i := 0; keys[0] == "" || keys[1] == "" || keys[2] == ""; i++ {
		key := fmt.Sprint("user-", i)
		for j, n := range c.Nodes[:3] {
			if n == c.Master(t, "{"+key+"}") {
				keys[j] = key
			}
		}
	}
	quiet := func(key string) string { return key + "}quiet" } // in the same slot
	for _, key := range keys {
		for i, l := range limiters {
			if got, err := l.AllowN(ctx, quiet(key), 100); err != nil || !got.Allowed {
				t.Fatalf("%s: %+v, %v", allModes[i].name, got, err)
			}
		}
	}
	dead := c.Master(t, "{"+keys[0]+"}")
	delivered(t, dead.Client(t), c.Nodes[3].Client(t))

	var own, others []*traffic
	for i, l := range limiters {
		own = append(own, drive(t, l, allModes[i].name+" of the dead master", keys[0], 20*time.Millisecond))
		for _, key := range keys[1:] {
			others = append(others, drive(t, calm[i], allModes[i].name+" of another", key, 20*time.Millisecond))
		}
	}
	all := append(append([]*traffic{}, own...), others...)
	moves(t, "decides before", 10, all...)
	dead.Kill()
	for _, f := range own {
		eventually(t, f.name+" fails", func() bool { return f.failures() > 0 })
	}
	moves(t, "decides while a master is down", 10, others...)
	moves(t, "decides again", 10, all...)
	if c.Master(t, "{"+keys[0]+"}") != c.Nodes[3] {
		t.Error("the replica has not become the master")
	}
	for i, f := range own {
		f.check(t)
		n := f.admitted + rest(t, limiters[i], keys[0])
		if n > 2*lim.Burst || n < lim.Burst-f.failed {
			t.Errorf("%s: %d admitted of %d with %d failed calls", f.name, n, lim.Burst, f.failed)
		}
		t.Logf("%s: no decisions for %v, %d calls failed, longest %v, %d admitted of %d", f.name, f.outage, f.failed, f.longest, n, lim.Burst)
	}
	for i, f := range others {
		f.undisturbed(t)
		if n := f.admitted + rest(t, limiters[i/2], keys[1+i%2]); n != lim.Burst {
			t.Errorf("%s: %d admitted, want %d", f.name, n, lim.Burst)
		}
		t.Logf("%s: longest %v", f.name, f.longest)
	}
	for i, l := range limiters {
		for _, key := range keys {
			if n := rest(t, l, quiet(key)); n != 900 {
				t.Errorf("%s: %d left, want 900", allModes[i].name, n)
			}
		}
	}
}

// A pipeline that holds keys of a node that is gone, or hangs, brings the answers of the others all the same: their scripts
// ran, and have charged.
func TestREDIS04_PipelineAcrossALostNode(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a cluster that loses a node")
	}
	t.Parallel()
	for _, way := range []string{"killed", "paused"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
			rdb := c.Client(t, steadyCluster)
			source := remote.NewSource(rdb, remote.Options{Timeout: 200 * time.Millisecond})
			reqs := requests(thousand, 12, 1)
			grants := make([]lease.Grant, len(reqs))
			source.Acquire(ctx, reqs, grants)
			level := map[string]int64{}
			lost := c.Master(t, "{"+reqs[0].Key+"}")
			for i, g := range grants {
				if g.Err != nil {
					t.Fatal(g.Err)
				}
				if c.Master(t, "{"+reqs[i].Key+"}") != lost {
					level[reqs[i].Key] = g.Level
				}
			}
			if len(level) == 0 || len(level) == len(reqs) {
				t.Fatal("the keys are not on several nodes")
			}
			if way == "killed" {
				lost.Kill()
			} else {
				lost.Pause()
			}
			for range 10 {
				source.Acquire(ctx, reqs, grants)
				for i, g := range grants {
					before, healthy := level[reqs[i].Key]
					switch {
					case !healthy:
						if g.Err == nil {
							t.Errorf("a key of the lost node was decided: %+v", g)
						}
					case g.Err != nil:
						t.Errorf("a key of another node: %v", g.Err)
					case g.Level != before-1:
						t.Errorf("level %d after %d", g.Level, before)
					default:
						level[reqs[i].Key] = g.Level
					}
				}
			}
		})
	}
}
