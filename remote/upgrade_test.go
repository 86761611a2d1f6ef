package remote_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// foreign are states that no version of ours wrote, by the command that makes them.
var foreign = map[string][]any{
	"string":         {"set", "KEY", "abc"},
	"number":         {"set", "KEY", "3"},
	"empty string":   {"set", "KEY", ""},
	"hash":           {"hset", "KEY", "x", "y"},
	"hash of others": {"hset", "KEY", "n", "1", "tokens", "3"},
	"hash of text":   {"hset", "KEY", "n", "a", "f", "b", "t", "c", "L", "d", "s", "e"},
	"list":           {"rpush", "KEY", "abc"},
	"set":            {"sadd", "KEY", "abc"},
	"zset":           {"zadd", "KEY", "1", "abc"},
	"zset of time":   {"zadd", "KEY", "1800000000", "1800000000"},
	"stream":         {"xadd", "KEY", "*", "a", "b"},
}

func TestUPG01_ForeignState(t *testing.T) {
	each(t, allModes, per(3, 60), func(r *rig) {
		for name, cmd := range foreign {
			cmd = append([]any{}, cmd...)
			cmd[1] = r.stored()
			if err := r.b.Client.Do(ctx, cmd...).Err(); err != nil {
				r.t.Fatalf("%v: %v", cmd, err)
			}
			kind := r.b.Type(r.stored())
			for _, n := range []int{1, 0, 3} {
				got, err := r.AllowN(ctx, r.key, n)
				if !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, remote.ErrRefused) || got != (limit.Result{}) {
					r.t.Errorf("%s, n=%d: %+v, %v; want the zero Result, ErrUnavailable and ErrRefused", name, n, got, err)
				} else if !strings.Contains(err.Error(), `"hybrid:"`) {
					r.t.Errorf("%s: %q does not name the prefix", name, err)
				}
			}
			if got := r.b.Type(r.stored()); got != kind {
				r.t.Errorf("%s: the key is a %s now", name, got)
			}
			if r.mode.name == tokenBucket.name {
				var grants [1]lease.Grant
				remote.NewSource(r.b.Client, remote.Options{Timeout: patience}).Acquire(ctx, []lease.Request{{Key: r.key, Limit: per(3, 60), Costs: []lease.Run{{Cost: 1, Count: 1}}}}, grants[:])
				if err := grants[0].Err; !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, remote.ErrRefused) || !strings.Contains(err.Error(), `"hybrid:"`) {
					r.t.Errorf("%s: grant with %v; want ErrUnavailable and ErrRefused, and the prefix", name, err)
				}
			}
			// An operator who has looked at it can start over.
			if err := r.Reset(ctx, r.key); err != nil {
				r.t.Errorf("%s: Reset: %v", name, err)
			}
			if got := r.ask(1); !got.Allowed || got.Remaining != 2 {
				r.t.Errorf("%s: after Reset %+v, want allowed, remaining 2", name, got)
			}
			if err := r.Reset(ctx, r.key); err != nil {
				r.t.Errorf("%s: Reset: %v", name, err)
			}
		}
	})
}

// The states as they lie in Redis are a promise to the next release.
func TestUPG01_FormatOfTheState(t *testing.T) {
	want := map[string]string{
		"token bucket":    "[3 0 1800000030000000 1 12000000 5]",
		"gcra":            "1800000054000000 0",
		"fixed window":    "[1800000000000000 3]",
		"sliding log":     "[0000000000000000 1800000030000000 0000000000000001 1800000030000000]",
		"sliding counter": "[1800000000000 2 1]",
	}
	each(t, allModes, per(5, 60), func(r *rig) {
		switch r.mode.name {
		case slidingLog.name, gcra.name, tokenBucket.name:
			r.at(30).ask(2)
		case fixedWindow.name:
			r.at(30).ask(2)
			r.ask(1)
		case slidingCounter.name:
			r.at(-30).ask(1)
			r.at(30).ask(2)
		}
		got := dump(r)
		if r.mode.name == slidingLog.name {
			got = strings.ReplaceAll(got, "1.80000003e+15", "1800000030000000") // RESP3 has numbers for scores
			got = strings.NewReplacer("[[", "[", "]]", "]", "] [", " ").Replace(got)
		}
		if got != want[r.mode.name] {
			r.t.Errorf("state %s, want %s", got, want[r.mode.name])
		}
	})
}

func TestUPG02_ModesDoNotMeet(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		admitted := make(map[string]int)
		for range 5 {
			for _, m := range allModes {
				r := startWith(t, b, b.Client, m, per(3, 60), remote.Options{Prefix: "api:", Timeout: patience})
				admitted[m.name] += r.on("u1").admitted(1)
			}
		}
		for _, m := range allModes {
			if admitted[m.name] != 3 {
				t.Errorf("%s: %d admitted, want 3", m.name, admitted[m.name])
			}
		}
		if got := len(b.Keys()); got != 5 {
			t.Errorf("keys %q, want 5", b.Keys())
		}
	})
}
