package redistest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// slots is how many parts the keys of a cluster are divided into.
const slots = 16384

// Cluster is a Redis Cluster. Its nodes are killed and paused like any server: c.Master(t, key).Kill().
//
// The methods that wait must be called by the test's own goroutine.
type Cluster struct {
	Nodes []*Node // the masters, then the replicas, as they were at the start
}

// Node is one server of a [Cluster].
type Node struct {
	*Server
	ID string // that the other nodes know it by

	admin *redis.Client
}

// StartCluster starts masters that share all slots evenly, and replicas that are spread over them, and returns when
// each node knows all the others and each replica is in step. tb's Cleanup kills them. The args are those of
// redis-server; the node time-out is 2 s unless they say otherwise. If it is not installed, the test is skipped as by
// [Start].
func StartCluster(tb testing.TB, masters, replicas int, args ...string) *Cluster {
	tb.Helper()
	c := &Cluster{}
	for range masters + replicas {
		c.Nodes = append(c.Nodes, StartNode(tb, args...))
	}
	for i, n := range c.Nodes {
		// Ranks of their own, or the nodes would have to find out that they collide.
		n.do(tb, "set-config-epoch", i+1)
		for _, other := range c.Nodes[:i] {
			n.meet(tb, other)
		}
		if i < masters {
			n.do(tb, "addslotsrange", i*slots/masters, (i+1)*slots/masters-1)
		}
	}
	c.agree(tb)
	for i, n := range c.Nodes[masters:] {
		n.do(tb, "replicate", c.Nodes[i%masters].ID)
	}
	for i, n := range c.Nodes[masters:] {
		inStep(tb, c.Nodes[i%masters].admin, n.admin)
		for _, other := range c.Nodes {
			eventually(tb, "the nodes know the replicas", func() bool {
				return strings.Contains(other.admin.ClusterNodes(context.Background()).Val(), "slave "+c.Nodes[i%masters].ID)
			})
		}
	}
	return c
}

// StartNode starts a node that knows no others and serves no slots.
func StartNode(tb testing.TB, args ...string) *Node {
	tb.Helper()
	n := &Node{Server: Start(tb, slices.Concat(replicated(), []string{
		"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-config-file", nodesFile(tb),
	}, args)...)}
	n.admin = n.Client(tb, func(o *redis.Options) {
		o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, time.Second // it may be down
	})
	id, err := n.admin.Do(context.Background(), "cluster", "myid").Text()
	if err != nil {
		tb.Fatal(err)
	}
	n.ID = id
	return n
}

// nodesFile is where a node keeps what it knows of the others. It waits until that is on the disk, and its clients wait
// with it, every time the cluster changes: on a busy disk half a second and more for a vote. So it is kept in memory where
// there is such a place.
func nodesFile(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "redistest")
	if err != nil {
		return "nodes.conf"
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "nodes.conf")
}

// do runs CLUSTER with these arguments on the node.
func (n *Node) do(tb testing.TB, args ...any) {
	tb.Helper()
	args = append([]any{"cluster"}, args...)
	if err := n.admin.Do(context.Background(), args...).Err(); err != nil {
		tb.Fatalf("redistest: %v: %v", args, err)
	}
}

func (n *Node) meet(tb testing.TB, other *Node) {
	tb.Helper()
	host, port, _ := net.SplitHostPort(other.Addr())
	n.do(tb, "meet", host, port)
}

// agree returns when each node knows all the others and serves.
func (c *Cluster) agree(tb testing.TB) {
	tb.Helper()
	known := "cluster_known_nodes:" + strconv.Itoa(len(c.Nodes)) + "\r"
	for _, n := range c.Nodes {
		met := time.Now()
		eventually(tb, "the node knows the cluster", func() bool {
			// A handshake that takes longer than the node time-out is forgotten.
			if time.Since(met) > 3*time.Second {
				met = time.Now()
				for _, other := range c.Nodes {
					n.meet(tb, other)
				}
			}
			info := n.admin.ClusterInfo(context.Background()).Val()
			return strings.Contains(info, known) && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, "cluster_slots_assigned:"+strconv.Itoa(slots))
		})
	}
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		addrs[i] = n.Addr()
	}
	return addrs
}

