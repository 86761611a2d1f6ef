package remote_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// Over TLS with certificates on both sides, as a user with the least rights.
func TestREDIS06_RightsOverTLS(t *testing.T) {
	t.Parallel()
	srv, secure := redistest.StartTLS(t)
	admin := srv.Client(t)
	for _, tt := range rights {
		if err := everything(admin, tt.mode, tt.leases, user(t, srv, admin, "least", allowing(tt.commands)...)); err != nil {
			t.Errorf("%s with %s: %v", tt.mode.name, tt.commands, err)
		}
	}
	// A client that the server does not let in hears of it as of any connection that fails.
	stranger := secure.Clone()
	stranger.Certificates = nil
	rdb := srv.Client(t, func(o *redis.Options) { o.TLSConfig, o.ContextTimeoutEnabled, o.DialerRetries = stranger, true, 1 })
	for _, m := range allModes {
		l, err := m.make(rdb, per(5, 60), remote.Options{Timeout: impatience})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.Allow(ctx, "k"); !errors.Is(err, limit.ErrUnavailable) || got != (limit.Result{}) {
			t.Errorf("%s without a certificate: %+v, %v; want ErrUnavailable", m.name, got, err)
		}
	}
}

// A cluster client also has to ask who serves what.
func TestREDIS06_RightsInCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 1, 0)
	admin := c.Nodes[0].Client(t)
	for _, extra := range []string{"cluster|slots", ""} {
		for _, tt := range rights {
			if err := errors.Join(admin.FlushAll(ctx).Err(), admin.ScriptFlush(ctx).Err()); err != nil {
				t.Fatal(err)
			}
			user(t, c.Nodes[0].Server, admin, "least", allowing(tt.commands+" "+extra)...)
			rdb := c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = "least", "pw" })
			l, err := tt.mode.make(rdb, per(5, 60), remote.Options{Timeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.Allow(ctx, "k")
			if extra == "" {
				if !errors.Is(err, remote.ErrRefused) || !strings.Contains(err.Error(), "NOPERM") {
					t.Errorf("%s without CLUSTER SLOTS: %v, want ErrRefused for missing rights", tt.mode.name, err)
				}
				continue
			}
			if err := errors.Join(err, l.Reset(ctx, "k")); err != nil {
				t.Errorf("%s: %v", tt.mode.name, err)
			}
			if tt.mode.name != tokenBucket.name {
				continue
			}
			grants := make([]lease.Grant, 3)
			remote.NewSource(rdb, remote.Options{Timeout: patience}).Acquire(ctx, requests(per(5, 60), 3, 1), grants)
			for i, g := range grants {
				if g.Err != nil || g.Level != 4 {
					t.Errorf("grant %d: %+v, want level 4", i, g)
				}
			}
		}
	}
}
