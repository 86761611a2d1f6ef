package redistest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// wrapped is a command as the library sends it: not a *redis.Cmd.
type wrapped struct{ *redis.Cmd }

func (wrapped) NoRetry() bool { return true }

func command(args ...any) wrapped { return wrapped{redis.NewCmd(ctx, args...)} }

// eachClock adds a third backend to those of Each: a miniredis whose own time stands still, with a Clock.
func eachClock(t *testing.T, f func(t *testing.T, b *Backend)) {
	t.Helper()
	Each(t, start, f)
	t.Run("clock on miniredis", func(t *testing.T) {
		_, rdb := NewMini(t, time.Unix(1, 0))
		f(t, &Backend{Name: "clock on miniredis", Client: rdb, tb: t, clock: NewClock(t, rdb, start)})
	})
}

// The same story on each backend: miniredis, which does not need a Clock, says what the others should do.
func TestClock_scripts(t *testing.T) {
	steps := []struct {
		advance time.Duration
		script  string
		want    string // of the result; after "error" a part of its text
	}{
		{0, "return redis.call('TIME')", "[1772366400 123456]"},
		{time.Second - 123456*time.Microsecond, "return redis.call('time')", "[1772366401 0]"},
		{-time.Microsecond, "return redis.pcall('TIME')", "[1772366400 999999]"},
		{time.Microsecond, "return {redis.call('PTTL', 'k'), redis.call('TTL', 'k'), redis.call('PEXPIRE', 'k', 5)}", "[-2 -2 0]"},
		{0, "redis.call('HSET', 'k', 'f', 1) return redis.call('PTTL', 'k')", "-1"},
		{0, "return {redis.call('PEXPIRE', 'k', 1500), redis.call('PTTL', 'k')}", "[1 1500]"},
		{499999 * time.Microsecond, "return redis.call('PTTL', 'k')", "1000"},
		{1000 * time.Millisecond, "return {redis.call('PTTL', 'k'), redis.call('HGET', 'k', 'f')}", "[0 1]"},
		{time.Microsecond, "return {redis.call('PTTL', 'k'), redis.call('EXISTS', 'k')}", "[-2 0]"},

		// A new key has no deadline, and a deadline can be moved, taken away and made again.
		{0, "redis.call('HSET', 'k', 'f', 1) return redis.call('PTTL', 'k')", "-1"},
		{0, "redis.call('EXPIRE', 'k', 1) redis.call('EXPIRE', 'k', '10') return redis.call('PTTL', 'k')", "10000"},
		{5 * time.Second, "return {redis.call('PERSIST', 'k'), redis.call('PTTL', 'k'), redis.call('PERSIST', 'k')}", "[1 -1 0]"},
		{time.Hour, "return redis.call('EXISTS', 'k')", "1"},
		{0, "local t = redis.call('TIME') redis.call('PEXPIREAT', 'k', t[1] * 1000 + 3000) return redis.call('PTTL', 'k')", "2500"},
		{0, "local t = redis.call('TIME') redis.call('EXPIREAT', 'k', t[1] + 8) return redis.call('PTTL', 'k')", "7500"},
		{8 * time.Second, "return redis.call('EXISTS', 'k')", "0"},
		{0, "redis.call('SET', 'k', 1) return {redis.call('PEXPIREAT', 'k', 1), redis.call('EXISTS', 'k'), redis.call('EXPIREAT', 'k', 1)}", "[1 0 0]"},
		{0, "redis.call('SET', 'k', 1) return {redis.call('PEXPIRE', 'k', -1), redis.call('EXISTS', 'k')}", "[1 0]"},

		// Deleting a key forgets its deadline, and so does removing its last member and SET.
		{0, "redis.call('SET', 'k', 1, 'PX', 7000) return {redis.call('PTTL', 'k'), redis.call('DEL', 'k', 'x')}", "[7000 1]"},
		{0, "redis.call('SET', 'k', 2) return redis.call('PTTL', 'k')", "-1"},
		{0, "redis.call('SETEX', 'k', 2, 'v') redis.call('INCRBY', 'j', 2) redis.call('PSETEX', 'j', 2, 'v') return redis.call('TTL', 'k')", "2"},
		{0, "redis.call('SET', 'k', 3, 'KEEPTTL') return {redis.call('PTTL', 'k'), redis.call('PTTL', 'j')}", "[2000 2]"},
		{0, "return {redis.call('SET', 'k', 4, 'NX', 'EX', 9), redis.call('PTTL', 'k')}", "[<nil> 2000]"},
		{0, "redis.call('SET', 'k', 4, 'ex', 9) return redis.call('PTTL', 'k')", "9000"},
		{0, "redis.call('SET', 'k', 4) return redis.call('PTTL', 'k')", "-1"},
		{0, "redis.call('ZADD', 'z', 1, 'm') redis.call('PEXPIRE', 'z', 99) redis.call('ZREM', 'z', 'm') redis.call('ZADD', 'z', 1, 'm') return redis.call('PTTL', 'z')", "-1"},

		{0, "redis.call('PEXPIRE', 'k', 9) redis.call('DEL', 'k') redis.call('HSET', 'k', 'f', 1) return redis.call('PTTL', 'k')", "-1"},
		{0, "redis.call('PEXPIRE', 'k', 9) redis.call('PEXPIRE', 'k', 0) redis.call('HSET', 'k', 'f', 1) return redis.call('PTTL', 'k')", "-1"},
		{0, "redis.call('PEXPIRE', 'k', 9) redis.call('PEXPIREAT', 'k', 1) redis.call('HSET', 'k', 'f', 1) return redis.call('PTTL', 'k')", "-1"},
		{0, "redis.call('SET', 'k', 4, 'EX', 9) return {redis.pcall('PEXPIRE', 'k', 1.5).err ~= nil, redis.call('PTTL', 'k')}", "[1 9000]"},
		{0, "return {redis.call('PEXPIREAT', 'gone', 99999999999999), redis.call('EXPIRE', 'gone', 9), redis.call('EXISTS', 'gone')}", "[0 0 0]"},

		// All else is passed on, and so are errors.
		{0, "return redis.sha1hex('')", sha1Hex("")},
		{0, "return redis.status_reply('FINE')", "FINE"},
		{0, "return redis.error_reply('MINE x')", "error MINE x"},
		{0, "return redis.call('HGET', 'k', 'f')", "error WRONGTYPE"},
		{0, "return redis.pcall('HGET', 'k', 'f').err", "WRONGTYPE Operation against a key holding the wrong kind of value"},
		{0, "return redis.call('PEXPIRE', 'k', 1.5)", "error value is not an integer or out of range"},
		{0, "return redis.pcall('PEXPIRE', 'k', 1.5)", "error value is not an integer or out of range"},
		{0, "return redis.call('PEXPIREAT', 'k', 'x')", "error value is not an integer or out of range"},
		{0, "return redis.call('PTTL', 'k')", "9000"},
		{0, "return {KEYS[1], KEYS[2], ARGV[1], #ARGV}", "[k gone a 1]"},
	}
	eachClock(t, func(t *testing.T, b *Backend) {
		for _, step := range steps {
			b.Advance(step.advance)
			got, err := b.Client.Eval(ctx, step.script, []string{"k", "gone"}, "a").Result()
			part, isError := strings.CutPrefix(step.want, "error ")
			switch {
			case isError && (err == nil || !strings.Contains(err.Error(), part)):
				t.Errorf("%s: %v, %v, want an error with %q", step.script, got, err, part)
			case !isError && (err != nil || fmt.Sprint(got) != step.want):
				t.Errorf("%s: %v, %v, want %s", step.script, got, err, step.want)
			}
		}
	})
}

