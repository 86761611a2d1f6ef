package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
)

// backend is the Redis of a run.
type backend struct {
	addr string
	// kind is what answers there, for the heading of the tables.
	kind string
	// real is false for miniredis, which keeps no statistics.
	real  bool
	admin *redis.Client
	stop  func()
}

// openBackend takes the server that HYBRID_REDIS_ADDR names, else starts a redis-server, else a miniredis.
func openBackend(ctx context.Context) (*backend, error) {
	b := &backend{real: true, stop: nothing}
	if b.addr = os.Getenv("HYBRID_REDIS_ADDR"); b.addr == "" {
		srv, err := redistest.Launch()
		if err == nil {
			b.addr, b.stop = srv.Addr(), func() { srv.Close() }
		} else {
			mini, miniErr := miniredis.Run()
			if miniErr != nil {
				return nil, fmt.Errorf("no redis-server (%v) and no miniredis: %w", err, miniErr)
			}
			b.addr, b.stop, b.real = mini.Addr(), mini.Close, false
			b.kind = "miniredis, in this process: no measure of Redis"
		}
	}
	b.admin = redis.NewClient(options(b.addr, new(atomic.Int64)))
	if b.real {
		info, err := b.admin.Info(ctx, "server").Result()
		if err != nil {
			b.close()
			return nil, err
		}
		_, rest, _ := strings.Cut(info, "redis_version:")
		version, _, _ := strings.Cut(rest, "\r\n")
		b.kind = "Redis " + version
	}
	return b, nil
}

func (b *backend) close() {
	b.admin.Close()
	b.stop()
}

// commands is how many commands the server has run, those inside scripts included, or -1 if it does not tell.
func (b *backend) commands(ctx context.Context) (int64, error) {
	if !b.real {
		return -1, nil
	}
	info, err := b.admin.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(line, ":calls=")
		if !ok || name == "cmdstat_info" {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("INFO commandstats: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// options are those of go-redis but for the dialler, which counts, a handshake that only some servers know, and
// deadlines: without ContextTimeoutEnabled a context says nothing while a reply is awaited, and a limiter that has to
// answer in time must hand each call to another goroutine. Every limiter gets the same.
func options(addr string, writes *atomic.Int64) *redis.Options {
	return &redis.Options{
		Addr:                  addr,
		ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return countedConn{conn.(*net.TCPConn), writes}, nil
		},
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// countedConn counts writes. Both clients flush a request, or a pipeline of them, in one write, so this is the number
// of round trips. It embeds the TCP connection and not the interface because go-redis looks for the system call
// connection underneath, to see whether a pooled connection has died: hiding it would make go-redis faster than it is.
type countedConn struct {
	*net.TCPConn
	writes *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(p)
}

// subject is a peer that is ready to be asked.
type subject struct {
	Peer
	allow  allowFunc
	closer func()
	trips  *atomic.Int64
}

// open makes a peer with a client of its own. A backend is needed only for peers over Redis.
func (p Peer) open(b *backend, lim limit.Limit) (*subject, error) {
	s := &subject{Peer: p, trips: new(atomic.Int64)}
	var rdb *redis.Client
	if p.Redis {
		rdb = redis.NewClient(options(b.addr, s.trips))
	}
	allow, closer, err := p.New(rdb, lim)
	if err != nil {
		if rdb != nil {
			rdb.Close()
		}
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	s.allow, s.closer = allow, func() {
		closer()
		if rdb != nil {
			rdb.Close()
		}
	}
	return s, nil
}
