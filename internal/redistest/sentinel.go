package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is what the sentinel of a [Sentinel] calls its master.
const MasterName = "main"

// DownAfter is how long a master of a [Sentinel] must be silent to count as down.
const DownAfter = time.Second

// Sentinel is a master, its replica, and a sentinel that replaces the one by the other. To end the master, kill or pause
// it: s.Master(t).Kill(). When it is back, the sentinel makes it a replica.
//
// There is one sentinel, and not three as in production: they elect one of them, and when the votes are split they try
// again after seconds. Clients see no difference.
//
// The methods that wait must be called by the test's own goroutine.
type Sentinel struct {
	Sentinel *Server

	pair  [2]*Server // the master and the replica at the start
	admin *redis.SentinelClient
}

// StartSentinel starts the three processes, which tb's Cleanup kills, and returns when a failover would succeed. The
// args are those of the master and the replica. If redis-server is not installed, the test is skipped as by [Start].
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	args = append(replicated(), args...)
	s := &Sentinel{}
	s.pair[0] = Start(tb, args...)
	host, port, _ := strings.Cut(s.pair[0].Addr(), ":")
	s.pair[1] = Start(tb, append(args, "--replicaof", host+" "+port)...)
	inStep(tb, s.pair[0].Client(tb), s.pair[1].Client(tb))

	conf := filepath.Join(tb.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %s %s %s 1\nsentinel down-after-milliseconds %[1]s %[4]d\nsentinel failover-timeout %[1]s 3000\n",
		MasterName, host, port, DownAfter.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.Sentinel = &Server{conf: []string{conf, "--sentinel"}}
	s.Sentinel.mustLaunch(tb)
	s.admin = redis.NewSentinelClient(s.Sentinel.Client(tb).Options())
	tb.Cleanup(func() { s.admin.Close() })
	ctx := context.Background()
	// Ask around more often than once in 1 to 10 s, and do not sulk for 30 s on a busy machine. An old server does not
	// know the command, and takes its time. A new connection is pinged first after a ping-period, so DownAfter must be
	// well above. Five of them must be well above a second: when the master is down, the replica is asked for its state
	// once in a second, and not promoted if that is older.
	_ = s.admin.Process(ctx, redis.NewCmd(ctx, "sentinel", "debug",
		"ping-period", 300, "info-period", 200, "publish-period", 100, "tilt-period", 1000))
	eventually(tb, "the sentinel knows master and replica", func() bool {
		r := s.admin.Replicas(ctx, MasterName).Val()
		return s.admin.CkQuorum(ctx, MasterName).Err() == nil &&
			len(r) == 1 && r[0]["flags"] == "slave" && r[0]["master-link-status"] == "ok"
	})
	return s
}

// Addrs is for redis.FailoverOptions.
func (s *Sentinel) Addrs() []string { return []string{s.Sentinel.Addr()} }

// Client returns a client of the master, whichever that is, that tb's Cleanup closes.
func (s *Sentinel) Client(tb testing.TB, opts ...func(*redis.FailoverOptions)) *redis.Client {
	tb.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.Addrs(), DisableIdentity: true}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewFailoverClient(o)
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// Master is the server that the sentinel takes for the master.
func (s *Sentinel) Master(tb testing.TB) *Server {
	tb.Helper()
	addr, err := s.admin.GetMasterAddrByName(context.Background(), MasterName).Result()
	if err != nil {
		tb.Fatal(err)
	}
	if strings.Join(addr, ":") == s.pair[0].Addr() {
		return s.pair[0]
	}
	return s.pair[1]
}

// Replica is the other one.
func (s *Sentinel) Replica(tb testing.TB) *Server {
	tb.Helper()
	if s.Master(tb) == s.pair[0] {
		return s.pair[1]
	}
	return s.pair[0]
}

// Failover makes the replica the master, as an operator does, and returns when it is. The old master goes on answering
// as one for about half a second.
func (s *Sentinel) Failover(tb testing.TB) {
	tb.Helper()
	old := s.Master(tb)
	eventually(tb, "the sentinel begins", func() bool {
		return s.admin.Failover(context.Background(), MasterName).Err() == nil
	})
	s.Replaced(tb, old)
}

// Replaced returns when another server than old is the master.
func (s *Sentinel) Replaced(tb testing.TB, old *Server) {
	tb.Helper()
	eventually(tb, "there is another master", func() bool { return s.Master(tb) != old })
}

// replicated are the arguments of servers that replicate: a copy is made at once, not after waiting for others who may
// want one as well, and what follows is sent at once, not after the next report of the replica.
func replicated() []string {
	return []string{"--repl-diskless-sync", "no"}
}

// inStep returns when the replica has a copy of the master and is sent what follows.
func inStep(tb testing.TB, master, replica *redis.Client) {
	tb.Helper()
	ctx := context.Background()
	eventually(tb, "the replica is in step", func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up") &&
			strings.Contains(master.Info(ctx, "replication").Val(), "state=online")
	})
}
