package remote_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

func TestKEY01_PartsStaySeparate(t *testing.T) {
	each(t, allModes, per(1, 60), func(r *rig) {
		parts := [][]string{
			{"user@a.co", "mtest"}, {"user@a.com", "test"}, {"a:b", "c"}, {"a", "b:c"},
			{"a", ""}, {"", "a"}, {"x:y", "z"}, {"x", "y:z"},
		}
		for _, p := range parts {
			if !r.on(limit.Join(p...)).ask(1).Allowed {
				r.t.Errorf("%q denied", p)
			}
		}
		if got := len(r.b.Keys()); got != len(parts) {
			r.t.Errorf("%d keys, want %d", got, len(parts))
		}
	})
}

// Whatever bytes a key holds, it has a state of its own under every prefix.
func TestKEY01_PrefixesAndKeysNeverMeet(t *testing.T) {
	keys := []string{"a", "a}", "{a", "{a}", "}tb1", "a}tb1{", "", "\x00", "a b", "\r\n", "\xff", "ä", "a:"}
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		for _, m := range allModes {
			for _, prefix := range []string{"", "a", "a:", ":", "hybrid", "ä "} {
				r := startWith(t, b, b.Client, m, per(1, 60), remote.Options{Prefix: prefix, Timeout: patience})
				for _, key := range keys {
					if key == "" {
						r.on(key).fails(1, limit.ErrInvalidKey)
					} else if !r.on(key).ask(1).Allowed {
						t.Errorf("%s: prefix %q key %q denied", m.name, prefix, key)
					}
				}
			}
		}
		if got, want := len(b.Keys()), 5*6*(len(keys)-1); got != want {
			t.Errorf("%d keys, want %d", got, want)
		}
	})
}

func TestInvalidKeys(t *testing.T) {
	for _, m := range allModes {
		for _, lim := range []limit.Limit{per(1, 60), limit.Unlimited(), limit.Blocked()} {
			l, err := m.make(unreachable(), lim, remote.Options{})
			if err != nil {
				t.Fatal(err)
			}
			r := &rig{limiter: l, t: t, mode: m}
			r.fails(1, limit.ErrInvalidKey)
			r.fails(0, limit.ErrInvalidKey)
			r.on(strings.Repeat("x", limit.MaxKeyLen+1)).fails(1, limit.ErrInvalidKey)
			r.on("k").fails(-1, limit.ErrInvalidTokens)
			if err := l.Reset(ctx, ""); err == nil {
				t.Errorf("%s: Reset of an empty key succeeded", m.name)
			}
		}
	}
	each(t, allModes, per(1, 60), func(r *rig) {
		if !r.on(strings.Repeat("x", limit.MaxKeyLen)).ask(1).Allowed {
			r.t.Error("the longest key denied")
		}
	})
}

// recorder is a client that answers nothing and notes what it was asked.
type recorder struct {
	mu   sync.Mutex // guards args
	args [][]any
}

func (c *recorder) Process(_ context.Context, cmd redis.Cmder) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.args = append(c.args, cmd.Args())
	cmd.SetErr(redis.Nil)
	return redis.Nil
}

func (c *recorder) Pipeline() redis.Pipeliner { panic("not asked for") }

// One key in KEYS, so that no decision can touch two slots: there is no CROSSSLOT by construction. The slot is that of
// the user's key alone.
func TestKEY03_KEY04_OneKeyPerCall(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 5))
	const users = 10_000
	slots := make(map[int]int)
	for n, m := range allModes {
		rec := &recorder{}
		l, err := m.make(rec, per(4321, 60), remote.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := n; i < users; i += len(allModes) {
			key := fmt.Sprintf("user-%d-%x", i, rnd.Uint32())
			if i%100 == 0 {
				key += "{x}"
			}
			rec.args = rec.args[:0]
			_, _ = l.AllowN(ctx, key, 17)
			_ = l.Reset(ctx, key)
			if len(rec.args) != 2 {
				t.Fatalf("%s: %d commands for a call and a reset, want 2", m.name, len(rec.args))
			}
			call, reset := rec.args[0], rec.args[1]
			if call[0] != "evalsha" || call[2] != 1 || call[3] != stored(m, l.LimitOf(key), key) {
				t.Fatalf("%s: sent %q, want one key %q", m.name, call, stored(m, l.LimitOf(key), key))
			}
			if m.name == tokenBucket.name { // by a script, for the sake of leases
				reset = []any{reset[0], reset[3]}
			}
			if reset[0] != "del" && reset[0] != "evalsha" || len(reset) != 2 || reset[1] != call[3] {
				t.Fatalf("%s: sent %q, want a deletion of the same key", m.name, reset)
			}
			for _, arg := range call[4:] {
				if s := fmt.Sprint(arg); strings.Trim(s, "0123456789") != "" || s == "" && m.name != tokenBucket.name {
					t.Fatalf("%s: argument %q is no number", m.name, s)
				}
			}
			if got, want := slot(call[3].(string)), crc16(hashed(key))%16384; got != want {
				t.Fatalf("%s: slot %d of %q, want %d", m.name, got, key, want)
			}
			slots[slot(call[3].(string))]++
		}
	}
	if len(slots) < 7000 {
		t.Errorf("%d slots for %d keys, want about 7,500", len(slots), users)
	}
	for s, n := range slots {
		if n > users/100 {
			t.Errorf("%d of %d keys in slot %d", n, users, s)
		}
	}
}

// hashed is the part of key that Redis hashes when it stands between braces: up to its first closing brace.
func hashed(key string) string {
	if before, _, ok := strings.Cut(key, "}"); ok {
		return before
	}
	return key
}

// slot is the hash slot of a key in a Redis cluster.
func slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return crc16(key) % 16384
}

// crc16 is CRC-16/XMODEM.
func crc16(s string) int {
	crc := uint16(0)
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc)
}

func TestSlot(t *testing.T) {
	for key, want := range map[string]int{"123456789": 12739, "foo": 12182, "{user1000}.following": slot("user1000"), "a{}b": crc16("a{}b") % 16384} {
		if got := slot(key); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}
