package redistest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// alone is a client of one node, which follows no redirection.
func alone(t *testing.T, n *Node) *redis.Client { return n.Client(t, once) }

func wantPrefix(t *testing.T, what string, err error, prefix string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), prefix) {
		t.Errorf("%s: %v, want %s", what, err, prefix)
	}
}

func TestCluster_migration(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0)
	rdb := c.Client(t)
	for _, key := range []string{"{k}a", "{k}b", "{k}c"} {
		if err := rdb.Set(ctx, key, key, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	from := c.Master(t, "k")
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	source, target := alone(t, from), alone(t, to)

	m := c.Migrate(t, "k", to)
	if got := source.MGet(ctx, "{k}a", "{k}b").Err(); got != nil {
		t.Errorf("before a key has moved: %v", got)
	}
	wantPrefix(t, "a new key at the source", source.Get(ctx, "{k}new").Err(), "ASK")
	wantPrefix(t, "the target, unasked", target.Get(ctx, "{k}new").Err(), "MOVED")

	if n := m.Move(t, 1); n != 1 {
		t.Errorf("%d keys moved, want 1", n)
	}
	wantPrefix(t, "keys on both sides", source.MGet(ctx, "{k}a", "{k}b", "{k}c").Err(), "TRYAGAIN")
	for _, key := range []string{"{k}a", "{k}b", "{k}c"} {
		if got, err := rdb.Get(ctx, key).Result(); got != key {
			t.Errorf("%s in the middle of it: %q, %v", key, got, err)
		}
	}

	if c.Master(t, "k") != from {
		t.Error("the source does not serve the slot in the middle of it")
	}
	m.Finish(t)
	if c.Master(t, "k") != to {
		t.Error("the target does not serve the slot in the end")
	}
	wantPrefix(t, "the source in the end", source.Get(ctx, "{k}a").Err(), "MOVED")
	if n, err := target.Exists(ctx, "{k}a", "{k}b", "{k}c").Result(); n != 3 {
		t.Errorf("%d keys at the target, %v, want 3", n, err)
	}
}

func TestCluster_failover(t *testing.T) {
	if testing.Short() {
		t.Skip("a failover takes seconds")
	}
	t.Parallel()
	began := time.Now()
	c := StartCluster(t, 3, 3, "--cluster-node-timeout", "500")
	t.Logf("ready after %v", time.Since(began))
	if len(c.Nodes) != 6 || len(c.Addrs()) != 6 {
		t.Fatalf("%d nodes, want 6", len(c.Nodes))
	}
	rdb := c.Client(t, func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = time.Second })
	if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	first := c.Master(t, "k")
	c.Failover(t, "k")
	second := c.Master(t, "k")
	if second == first {
		t.Fatal("the master is the same after a failover")
	}
	if got, err := rdb.Get(ctx, "k").Result(); got != "v" {
		t.Errorf("after a failover: %q, %v", got, err)
	}
	inStep(t, second.admin, first.admin)
	began = time.Now()
	second.Kill()
	if got := c.Master(t, "k"); got != first {
		t.Errorf("master %s, want %s", got.Addr(), first.Addr())
	}
	t.Logf("killed; another master after %v", time.Since(began))
	eventually(t, "the client has followed", func() bool { return rdb.Get(ctx, "k").Val() == "v" })
	t.Logf("the client has followed after %v", time.Since(began))
}
