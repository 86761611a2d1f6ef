package measure

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
)

// Backend is the Redis of a run. Make it with Open and Close it when done.
type Backend struct {
	// Addr is host:port.
	Addr string
	// Kind is what answers there, for the heading of a table.
	Kind string
	// Real is false for miniredis, which keeps no statistics and whose speed is not that of Redis.
	Real  bool
	admin *redis.Client
	stop  func()
}

// Open takes the server that HYBRID_REDIS_ADDR names, else starts a redis-server, else a miniredis.
func Open(ctx context.Context) (*Backend, error) {
	b := &Backend{Real: true, stop: func() {}}
	if b.Addr = os.Getenv("HYBRID_REDIS_ADDR"); b.Addr == "" {
		srv, err := redistest.Launch()
		if err == nil {
			b.Addr, b.stop = srv.Addr(), func() { srv.Close() }
		} else {
			mini, miniErr := miniredis.Run()
			if miniErr != nil {
				return nil, fmt.Errorf("no redis-server (%v) and no miniredis: %w", err, miniErr)
			}
			b.Addr, b.stop, b.Real = mini.Addr(), mini.Close, false
			b.Kind = "miniredis, in this process: no measure of Redis"
		}
	}
	b.admin = redis.NewClient(Options(b.Addr, new(atomic.Int64)))
	if b.Real {
		info, err := b.admin.Info(ctx, "server").Result()
		if err != nil {
			b.Close()
			return nil, err
		}
		_, rest, _ := strings.Cut(info, "redis_version:")
		version, _, _ := strings.Cut(rest, "\r\n")
		b.Kind = "Redis " + version
	}
	return b, nil
}

// Close ends what Open has started.
func (b *Backend) Close() {
	b.admin.Close()
	b.stop()
}

// Commands is how many commands the server has run, those inside scripts included, or -1 if it does not tell.
func (b *Backend) Commands(ctx context.Context) (int64, error) {
	if !b.Real {
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

// Options are those of go-redis but for the dialler, which counts, a handshake that only some servers know, and
// deadlines: without ContextTimeoutEnabled a context says nothing while a reply is awaited, and a limiter that has to
// answer in time must hand each call to another goroutine. Every limiter gets the same. Writes are added to the counter.
func Options(addr string, writes *atomic.Int64) *redis.Options {
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
