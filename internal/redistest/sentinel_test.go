package redistest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestSentinel(t *testing.T) {
	if testing.Short() {
		t.Skip("a failover takes seconds")
	}
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, s *Sentinel){
		"failover": func(t *testing.T, s *Sentinel) { s.Failover(t) },
		"kill":     func(t *testing.T, s *Sentinel) { s.Master(t).Kill() },
		"pause":    func(t *testing.T, s *Sentinel) { s.Master(t).Pause() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			s := StartSentinel(t)
			t.Logf("ready after %v", time.Since(began))
			rdb := s.Client(t, func(o *redis.FailoverOptions) { o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, time.Second })
			if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			old, replica := s.Master(t), s.Replica(t)
			if old != s.pair[0] || replica != s.pair[1] {
				t.Errorf("master %s, replica %s", old.Addr(), replica.Addr())
			}
			direct := replica.Client(t)
			eventually(t, "the replica has the key", func() bool { return direct.Get(ctx, "k").Val() == "v" })
			began = time.Now()
			end(t, s)
			s.Replaced(t, old)
			t.Logf("another master after %v", time.Since(began))
			if s.Master(t) != replica || s.Replica(t) != old {
				t.Error("master and replica have not changed places")
			}
			eventually(t, "the client has followed", func() bool { return rdb.Set(ctx, "k", "w", 0).Err() == nil })
			t.Logf("the client has followed after %v", time.Since(began))
			switch name {
			case "kill":
				old.Restart(t)
			case "pause":
				old.Resume()
			}
			back := old.Client(t)
			eventually(t, "the old master is a replica", func() bool {
				return strings.Contains(back.Info(ctx, "replication").Val(), "role:slave")
			})
			t.Logf("the old master is a replica after %v", time.Since(began))
		})
	}
}
