package remote_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// fill writes to the server until done, or until it refuses.
func fill(t *testing.T, rdb *redis.Client, done func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for i := 0; !done(); i++ {
		err := rdb.Set(ctx, fmt.Sprint("ballast-", i), strings.Repeat("x", 16<<10), 0).Err()
		switch {
		case err != nil && strings.HasPrefix(err.Error(), "OOM"):
			return
		case err != nil:
			t.Fatal(err)
		case time.Now().After(end):
			t.Fatal("the memory is never full")
		}
	}
}

// overfill fills the memory and a megabyte more, so that nothing finds room, whatever buffers come and go: a server looks
// at its memory before a command, and this one is short. It returns what makes room again.
func overfill(t *testing.T, rdb *redis.Client) (drop func()) {
	t.Helper()
	fill(t, rdb, func() bool { return false })
	rdb.Del(ctx, "ballast-0", "ballast-1")
	if err := rdb.SetRange(ctx, "ballast", 1<<20, "x").Err(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		// More than that megabyte, for connections have come since then and have their buffers.
		keys := []string{"ballast"}
		for i := range 50 {
			keys = append(keys, fmt.Sprint("ballast-", i))
		}
		if err := rdb.Del(ctx, keys...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// A memory that others have filled: what would have to be written is refused as a matter of configuration, nothing is
// lost, and all goes on when there is room.
func TestREDIS07_FullMemory(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
	rdb := srv.Client(t)
	limiters := make([]limiter, len(allModes))
	for i, m := range allModes {
		l, err := m.make(rdb, thousand, remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		limiters[i] = l
		if got, err := l.AllowN(ctx, "k", 400); err != nil || got.Remaining != 600 {
			t.Fatalf("%s: %+v, %v", m.name, got, err)
		}
	}
	source := remote.NewSource(rdb, remote.Options{Timeout: patience})
	held := holder(thousand, "lent")
	held.ask(t, source, 0, 50)
	report := held.req
	report.Lease.Seq++
	report.Lease.Used, report.Lease.Held, report.Lease.Want = 30, 20, 50

	drop := overfill(t, rdb)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, remote.ErrRefused) || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s with a full memory: %v, want ErrRefused for memory", what, err)
		}
	}
	for i, m := range allModes {
		_, err := limiters[i].Allow(ctx, "k")
		refused(m.name, err)
		if got, err := limiters[i].AllowN(ctx, "k", 0); err != nil || got.Remaining != 600 {
			t.Errorf("%s: a look with a full memory: %+v, %v; want 600 left", m.name, got, err)
		}
	}
	grants := make([]lease.Grant, 2)
	source.Acquire(ctx, []lease.Request{report}, grants[:1])
	refused("a lease", grants[0].Err)
	source.Acquire(ctx, requests(thousand, 2, 1), grants)
	for _, g := range grants {
		refused("a pipeline", g.Err)
	}

	drop()
	for i, m := range allModes {
		if n := rest(t, limiters[i], "k"); n != 600 {
			t.Errorf("%s: %d left when there is room again, want 600", m.name, n)
		}
	}
	// The same report as the one that was refused.
	if g := held.ask(t, source, 30, 50); g.Status != lease.OK || g.Lent != 50 || g.Level != 920 {
		t.Errorf("lease: %+v, want OK, 50 lent, level 920", g)
	}
}

// A server that evicts: an evicted key is as one that was never used, so its limit is admitted once more. The holder of
// a lease finds out, and the bucket starts again from nothing.
func TestREDIS07_Eviction(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru")
	rdb := srv.Client(t)
	limiters := make([]limiter, len(allModes))
	var keys []string
	for i, m := range allModes {
		l, err := m.make(rdb, thousand, remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		limiters[i] = l
		keys = append(keys, stored(m, thousand, "k"))
		if n := rest(t, l, "k"); n != 1000 {
			t.Fatalf("%s: %d left at the start", m.name, n)
		}
	}
	source := remote.NewSource(rdb, remote.Options{Timeout: patience})
	held := holder(thousand, "lent")
	held.ask(t, source, 0, 50)
	keys = append(keys, stored(tokenBucket, thousand, "lent"))
	// EXISTS does not count as use.
	fill(t, rdb, func() bool { return rdb.Exists(ctx, keys...).Val() == 0 })
	for i, m := range allModes {
		if n := rest(t, limiters[i], "k"); n != 1000 {
			t.Errorf("%s: %d admitted after the eviction, want a full bucket", m.name, n)
		}
	}
	if g := held.ask(t, source, 30, 50); g.Status != lease.Loss || g.Level != 0 || g.Lent != 20 {
		t.Errorf("the holder of an evicted lease: %+v, want Loss, an empty bucket, its 20 lent", g)
	}
}
