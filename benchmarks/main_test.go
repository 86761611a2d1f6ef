package benchmarks

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hybridlimit/hybrid/internal/calls"
	"github.com/hybridlimit/hybrid/internal/redistest"
)

// timeout of one call: long, because Redis shares the processors with the load.
const timeout = 2 * time.Second

// backend is the Redis of the run.
var backend struct {
	addr string
	// prefix of all keys, of this run alone: on a server that others use too they vanish by their time to live.
	prefix string
}

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // as in go test ./...: there is nothing else here
		os.Exit(m.Run())
	}
	logging.Disable() // go-redis would report a wrong address once more
	name, stop, err := startBackend()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
	fmt.Println("redis:", name)
	code := m.Run()
	stop()
	os.Exit(code)
}

func startBackend() (name string, stop func(), err error) {
	backend.prefix = "benchmarks:" + rand.Text() + ":"
	if backend.addr = os.Getenv("HYBRID_REDIS_ADDR"); backend.addr != "" {
		version, err := serverVersion()
		return version + " at HYBRID_REDIS_ADDR", func() {}, err
	}
	if redistest.Available() {
		srv, err := redistest.Launch()
		if err != nil {
			return "", nil, err
		}
		backend.addr = srv.Addr()
		version, err := serverVersion()
		return version + " started for this run", func() { srv.Close() }, err
	}
	m, err := miniredis.Run()
	if err != nil {
		return "", nil, err
	}
	m.ClockTTL(true) // else its keys never expire
	backend.addr = m.Addr()
	return "miniredis in this process, no redis-server found", m.Close, nil
}

func serverVersion() (string, error) {
	rdb := new(wire).client()
	defer rdb.Close()
	info, err := rdb.Info(context.Background(), "server").Result()
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(info, "redis_version:")
	version, _, _ := strings.Cut(rest, "\r\n")
	return "redis-server " + version, nil
}

// wire counts what its clients send.
type wire struct {
	scripts calls.Counter
	writes  atomic.Int64
}

// client has connections enough that nobody waits for one.
func (w *wire) client() *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:                     backend.addr,
		PoolSize:                 64,
		ContextTimeoutEnabled:    true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return countedConn{conn, &w.writes}, err
		},
	})
	rdb.AddHook(&w.scripts)
	return rdb
}

type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}
