package redistest

import (
	"slices"
	"sync"
	"testing"
	"time"
)

const touch = `redis.call('SET', KEYS[1], 'v') return redis.call('PEXPIRE', KEYS[1], ARGV[1])`

func TestBackend(t *testing.T) {
	var names []string
	eachClock(t, func(t *testing.T, b *Backend) {
		names = append(names, b.Name)
		ttl := func(key string, want time.Duration, wantOK bool) {
			t.Helper()
			if d, ok := b.PTTL(key); d != want || ok != wantOK {
				t.Errorf("at %v: PTTL(%s) = %v, %v, want %v, %v", b.Now(), key, d, ok, want, wantOK)
			}
		}
		if !b.Now().Equal(start) {
			t.Errorf("Now = %v, want %v", b.Now(), start)
		}
		if got := b.Keys(); len(got) != 0 {
			t.Errorf("keys of a new backend: %q", got)
		}
		b.Client.Set(ctx, "b", 1, 0)
		b.Client.HSet(ctx, "a", "f", 1)
		if err := b.Client.Eval(ctx, touch, []string{"c"}, 1000).Err(); err != nil {
			t.Fatal(err)
		}
		if got, want := b.Keys(), []string{"a", "b", "c"}; !slices.Equal(got, want) {
			t.Errorf("keys %q, want %q", got, want)
		}
		if b.Type("a") != "hash" || b.Type("c") != "string" || b.Type("x") != "none" {
			t.Errorf("types %s, %s, %s", b.Type("a"), b.Type("c"), b.Type("x"))
		}
		ttl("a", 0, false)
		ttl("x", 0, false)
		ttl("c", time.Second, true)
		b.Advance(100 * time.Microsecond)
		ttl("c", 999*time.Millisecond, true)
		b.Set(start.Add(time.Second - time.Microsecond))
		ttl("c", 0, true)
		if !b.Exists("c") {
			t.Error("the key has gone before its time")
		}
		b.Set(start.Add(time.Second))
		b.Set(start) // going back does not bring it back
		ttl("c", 0, false)
		if b.Exists("c") || len(b.Keys()) != 2 {
			t.Errorf("the key has not gone: %q", b.Keys())
		}

		b.Client.Set(ctx, "c", 1, 0)
		b.Advance(time.Second)
		if !b.Exists("c") {
			t.Error("a key without a deadline has gone")
		}

		// A key that is deleted and made again by plain commands does not keep its deadline past the next script.
		b.Client.Eval(ctx, touch, []string{"c"}, 1000)
		if d := b.Client.PTTL(ctx, "c").Val(); b.clock != nil && d != -1 {
			t.Errorf("the key expires in real time, in %v", d)
		}
		b.Client.Del(ctx, "c")
		ttl("c", 0, false)
		if err := b.Client.Eval(ctx, "return 1", []string{"c"}).Err(); err != nil {
			t.Error(err)
		}
		b.Client.Set(ctx, "c", 1, 0)
		ttl("c", 0, false)
		b.Advance(time.Hour)
		if !b.Exists("c") {
			t.Error("the key has gone by a deadline of its predecessor")
		}

		var wg sync.WaitGroup
		before := b.Now()
		for range 10 {
			wg.Go(func() { b.Advance(time.Second) })
		}
		wg.Wait()
		if got := b.Now().Sub(before); got != 10*time.Second {
			t.Errorf("ten times a second are %v", got)
		}
	})
	if want := []string{"miniredis", "redis", "clock on miniredis"}; Available() && !slices.Equal(names, want) {
		t.Errorf("backends %q, want %q", names, want)
	}
}

func TestEach_parallel(t *testing.T) {
	Each(t, start, func(t *testing.T, b *Backend) {
		for i := range 4 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				Each(t, start.AddDate(i, 0, 0), func(t *testing.T, b *Backend) {
					t.Parallel()
					if got := b.Keys(); len(got) != 0 {
						t.Errorf("keys of another test: %q", got)
					}
					b.Client.Set(ctx, "k", i, 0)
					b.Advance(time.Second)
					wantNow(t, b, b.Client.Eval(ctx, now, nil))
				})
			})
		}
	})
}

func TestShutdown(t *testing.T) {
	first := database(t).Options().Addr
	Shutdown()
	if !refused(first) {
		t.Error("the shared server runs after Shutdown")
	}
	Shutdown()
	if err := database(t).Ping(ctx).Err(); err != nil {
		t.Errorf("after Shutdown: %v", err)
	}
}

// When the numbers of databases come again, they are empty.
func TestDatabase_again(t *testing.T) {
	rdb := database(t)
	rdb.Set(ctx, "k", 1, 0)
	shared.mu.Lock()
	shared.next = rdb.Options().DB + databases
	shared.mu.Unlock()
	again := database(t)
	if n := again.DBSize(ctx).Val(); n != 0 || again.Options().DB != rdb.Options().DB {
		t.Errorf("database %d has %d keys, want database %d with none", again.Options().DB, n, rdb.Options().DB)
	}
}
