package remote_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// rights are the commands that an ACL user needs for each mode, beside the keys ~hybrid:*. They are the least: without
// any one of them some call fails. EVAL is for a server that does not know the script yet, DEL for Reset.
var rights = []struct {
	mode     mode
	leases   bool // by package hybrid
	commands string
}{
	{tokenBucket, false, "evalsha eval time hmget exists hset pexpire del"},
	{tokenBucket, true, "evalsha eval time hmget exists hset pexpire del hgetall hdel"},
	{gcra, false, "evalsha eval time get set del"},
	{fixedWindow, false, "evalsha eval time hmget exists hset pexpire pttl del"},
	{slidingLog, false, "evalsha eval time zrange zcount zcard zremrangebyscore zadd pexpire del"},
	{slidingCounter, false, "evalsha eval time hmget exists hset pexpire del"},
}

// user makes an ACL user with these commands and returns a client that logs in as it.
func user(t *testing.T, srv *redistest.Server, admin *redis.Client, name string, rules ...string) *redis.Client {
	t.Helper()
	args := []any{"acl", "setuser", name, "reset", "on", ">pw", "~hybrid:*"}
	for _, r := range rules {
		args = append(args, r)
	}
	if err := admin.Do(ctx, args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return srv.Client(t, func(o *redis.Options) { o.Username, o.Password = name, "pw" })
}

func allowing(commands string) []string {
	var rules []string
	for c := range strings.FieldsSeq(commands) {
		rules = append(rules, "+"+c)
	}
	return rules
}

// everything is what a mode can be asked for, on a server that knows no scripts.
func everything(admin *redis.Client, m mode, leases bool, rdb *redis.Client) error {
	if err := errors.Join(admin.FlushAll(ctx).Err(), admin.ScriptFlush(ctx).Err()); err != nil {
		return err
	}
	l, err := m.make(rdb, per(5, 60), remote.Options{Timeout: patience})
	if err != nil {
		return err
	}
	for _, n := range []int{0, 1, 4, 1, 0} {
		if _, err := l.AllowN(ctx, "k", n); err != nil {
			return err
		}
	}
	if m.name == tokenBucket.name {
		grants := make([]lease.Grant, 2)
		remote.NewSource(rdb, remote.Options{Timeout: patience}).Acquire(ctx, requests(per(5, 60), 2, 1), grants)
		for _, g := range grants {
			if g.Err != nil {
				return g.Err
			}
		}
	}
	if leases {
		if err := leaseAndLose(rdb); err != nil {
			return err
		}
	}
	return l.Reset(ctx, "k")
}

// leaseAndLose takes a lease and waits until the bucket has written it off.
func leaseAndLose(rdb *redis.Client) error {
	source := remote.NewSource(rdb, remote.Options{Timeout: patience})
	req := requests(per(500, 60), 1, 0)
	req[0].Key = "leased"
	req[0].Lease = lease.Holding{ID: "lost", Seq: 1, Want: 5, Demand: 1, MaxLeased: 100, TTL: time.Millisecond}
	for {
		var g [1]lease.Grant
		source.Acquire(ctx, req, g[:])
		if g[0].Err != nil || req[0].Lease.ID != "lost" && g[0].Holders == 1 {
			return g[0].Err
		}
		// Another process, which finds it expired before long.
		req[0].Lease.ID, req[0].Lease.TTL = "other", time.Minute
		req[0].Lease.Seq++
		req[0].Lease.Held, req[0].Lease.Epoch, req[0].Lease.Expiry = g[0].Granted, g[0].Epoch, g[0].Expiry
		if req[0].Lease.Seq == 2 {
			req[0].Lease.Held, req[0].Lease.Epoch, req[0].Lease.Expiry = 0, 0, 0
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestREDIS06_Rights(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(t)
	for _, tt := range rights {
		rdb := user(t, srv, admin, "exact", allowing(tt.commands)...)
		if err := everything(admin, tt.mode, tt.leases, rdb); err != nil {
			t.Errorf("%s with %s: %v", tt.mode.name, tt.commands, err)
		}
		for missing := range strings.FieldsSeq(tt.commands) {
			fewer := user(t, srv, admin, "fewer", append(allowing(tt.commands), "-"+missing)...)
			err := everything(admin, tt.mode, tt.leases, fewer)
			if !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, remote.ErrRefused) || !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "can't run this command") {
				t.Errorf("%s without %s: %v; want ErrRefused for missing rights", tt.mode.name, missing, err)
			}
		}
	}
}

func TestREDIS06_MissingRightsAreToldOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(t)
	for _, rules := range [][]string{{"+@read", "+@write"}, {"+@read", "+@write", "+evalsha"}, {"resetkeys", "~other:*", "+@all"}} {
		rdb := user(t, srv, admin, "u", rules...)
		tap := attach(rdb)
		for _, m := range allModes {
			if err := admin.ScriptFlush(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			l, err := m.make(rdb, per(5, 60), remote.Options{Timeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			got, err := l.Allow(ctx, "k")
			if !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, remote.ErrRefused) || got != (limit.Result{}) {
				t.Errorf("%s with %v: %+v, %v; want ErrRefused", m.name, rules, got, err)
			}
			// EVALSHA, and EVAL if that was allowed and answered NOSCRIPT.
			most := 1
			if slices.Contains(rules, "+evalsha") {
				most = 2
			}
			if n := tap.sent(); n > most {
				t.Errorf("%s with %v: sent %d times, want at most %d", m.name, rules, n, most)
			}
		}
	}
	// No password at all.
	if err := admin.ConfigSet(ctx, "requirepass", "pw").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := srv.Client(t)
	for _, m := range allModes {
		l, err := m.make(rdb, per(5, 60), remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		// Redis also cuts the connection of a stranger who sends more than a few arguments, and its last word may be
		// lost with it.
		for range 20 {
			if _, err = l.Allow(ctx, "k"); errors.Is(err, remote.ErrRefused) {
				break
			}
		}
		if !errors.Is(err, remote.ErrRefused) || !errors.Is(err, limit.ErrUnavailable) {
			t.Errorf("%s without a password: %v, want ErrRefused", m.name, err)
		}
	}
}
