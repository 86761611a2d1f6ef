package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hybridlimit/hybrid/remote"
)

// Redis is where the limiters of all runs go. Each run has a prefix of its own, so that runs never meet, and nothing is
// ever flushed: what a run leaves behind expires.
type Redis struct {
	opts     *redis.Options
	embedded *miniredis.Miniredis // nil for a server elsewhere
}

// Embedded starts a Redis in this process, on a port of its own. Close ends it.
func Embedded() (*Redis, error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	m.ClockTTL(true) // else its keys never expire
	return &Redis{&redis.Options{Addr: m.Addr()}, m}, nil
}

// pingTimeout is how long At waits.
const pingTimeout = 2 * time.Second

// At is the server at addr: host:port, or a URL of the form redis://user:password@host:port/db. It has to answer now. A wire
// has no TLS, so rediss:// is refused.
func At(addr string) (*Redis, error) {
	r := &Redis{opts: &redis.Options{Addr: addr}}
	if strings.Contains(addr, "://") {
		var err error
		if r.opts, err = redis.ParseURL(addr); err != nil {
			return nil, errors.New("the address of Redis is no URL of the form redis://user:password@host:port/db") // err may hold the password
		}
		if r.opts.TLSConfig != nil {
			return nil, errors.New("the lab has no TLS: take a redis:// URL, through a tunnel if need be")
		}
	}
	rdb := redis.NewClient(r.options())
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("no Redis at %s: %w", r.opts.Addr, err)
	}
	return r, nil
}

// Close ends an embedded Redis. Runs have to be stopped before.
func (r *Redis) Close() error {
	if r.embedded != nil {
		r.embedded.Close()
	}
	return nil
}

// String says where it is, without a password.
func (r *Redis) String() string {
	if r.embedded != nil {
		return "an embedded Redis (miniredis)"
	}
	return "Redis at " + r.opts.Addr
}

// options are those of one more client.
func (r *Redis) options() *redis.Options {
	o := *r.opts
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // no server here sends any
	return remote.Recommended(&o)
}

// newPrefix is different for each run.
func newPrefix() string { return "hybridlab:" + rand.Text()[:12] + ":" }