// Client returns a client of the cluster that tb's Cleanup closes.
func (c *Cluster) Client(tb testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	tb.Helper()
	o := &redis.ClusterOptions{
		Addrs:                    c.Addrs(),
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClusterClient(o)
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// Master is the node that says of itself that it serves the slot of a key. It waits until there is one, as after a
// failover.
func (c *Cluster) Master(tb testing.TB, key string) *Node {
	tb.Helper()
	slot := c.slot(tb, key)
	var master *Node
	eventually(tb, "a master for the slot", func() bool {
		i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.serves(slot) })
		if i >= 0 {
			master = c.Nodes[i]
		}
		return i >= 0
	})
	return master
}

// self is what the node says of itself: ID, address, roles, master, and from the ninth on the slots that it serves. It is
// empty if the node does not answer.
func (n *Node) self() []string {
	for line := range strings.Lines(n.admin.ClusterNodes(context.Background()).Val()) {
		if strings.Contains(line, "myself") {
			return strings.Fields(line)
		}
	}
	return nil
}

func (n *Node) serves(slot int) bool {
	self := n.self()
	if len(self) < 9 {
		return false
	}
	return slices.ContainsFunc(self[8:], func(s string) bool {
		first, last, ok := strings.Cut(s, "-") // a slot on its way to or from elsewhere is in brackets, and here as well
		if !ok {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		return err1 == nil && err2 == nil && from <= slot && slot <= to
	})
}

// is tells the role, "master" or "slave".
func (n *Node) is(role string) bool {
	self := n.self()
	return len(self) > 3 && strings.Contains(self[2], role)
}

// slot is that of a key.
func (c *Cluster) slot(tb testing.TB, key string) int {
	tb.Helper()
	for _, n := range c.Nodes {
		if slot, err := n.admin.ClusterKeySlot(context.Background(), key).Result(); err == nil {
			return int(slot)
		}
	}
	tb.Fatal("redistest: no node answers")
	return 0
}

// Failover makes the replica of the key's master the master, as an operator does, with nothing lost, and returns when it
// serves.
func (c *Cluster) Failover(tb testing.TB, key string) {
	tb.Helper()
	old := c.Master(tb, key)
	i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.is("slave") && n.self()[3] == old.ID })
	if i < 0 {
		tb.Fatal("redistest: the master has no replica")
	}
	c.Nodes[i].do(tb, "failover")
	eventually(tb, "the replica serves the slot", func() bool { return c.Master(tb, key) != old })
}

// Migration is the move of one slot from its master to another, at the point to which a test has taken it. In between,
// the source answers ASK about keys that it does not hold, and either side TRYAGAIN to a command about several keys of
// which some are here and some there.
type Migration struct {
	slot     int
	from, to *Node
	masters  []*Node
}

// Migrate begins to move the slot of a key. No key has moved yet, but new ones are made at the target.
func (c *Cluster) Migrate(tb testing.TB, key string, to *Node) *Migration {
	tb.Helper()
	m := &Migration{slot: c.slot(tb, key), from: c.Master(tb, key), to: to}
	if m.from == to {
		tb.Fatal("redistest: the slot is there already")
	}
	for _, n := range c.Nodes {
		if n.is("master") {
			m.masters = append(m.masters, n)
		}
	}
	to.do(tb, "setslot", m.slot, "importing", m.from.ID)
	m.from.do(tb, "setslot", m.slot, "migrating", to.ID)
	return m
}

// Move moves up to n keys to the target, each at once, and returns how many there were to move.
func (m *Migration) Move(tb testing.TB, n int) int {
	tb.Helper()
	ctx := context.Background()
	keys, err := m.from.admin.ClusterGetKeysInSlot(ctx, m.slot, n).Result()
	if err != nil {
		tb.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(m.to.Addr())
	for _, key := range keys {
		if err := m.from.admin.Migrate(ctx, host, port, key, 0, startTimeout).Err(); err != nil {
			tb.Fatalf("redistest: migrate: %v", err)
		}
	}
	return len(keys)
}

// Finish moves what is left and gives the slot to the target.
func (m *Migration) Finish(tb testing.TB) {
	tb.Helper()
	for m.Move(tb, 1000) > 0 {
	}
	// The target first: a slot that nobody serves would be an error for whoever asks in between.
	order := []*Node{m.to, m.from}
	for _, n := range m.masters {
		if !slices.Contains(order, n) {
			order = append(order, n)
		}
	}
	for _, n := range order {
		n.do(tb, "setslot", m.slot, "node", m.to.ID)
	}
}
