package remote_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// spread makes so many calls over many keys in every mode and checks each answer; then it leases from many buckets in
// one pipeline, which the client splits by node.
func spread(t *testing.T, rdb remote.Client, calls int) {
	t.Helper()
	for _, m := range allModes {
		l, err := m.make(rdb, limit.Limit{Rate: 2, Period: 1000 * time.Hour, Burst: 2}, remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		for i := range calls / 5 {
			key := "user-" + strconv.Itoa(i/4)
			got, err := l.Allow(ctx, key)
			if want := max(0, 1-i%4); err != nil || got.Allowed != (i%4 < 2) || got.Remaining != want {
				t.Fatalf("%s: call %d: %+v, %v; want remaining %d", m.name, i, got, err, want)
			}
		}
		if err := l.Reset(ctx, "user-0"); err != nil {
			t.Errorf("%s: Reset: %v", m.name, err)
		}
		if got, err := l.AllowN(ctx, "user-0", 2); err != nil || !got.Allowed {
			t.Errorf("%s: after Reset: %+v, %v", m.name, got, err)
		}
	}
	source := remote.NewSource(rdb, remote.Options{Timeout: patience})
	grants := make([]lease.Grant, 100)
	for want := int64(9); want > 6; want-- {
		source.Acquire(ctx, requests(per(10, 3600), 100, 1), grants)
		for i, g := range grants {
			if g.Err != nil || g.Level != want {
				t.Fatalf("grant %d: %+v, want level %d", i, g, want)
			}
		}
	}
}

func TestClusterClientOnOneNode(t *testing.T) {
	t.Parallel()
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		if b.Name == "redis" {
			spread(t, redistest.StartCluster(t, 1, 0).Client(t), 1000)
			return
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{b.Addr()}, DisableIdentity: true})
		t.Cleanup(func() { rdb.Close() })
		spread(t, rdb, 300) // miniredis answers CLUSTER SLOTS with itself
	})
}

func TestKEY03_Cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	spread(t, c.Client(t, func(o *redis.ClusterOptions) { o.Addrs = o.Addrs[:1] }), 2000)
	for i, n := range c.Nodes {
		if keys := n.Client(t).DBSize(ctx).Val(); keys < 20 {
			t.Errorf("node %d has %d keys", i, keys)
		}
	}
}

// A node that serves no slots answers CLUSTERDOWN; the call is served when it does.
func TestClusterComesUp(t *testing.T) {
	t.Parallel()
	admin := redistest.StartNode(t).Client(t)
	tap := attach(admin)
	l, err := gcra.make(admin, per(10, 3600), remote.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan answer, 1)
	go func() {
		got, err := l.Allow(ctx, "k")
		result <- answer{got, err}
	}()
	attempts := 0
	eventually(t, "it is tried again", func() bool {
		attempts += tap.sent()
		return attempts >= 2
	})
	if err := admin.Do(ctx, "cluster", "addslotsrange", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	if got := <-result; got.err != nil || !got.Allowed || got.Remaining != 9 {
		t.Errorf("%+v, want allowed, remaining 9", got)
	}
}

// Clients that read from replicas: scripts write, so they go to the master all the same.
func TestREDIS05_ReplicaReads(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 1, 1)
	admin, replica := c.Nodes[0].Client(t), c.Nodes[1].Client(t)
	// RouteByLatency takes the same way, but go-redis 9.23 races with itself when it measures a new node.
	for name, opt := range map[string]func(*redis.ClusterOptions){
		"ReadOnly":      func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"RouteRandomly": func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		rdb := c.Client(t, opt)
		for _, m := range allModes {
			l, err := m.make(rdb, per(100, 36_000), remote.Options{Timeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			admitted := 0
			for range 110 {
				got, err := l.Allow(ctx, name)
				if err != nil {
					t.Fatalf("%s, %s: %v", name, m.name, err)
				}
				if got.Allowed {
					admitted++
				}
			}
			if admitted != 100 {
				t.Errorf("%s, %s: %d admitted, want 100", name, m.name, admitted)
			}
		}
	}
	// A plain client of the replica is a mistake that no waiting mends, but an error like any other.
	l, err := tokenBucket.make(replica, per(100, 36_000), remote.Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.Allow(ctx, "k"); !errors.Is(err, limit.ErrUnavailable) || got != (limit.Result{}) {
		t.Errorf("on the replica: %+v, %v; want ErrUnavailable", got, err)
	}
	// The replica has the same state.
	for _, key := range admin.Keys(ctx, "*").Val() {
		eventually(t, "the replica has the same state", func() bool {
			return fmt.Sprint(admin.Dump(ctx, key).Val()) == fmt.Sprint(replicaDump(replica, key))
		})
	}
}

// replicaDump reads a key on a replica of a cluster, which wants to be asked for it.
func replicaDump(rdb *redis.Client, key string) string {
	conn := rdb.Conn()
	defer conn.Close()
	conn.ReadOnly(ctx)
	return conn.Dump(ctx, key).Val()
}

func TestRing(t *testing.T) {
	t.Parallel()
	_, first := redistest.NewMini(t, origin)
	_, second := redistest.NewMini(t, origin)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": first.Options().Addr, "b": second.Options().Addr}})
	t.Cleanup(func() { ring.Close() })
	spread(t, ring, 200)
}