func TestClock_refuses(t *testing.T) {
	eachClock(t, func(t *testing.T, b *Backend) {
		if b.clock == nil {
			return
		}
		for _, call := range []string{
			"'GETEX', 'k', 'EX', 1", "'SET', 'k', 1, 'PXAT', 1", "'PEXPIRE', 'k', 1, 'NX'", "'RENAME', 'k', 'j'",
		} {
			err := b.Client.Eval(ctx, "return redis.call("+call+")", nil).Err()
			if err == nil || !strings.Contains(err.Error(), "has no virtual time") {
				t.Errorf("%s: %v, want a refusal", call, err)
			}
		}
		if err := b.Client.EvalRO(ctx, "return 1", nil).Err(); err == nil {
			t.Error("EVAL_RO runs in real time")
		}
		_, err := b.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.EvalRO(ctx, "return 1", nil)
			return nil
		})
		if err == nil {
			t.Error("EVAL_RO in a pipeline runs in real time")
		}
		b.Client.Del(ctx, clockKey)
		if err := b.Client.Eval(ctx, "return 1", nil).Err(); err == nil || !strings.Contains(err.Error(), "Set it again") {
			t.Errorf("without a clock: %v", err)
		}
	})
}

const now = `local t = redis.call('TIME') return t[1] * 1000000 + t[2]`

func wantNow(t *testing.T, b *Backend, cmd *redis.Cmd) {
	t.Helper()
	if n, err := cmd.Int64(); n != b.Now().UnixMicro() || err != nil {
		t.Errorf("time in the script: %d, %v, want %d", n, err, b.Now().UnixMicro())
	}
}

