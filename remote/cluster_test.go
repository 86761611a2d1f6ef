package remote_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// node starts a cluster node that serves no slots yet.
func node(t *testing.T) (*redistest.Server, *redis.Client) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // a port for the bus: the default may be above the last one
	if err != nil {
		t.Fatal(err)
	}
	_, bus, _ := net.SplitHostPort(ln.Addr().String())
	ln.Close()
	srv := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
	return srv, srv.Client(t)
}

// cluster starts masters that share all slots evenly, and returns when each of them knows it.
func cluster(t *testing.T, masters int) (addrs []string, admins []*redis.Client) {
	t.Helper()
	for i := range masters {
		srv, admin := node(t)
		addrs, admins = append(addrs, srv.Addr()), append(admins, admin)
		first, last := i*16384/masters, (i+1)*16384/masters-1
		if err := admin.Do(ctx, "cluster", "addslotsrange", first, last).Err(); err != nil {
			t.Fatal(err)
		}
		// Ranks of their own, or the nodes would have to find out that they collide.
		if err := admin.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, admin := range admins[1:] {
		meet(t, admin, admins[0])
	}
	for _, admin := range slices.Backward(admins) {
		join(t, admin, admins[0], masters)
	}
	return addrs, admins
}

// meet introduces a node to another one.
func meet(t *testing.T, admin, other *redis.Client) {
	t.Helper()
	host, port, _ := net.SplitHostPort(other.Options().Addr)
	bus := other.ConfigGet(ctx, "cluster-port").Val()["cluster-port"]
	if err := admin.Do(ctx, "cluster", "meet", host, port, bus).Err(); err != nil {
		t.Fatal(err)
	}
}

// join returns when a node knows all the others and who serves which slot.
func join(t *testing.T, admin, other *redis.Client, nodes int) {
	t.Helper()
	met := time.Now()
	eventually(t, "the node knows the cluster", func() bool {
		// A handshake that takes longer than the node time-out is forgotten.
		if admin != other && time.Since(met) > 3*time.Second {
			met = time.Now()
			meet(t, admin, other)
		}
		info := admin.ClusterInfo(ctx).Val()
		return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(nodes)+"\r") && strings.Contains(info, "cluster_slots_assigned:16384")
	})
}

func clusterClient(t *testing.T, addrs []string, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{Addrs: addrs, DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClusterClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

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
			addrs, _ := cluster(t, 1)
			spread(t, clusterClient(t, addrs), 1000)
			return
		}
		spread(t, clusterClient(t, []string{b.Addr()}), 300) // miniredis answers CLUSTER SLOTS with itself
	})
}

func TestKEY03_Cluster(t *testing.T) {
	t.Parallel()
	addrs, admins := cluster(t, 3)
	rdb := clusterClient(t, addrs[:1])
	spread(t, rdb, 2000)
	for i, admin := range admins {
		if n := admin.DBSize(ctx).Val(); n < 20 {
			t.Errorf("node %d has %d keys", i, n)
		}
	}
	// The state of a key that moves to another node moves with it: MOVED is followed, although nothing is repeated.
	stale, err := tokenBucket.make(rdb, per(10, 3600), remote.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := stale.Allow(ctx, "foo"); err != nil || got.Remaining != 9 { // slot 12182, on the third node
		t.Errorf("before it moves: %+v, %v", got, err)
	}
	id := func(i int) string { return strings.Fields(admins[i].Do(ctx, "cluster", "myid").Val().(string))[0] }
	do := func(i int, args ...any) {
		t.Helper()
		if err := admins[i].Do(ctx, args...).Err(); err != nil {
			t.Fatalf("node %d: %v: %v", i, args, err)
		}
	}
	do(0, "cluster", "setslot", 12182, "importing", id(2))
	do(2, "cluster", "setslot", 12182, "migrating", id(0))
	host, port, _ := net.SplitHostPort(addrs[0])
	do(2, "migrate", host, port, "hybrid:{foo}tb1", 0, 5000)
	if got, err := stale.Allow(ctx, "foo"); err != nil || got.Remaining != 8 {
		t.Errorf("while it moves: %+v, %v; want remaining 8", got, err)
	}
	do(0, "cluster", "setslot", 12182, "node", id(0))
	do(2, "cluster", "setslot", 12182, "node", id(0))
	if got, err := stale.Allow(ctx, "foo"); err != nil || got.Remaining != 7 {
		t.Errorf("after it moved: %+v, %v; want remaining 7", got, err)
	}
}

// A node that serves no slots answers CLUSTERDOWN; the call is served when it does.
func TestClusterComesUp(t *testing.T) {
	t.Parallel()
	_, admin := node(t)
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
	addrs, admins := cluster(t, 1)
	srv, replica := node(t)
	meet(t, replica, admins[0])
	join(t, replica, admins[0], 2)
	id := strings.Fields(admins[0].Do(ctx, "cluster", "myid").Val().(string))[0]
	if err := replica.Do(ctx, "cluster", "replicate", id).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	eventually(t, "the master knows its replica", func() bool {
		return strings.Contains(admins[0].ClusterNodes(ctx).Val(), "slave "+id)
	})
	// RouteByLatency takes the same way, but go-redis 9.23 races with itself when it measures a new node.
	for name, opt := range map[string]func(*redis.ClusterOptions){
		"ReadOnly":      func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"RouteRandomly": func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		rdb := clusterClient(t, append(addrs, srv.Addr()), opt)
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
	for _, key := range admins[0].Keys(ctx, "*").Val() {
		eventually(t, "the replica has the same state", func() bool {
			return fmt.Sprint(admins[0].Dump(ctx, key).Val()) == fmt.Sprint(replicaDump(replica, key))
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
