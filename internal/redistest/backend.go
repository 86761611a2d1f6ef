package redistest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Backend is a Redis whose time the test owns: miniredis, or a database of a real server with a [Clock]. Time going
// back is the one thing in which they differ: in miniredis a time to live then stays what it was.
type Backend struct {
	Name   string        // "miniredis" or "redis"
	Client *redis.Client // closed when the test ends

	tb    testing.TB
	mini  *miniredis.Miniredis // nil on a real server
	clock *Clock               // nil on miniredis

	mu  sync.Mutex // guards now
	now time.Time  // of miniredis
}

// Each runs f as the subtests "miniredis" and "redis", each with an empty backend. The real server is shared by the
// whole test binary, and each backend has a database of it; see [Main].
func Each(t *testing.T, start time.Time, f func(t *testing.T, b *Backend)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		m, rdb := NewMini(t, start)
		f(t, &Backend{Name: "miniredis", Client: rdb, tb: t, mini: m, now: start.Truncate(time.Microsecond)})
	})
	t.Run("redis", func(t *testing.T) {
		rdb := database(t)
		f(t, &Backend{Name: "redis", Client: rdb, tb: t, clock: NewClock(t, rdb, start)})
	})
}

// NewClient returns a further client with the same time. An opt that sets Addr to that of a [Proxy] puts it behind
// one.
func (b *Backend) NewClient(tb testing.TB, opts ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	o := b.Client.Options()
	rdb := newClient(tb, o.Addr, append([]func(*redis.Options){func(n *redis.Options) { n.DB = o.DB }}, opts...)...)
	if b.clock != nil {
		b.clock.Attach(rdb)
	}
	return rdb
}

// Addr is the host:port of the server.
func (b *Backend) Addr() string { return b.Client.Options().Addr }

// Now is the server's time.
func (b *Backend) Now() time.Time {
	if b.clock != nil {
		return b.clock.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// Set moves the server's time. Keys whose deadline has come are gone.
func (b *Backend) Set(t time.Time) {
	b.tb.Helper()
	if b.clock != nil {
		b.clock.Set(t)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(t)
}

// Advance moves the server's time by d.
func (b *Backend) Advance(d time.Duration) {
	b.tb.Helper()
	if b.clock != nil {
		b.clock.Advance(d)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(b.now.Add(d))
}

func (b *Backend) setLocked(t time.Time) {
	b.now = t.Truncate(time.Microsecond)
	b.mini.SetTime(b.now)
	b.mini.Exists("") // miniredis expires keys when it is next used, which may be after another SetTime
}

// PTTL returns the time until key expires, and whether it exists and expires.
func (b *Backend) PTTL(key string) (time.Duration, bool) {
	b.tb.Helper()
	if b.clock != nil {
		return b.clock.PTTL(key)
	}
	d, err := b.Client.PTTL(context.Background(), key).Result()
	b.check(err)
	return max(d, 0), d >= 0
}

// Exists reports whether there is a key.
func (b *Backend) Exists(key string) bool {
	b.tb.Helper()
	n, err := b.Client.Exists(context.Background(), key).Result()
	b.check(err)
	return n == 1
}

// Keys returns all keys but the clock's own, in order.
func (b *Backend) Keys() []string {
	b.tb.Helper()
	keys, err := b.Client.Keys(context.Background(), "*").Result()
	b.check(err)
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasPrefix(key, ownKeys) })
	slices.Sort(keys)
	return keys
}

// Type is the type of a key as Redis names it, "none" if there is no such key.
func (b *Backend) Type(key string) string {
	b.tb.Helper()
	s, err := b.Client.Type(context.Background(), key).Result()
	b.check(err)
	return s
}

// FlushScripts makes the server forget all scripts. On the real one only this backend's clients see it, for others
// share the server.
func (b *Backend) FlushScripts() {
	b.tb.Helper()
	if b.clock != nil {
		b.clock.forget()
		return
	}
	b.check(b.Client.ScriptFlush(context.Background()).Err())
}

func (b *Backend) check(err error) {
	b.tb.Helper()
	if err != nil {
		b.tb.Errorf("redistest: %s: %v", b.Name, err)
	}
}