// Each way to run a script, by a plain command and by one of a type the clock does not know.
func TestClock_commands(t *testing.T) {
	eachClock(t, func(t *testing.T, b *Backend) {
		script := redis.NewScript(now)
		hash := script.Hash()
		if b.Name == "redis" {
			hash = strings.ToUpper(hash) // which miniredis does not take
		}
		sha := command("EVALSHA", hash, 0)
		if err := b.Client.Process(ctx, sha); !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Fatalf("unknown script: %v, want NOSCRIPT", err)
		}
		eval := command("eval", now, 0)
		if err := b.Client.Process(ctx, eval); err != nil {
			t.Fatal(err)
		}
		wantNow(t, b, eval.Cmd)
		b.Advance(time.Minute)
		if err := b.Client.Process(ctx, sha); err != nil {
			t.Fatal(err)
		}
		wantNow(t, b, sha.Cmd)
		if got := fmt.Sprint(eval.Args(), sha.Args()); got != fmt.Sprintf("[eval %s 0] [EVALSHA %s 0]", now, hash) {
			t.Errorf("arguments afterwards: %s", got)
		}
		b.Advance(time.Minute)
		wantNow(t, b, script.EvalSha(ctx, b.Client, nil))

		b.FlushScripts()
		if err := script.EvalSha(ctx, b.Client, nil).Err(); !errors.Is(err, redis.ErrNoScript) {
			t.Errorf("after FlushScripts: %v, want NOSCRIPT", err)
		}
		wantNow(t, b, script.Run(ctx, b.Client, nil))
		wantNow(t, b, script.EvalSha(ctx, b.Client, nil))

		other := b.NewClient(t)
		b.Advance(time.Minute)
		wantNow(t, b, script.EvalSha(ctx, other, nil))
		wantNow(t, b, other.Eval(ctx, "return redis.call('TIME')[1] * 1000000 + redis.call('TIME')[2]", nil))
	})
}

func TestClock_pipeline(t *testing.T) {
	eachClock(t, func(t *testing.T, b *Backend) {
		known, unknown := command("eval", now, 0), command("evalsha", sha1Hex("return 'unknown'"), 0)
		for name, pipelined := range map[string]func(*redis.Client) redis.Pipeliner{
			"pipeline": (*redis.Client).Pipeline, "transaction": (*redis.Client).TxPipeline,
		} {
			pipe := pipelined(b.Client)
			pipe.Process(ctx, unknown)
			pipe.Process(ctx, known)
			set := pipe.Set(ctx, "k", "v", 0)
			if _, err := pipe.Exec(ctx); !redis.HasErrorPrefix(err, "NOSCRIPT") {
				t.Errorf("%s: %v, want NOSCRIPT", name, err)
			}
			if err := unknown.Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
				t.Errorf("%s: unknown script: %v, want NOSCRIPT", name, err)
			}
			wantNow(t, b, known.Cmd)
			if set.Val() != "OK" {
				t.Errorf("%s: %v", name, set)
			}
			if unknown.Args()[1] == unknownSHA {
				t.Errorf("%s: arguments afterwards: %v", name, unknown.Args())
			}
		}
	})
}

func TestClock_scriptLoad(t *testing.T) {
	eachClock(t, func(t *testing.T, b *Backend) {
		script := redis.NewScript(now + " -- loaded")
		want := script.Hash()
		if got := script.Exists(ctx, b.Client).Val(); b.clock != nil && got[0] {
			t.Error("the script exists before Load")
		}
		if got, err := script.Load(ctx, b.Client).Result(); got != want || err != nil {
			t.Errorf("Load: %s, %v, want %s", got, err, want)
		}
		if got := script.Exists(ctx, b.Client).Val(); !got[0] {
			t.Error("the script does not exist after Load")
		}
		b.Advance(time.Minute)
		wantNow(t, b, script.EvalSha(ctx, b.Client, nil))
	})
}

// What the server itself says passes.
func TestClock_ownServer(t *testing.T) {
	s := Start(t)
	rdb := s.Client(t)
	c := NewClock(t, rdb, start)
	b := &Backend{Client: rdb, tb: t, clock: c}
	script := redis.NewScript(now)
	wantNow(t, b, script.Run(ctx, rdb, nil))
	rdb.ScriptFlush(ctx)
	if err := script.EvalSha(ctx, rdb, nil).Err(); !errors.Is(err, redis.ErrNoScript) {
		t.Errorf("after SCRIPT FLUSH: %v, want NOSCRIPT", err)
	}
	// Not even if the server knows the script without the prelude, from a client without the clock.
	if err := s.Client(t).Eval(ctx, "return 'real'", nil).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.EvalSha(ctx, sha1Hex("return 'real'"), nil).Err(); !errors.Is(err, redis.ErrNoScript) {
		t.Errorf("script without the prelude: %v, want NOSCRIPT", err)
	}
	s.Kill()
	s.Restart(t)
	c.Advance(time.Second)
	wantNow(t, b, script.Run(ctx, rdb, nil))

	// The clock's own commands do not meet the faults of a client that was attached.
	p := NewProxy(t, s.Addr())
	behind := newClient(t, p.Addr(), once)
	c.Attach(behind)
	p.BlackHole(true)
	c.Advance(time.Second)
	p.BlackHole(false)
	wantNow(t, b, script.Run(ctx, behind, nil))
	if p.Requests() != 1 {
		t.Errorf("the proxy saw %d scripts, want 1", p.Requests())
	}
}
