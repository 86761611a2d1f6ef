package remote_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// A replica and a restart from the append-only file have the state of the master, which scripts that write after TIME
// had to ask for until Redis 5. The versions before that are not tested: it takes a server of each.
func TestREDIS03_ReplicaAndRestart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(srv.Addr(), ":")
	replica := redistest.Start(t, "--replicaof", host+" "+port).Client(t)
	rdb := srv.Client(t)
	t.Logf("redis %s", rdb.InfoMap(ctx, "server").Item("Server", "redis_version"))
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	rigs := make(map[string]*rig)
	states := make(map[string]string)
	for _, m := range allModes {
		l, err := m.make(rdb, per(10, 36_000), remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{limiter: l, t: t, mode: m, key: "k"}
		for _, n := range []int{3, 0, 2, 9} {
			r.ask(n)
		}
		rigs[m.name] = r
		states[m.name] = dumpFrom(t, rdb, r)
	}
	for name, r := range rigs {
		eventually(t, name+" is replicated", func() bool {
			return replica.Exists(ctx, r.stored()).Val() == 1 && dumpFrom(t, replica, r) == states[name]
		})
		if ttl, want := replica.PTTL(ctx, r.stored()).Val(), rdb.PTTL(ctx, r.stored()).Val(); ttl < want-10*time.Second || ttl <= 0 {
			t.Errorf("%s: time to live %v on the replica, %v on the master", name, ttl, want)
		}
	}
	srv.Kill()
	srv.Restart(t)
	for name, r := range rigs {
		if got := dumpFrom(t, rdb, r); got != states[name] {
			t.Errorf("%s: state %s after a restart, want %s", name, got, states[name])
		}
		if got := r.left(); got != 5 {
			t.Errorf("%s: %d left after a restart, want 5", name, got)
		}
	}
}

func dumpFrom(t *testing.T, rdb *redis.Client, r *rig) string {
	t.Helper()
	s := *r
	s.b = &redistest.Backend{Client: rdb}
	return dump(&s)
}

// With the memory full a call is refused or right, and nothing is left half-written.
func TestREDIS07_OutOfMemory(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--maxmemory-policy", "noeviction")
	rdb := srv.Client(t)
	memory := func(limit string) {
		t.Helper()
		if err := rdb.ConfigSet(ctx, "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range allModes {
		l, err := m.make(rdb, per(10, 36_000), remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{limiter: l, t: t, mode: m, key: "old"}
		r.ask(4)
		r.on("full").ask(10)
		memory("1")
		for _, key := range []string{"new", "old"} {
			got, err := l.AllowN(ctx, key, 3)
			if !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, remote.ErrRefused) || !strings.Contains(err.Error(), "OOM") || got != (limit.Result{}) {
				t.Errorf("%s, %s key: %+v, %v; want ErrRefused for memory", m.name, key, got, err)
			}
		}
		// What only reads works.
		if got := r.left(); got != 6 {
			t.Errorf("%s: %d left without memory, want 6", m.name, got)
		}
		if got := r.on("full").ask(1); got.Allowed {
			t.Errorf("%s: %+v on an exhausted key", m.name, got)
		}
		memory("0")
		if got := r.left(); got != 6 {
			t.Errorf("%s: %d left when there is memory again, want 6", m.name, got)
		}
		for key, want := range map[string]int{"new": 7, "old": 3} {
			if got := r.on(key).ask(3); !got.Allowed || got.Remaining != want {
				t.Errorf("%s, %s key: %+v, want allowed, remaining %d", m.name, key, got, want)
			}
			if ttl := rdb.PTTL(ctx, r.on(key).stored()).Val(); ttl <= 0 {
				t.Errorf("%s, %s key: time to live %v", m.name, key, ttl)
			}
		}
	}
}

// Limits are arguments: however many there are, the server knows one script for each mode.
func TestREDIS08_FewScripts(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	for i := range 200 {
		for _, m := range allModes {
			l, err := m.make(rdb, per(10+i, 60), remote.Options{Timeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Allow(ctx, strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := rdb.InfoMap(ctx, "memory").Item("Memory", "number_of_cached_scripts"); got != "5" {
		t.Errorf("%s scripts cached, want 5", got)
	}
}

// A log of the largest size, all expired, and then all in one call.
func TestREDIS08_LongLog(t *testing.T) {
	on(t, slidingLog, per(remote.MaxLog, 60), func(r *rig) {
		if !r.real() {
			r.t.Skip("miniredis is too slow for it")
		}
		admin := r.b.Client
		if got := r.ask(remote.MaxLog); !got.Allowed || got.Remaining != 0 {
			r.t.Errorf("%+v, want allowed, remaining 0", got)
		}
		if got := r.ask(1); got.Allowed || got.RetryAfter != time.Minute {
			r.t.Errorf("%+v, want denied for 1m", got)
		}
		if got := admin.ZCard(ctx, r.stored()).Val(); got != remote.MaxLog {
			r.t.Errorf("%d members, want %d", got, remote.MaxLog)
		}
		// What the key's expiry left, on a server that is late with it: trimmed in one go.
		old := r.b.Now().Add(-time.Hour).UnixMicro()
		for from := range slices.Chunk(numbers(remote.MaxLog), 10_000) {
			args := []any{"zadd", r.stored()}
			for _, n := range from {
				args = append(args, old+int64(n), fmt.Sprintf("%016d", n))
			}
			if err := admin.Do(ctx, args...).Err(); err != nil {
				r.t.Fatal(err)
			}
		}
		if got := r.ask(2); !got.Allowed || got.Remaining != remote.MaxLog-2 {
			r.t.Errorf("%+v, want allowed, all but 2 left", got)
		}
		if got := admin.ZCard(ctx, r.stored()).Val(); got != 2 {
			r.t.Errorf("%d members, want 2", got)
		}
		// A clock that is set back moves the whole log once.
		r.ask(remote.MaxLog - 2)
		if got := r.pass(-time.Hour).ask(1); got.Allowed {
			r.t.Errorf("%+v after the clock was set back, want denied", got)
		}
		if got := admin.ZCard(ctx, r.stored()).Val(); got != remote.MaxLog {
			r.t.Errorf("%d members after the clock was set back, want %d", got, remote.MaxLog)
		}
		r.retry(remote.MaxLog)
	})
}

func numbers(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}
