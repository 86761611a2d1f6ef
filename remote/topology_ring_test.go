package remote_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/remote"
)

// A server of a Ring goes: its keys go to the others, where they are full buckets, and home when it is back, where they
// are again if it has lost its data. The keys of the others stay where they are and notice nothing.
func TestRing_ServerDown(t *testing.T) {
	if testing.Short() {
		t.Skip("a Ring notices after some heartbeats")
	}
	t.Parallel()
	servers := make(map[string]*redistest.Server)
	addrs := make(map[string]string)
	for _, name := range []string{"a", "b", "c"} {
		servers[name] = redistest.Start(t)
		addrs[name] = servers[name].Addr()
	}
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: addrs, HeartbeatFrequency: 100 * time.Millisecond, ContextTimeoutEnabled: true, DialerRetries: 1,
	})
	t.Cleanup(func() { ring.Close() })
	l, err := tokenBucket.make(ring, thousand, remote.Options{Timeout: impatience})
	if err != nil {
		t.Fatal(err)
	}
	calm, err := tokenBucket.make(ring, thousand, remote.Options{Timeout: bearable})
	if err != nil {
		t.Fatal(err)
	}
	// Keys of each server.
	owner := func(key string) string {
		t.Helper()
		rdb, err := ring.GetShardClientForKey(stored(tokenBucket, thousand, key))
		if err != nil {
			t.Fatal(err)
		}
		for name, addr := range addrs {
			if rdb.Options().Addr == addr {
				return name
			}
		}
		t.Fatalf("a server that is not there: %v", rdb)
		return ""
	}
	const dead = "b"
	keys := make(map[string][]string)
	for i := range 30 {
		key := fmt.Sprint("user-", i)
		keys[owner(key)] = append(keys[owner(key)], key)
	}
	if len(keys) != 3 {
		t.Fatalf("30 keys are on %d servers", len(keys))
	}
	lost := keys[dead][0]
	if got, err := l.AllowN(ctx, lost, 1000); err != nil || !got.Allowed {
		t.Fatalf("%+v, %v", got, err)
	}
	var others []*traffic
	for name, list := range keys {
		for _, key := range list[:min(2, len(list))] {
			if name != dead {
				others = append(others, drive(t, calm, key+" of another", key, 10*time.Millisecond))
			}
		}
	}
	moves(t, "decides before", 5, others...)
	servers[dead].Kill()
	own := drive(t, l, lost+" of the dead server", lost, 10*time.Millisecond)
	moves(t, "decides elsewhere", 5, own)
	if owner(lost) == dead {
		t.Error("the dead server still owns a key")
	}
	moves(t, "decides while a server is down", 5, others...)
	own.check(t)
	if n := own.admitted + rest(t, l, lost); n > 1000 || n < 1000-own.failed {
		t.Errorf("%d admitted elsewhere with %d failed calls, want the 1000 of a full bucket", n, own.failed)
	}
	t.Logf("no decisions for %v, %d calls failed, longest %v", own.outage, own.failed, own.longest)
	for _, key := range keys[dead][1:] {
		if got, err := l.Allow(ctx, key); err != nil || !got.Allowed {
			t.Errorf("%s of the dead server: %+v, %v", key, got, err)
		}
	}

	servers[dead].Restart(t)
	eventually(t, "the server is taken back", func() bool { return owner(lost) == dead })
	if n := rest(t, l, lost); n != 1000 {
		t.Errorf("%d left at home, want a full bucket", n)
	}
	for _, f := range others {
		f.undisturbed(t)
	}
	for _, f := range others {
		key := f.name[:len(f.name)-len(" of another")]
		if n := f.admitted + rest(t, l, key); n != 1000 {
			t.Errorf("%s: %d admitted, want 1000", f.name, n)
		}
	}
}
