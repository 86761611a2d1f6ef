package remote_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/remote"
)

// A client made with the recommended settings gets no advice, one with the defaults of go-redis does.
func TestRecommendedSettingsNeedNoAdvice(t *testing.T) {
	plain := map[string]remote.Client{
		"client":   redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}),
		"sentinel": redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}}),
		"ring":     redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFrequency: time.Hour}),
		"cluster":  redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
	}
	good := map[string]remote.Client{
		"client":    redis.NewClient(remote.Recommended(&redis.Options{Addr: "127.0.0.1:1"})),
		"sentinel":  redis.NewFailoverClient(remote.Recommended(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})),
		"ring":      redis.NewRing(remote.Recommended(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFrequency: time.Hour})),
		"cluster":   redis.NewClusterClient(remote.Recommended(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})),
		"universal": redis.NewUniversalClient(remote.Recommended(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}})),
	}
	for name, c := range plain {
		if got := remote.Advice(c); len(got) < 2 || name == "cluster" && len(got) != 3 {
			t.Errorf("%s: %q", name, got)
		}
		c.(interface{ Close() error }).Close()
	}
	for name, c := range good {
		if got := remote.Advice(c); got != nil {
			t.Errorf("recommended %s: %q", name, got)
		}
		c.(interface{ Close() error }).Close()
	}
	o := remote.Recommended(&redis.ClusterOptions{DialTimeout: time.Minute, DialerRetries: 3, ClusterStateReloadInterval: time.Hour, MaxRedirects: -1})
	if o.DialTimeout != time.Minute || o.DialerRetries != 3 || o.ClusterStateReloadInterval != time.Hour || !o.ContextTimeoutEnabled {
		t.Errorf("settings of the user's were changed: %+v", o)
	}
	c := redis.NewClusterClient(o)
	defer c.Close()
	if got := strings.Join(remote.Advice(c), "\n"); !strings.Contains(got, "MaxRedirects") || !strings.Contains(got, "Reload") || !strings.Contains(got, "Dialer") {
		t.Errorf("advice: %s", got)
	}
}

// The lane of a key in a cluster is the range of its slot, as the server counts it.
func TestLanes(t *testing.T) {
	srv := redistest.Start(t, "--cluster-enabled", "yes")
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer rdb.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{srv.Addr()}})
	defer cluster.Close()
	src := remote.NewSource(cluster, remote.Options{})
	lanes := map[string]bool{}
	for _, key := range []string{"a", "k", "customer-42", "x{y}z", "{", "}", "\x00\xff", "äöü", strings.Repeat("long", 100), "1", "2", "3", "4", "5"} {
		slot, err := rdb.ClusterKeySlot(context.Background(), "hybrid:{"+key+"}tb1").Result()
		if err != nil {
			t.Fatal(err)
		}
		lane := src.Lane(key)
		lanes[lane] = true
		var from, to int64
		if _, err := fmt.Sscanf(lane, "slots %d-%d", &from, &to); err != nil || slot < from || slot > to {
			t.Errorf("%.20q is in slot %d and lane %q", key, slot, lane)
		}
	}
	if len(lanes) < 5 {
		t.Errorf("only %d lanes", len(lanes))
	}
	if lane := remote.NewSource(rdb, remote.Options{}).Lane("a"); lane != "" {
		t.Errorf("a single server has the lane %q", lane)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"}, HeartbeatFrequency: time.Hour})
	defer ring.Close()
	src, lanes = remote.NewSource(ring, remote.Options{}), map[string]bool{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		lanes[src.Lane(key)] = true
	}
	if !lanes["127.0.0.1:1"] || !lanes["127.0.0.1:2"] || len(lanes) != 2 {
		t.Errorf("lanes of a ring: %v", lanes)
	}
}
