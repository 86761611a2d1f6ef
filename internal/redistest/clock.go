package redistest

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The keys a Clock keeps in the database of its client.
const (
	ownKeys  = "redistest:"
	clockKey = ownKeys + "clock"
	ttlKey   = ownKeys + "ttl"
)

//go:embed prelude.lua
var preludeSource string

// prelude is one line without comments, which would swallow the rest of it.
var prelude = func() string {
	var b strings.Builder
	for line := range strings.Lines(preludeSource) {
		if !strings.HasPrefix(line, "--") {
			b.WriteString(strings.TrimSpace(line) + " ")
		}
	}
	return b.String()
}()

// setScript moves the clock and deletes what expires by that, in one step, as Redis does. It runs without the prelude.
const setScript = `
redis.call('SET', KEYS[1], ARGV[1])
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1])) do
  redis.call('DEL', key)
  redis.call('ZREM', KEYS[2], key)
end`

// unknownSHA belongs to no script.
const unknownSHA = "0000000000000000000000000000000000000000"

// Clock gives the scripts that run in one database of one server a time that only the test moves: for TIME, for
// expiry, and for the time to live. It needs a Redis that runs scripts, of any kind but Cluster.
//
// A hook on the client puts a prelude in front of every script, which shadows the functions that depend on time.
// Commands outside of scripts see keys expire, but know no deadline: ask [Clock.PTTL] for it, and let a script set
// it. A command that would bring in real time is an error. A plain command that overwrites a key, such as SET, leaves
// its deadline in place. Nor does EVAL_RO work.
//
// After a restart of the server the test must call Set again, for the clock is gone with the data. The methods are
// safe for concurrent use.
type Clock struct {
	tb    testing.TB
	rdb   redis.UniversalClient
	known sync.Map // SHA-1 of a script to that of the script with prelude, both in hex

	mu  sync.Mutex // guards now, and makes Advance one step
	now time.Time
}

// NewClock puts a clock on rdb, which also carries the clock's own commands: if the test's client is behind a faulty
// [Proxy], give NewClock a client that is not, and [Clock.Attach] the other one. The clock counts in microseconds.
func NewClock(tb testing.TB, rdb redis.UniversalClient, start time.Time) *Clock {
	tb.Helper()
	c := &Clock{tb: tb, rdb: rdb}
	c.Attach(rdb)
	c.Set(start)
	return c
}

// Attach puts the clock on a further client of the same database.
func (c *Clock) Attach(rdb redis.UniversalClient) { rdb.AddHook(clockHook{c}) }

// Now is the time that the next script sees.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set moves the clock, forward or back, and deletes the keys whose deadline has come.
func (c *Clock) Set(t time.Time) {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setLocked(t)
}

// Advance moves the clock by d.
func (c *Clock) Advance(d time.Duration) {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setLocked(c.now.Add(d))
}

func (c *Clock) setLocked(t time.Time) {
	c.tb.Helper()
	t = t.Truncate(time.Microsecond)
	err := c.rdb.Eval(withoutClock(), setScript, []string{clockKey, ttlKey}, t.UnixMicro()).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		c.tb.Errorf("redistest: set the clock: %v", err) // not Fatal: the caller may be any goroutine
	}
	c.now = t
}

// PTTL returns the time until key expires, in whole milliseconds as Redis does, and whether it exists and expires.
func (c *Clock) PTTL(key string) (time.Duration, bool) {
	c.tb.Helper()
	ctx := context.Background()
	n, err := c.rdb.Exists(ctx, key).Result()
	if err != nil {
		c.tb.Errorf("redistest: time to live: %v", err)
	}
	if n == 0 {
		return 0, false
	}
	deadline, err := c.rdb.ZScore(ctx, ttlKey, key).Result()
	if err != nil {
		if !errors.Is(err, redis.Nil) {
			c.tb.Errorf("redistest: time to live: %v", err)
		}
		return 0, false
	}
	return time.UnixMicro(int64(deadline)).Sub(c.Now()).Truncate(time.Millisecond), true
}

// forget makes the clock's clients meet NOSCRIPT until they send each script again.
func (c *Clock) forget() { c.known.Clear() }

// learn notes a script, and returns it with the prelude.
func (c *Clock) learn(text string) string {
	full := prelude + text
	c.known.Store(sha1Hex(text), sha1Hex(full))
	return full
}

// lookup returns the SHA-1 that the server knows a script by. A script that the clock has never seen gets one that
// nobody knows, so that the server itself answers NOSCRIPT, with all that goes with a reply.
func (c *Clock) lookup(sha string) string {
	if full, ok := c.known.Load(strings.ToLower(sha)); ok {
		return full.(string)
	}
	return unknownSHA
}

func sha1Hex(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// rewrite changes the arguments of a command about scripts, and returns what undoes it once the command is done. It
// relies on Args being the command's own slice, and not on its type, for callers wrap commands.
func (c *Clock) rewrite(cmd redis.Cmder) (undo func(), err error) {
	args := cmd.Args()
	saved := slices.Clone(args)
	undo = func() { copy(args, saved) }
	text := func(i int) string {
		if i >= len(args) {
			return "" // the server's to refuse
		}
		s, ok := args[i].(string)
		if !ok {
			err = fmt.Errorf("redistest: argument %d of %s is a %T, want a string", i, cmd.Name(), args[i])
		}
		return s
	}
	switch cmd.Name() {
	case "eval":
		if script := text(1); script != "" {
			args[1] = c.learn(script)
		}
	case "evalsha":
		if sha := text(1); sha != "" {
			args[1] = c.lookup(sha)
		}
	case "script":
		switch strings.ToLower(text(1)) {
		case "load":
			script := text(2)
			if script == "" {
				break
			}
			args[2] = c.learn(script)
			undo = func() {
				copy(args, saved)
				if cmd, ok := cmd.(*redis.StringCmd); ok && cmd.Val() != "" {
					cmd.SetVal(sha1Hex(script))
				}
			}
		case "exists":
			for i := 2; i < len(args); i++ {
				args[i] = c.lookup(text(i))
			}
		}
	case "eval_ro", "evalsha_ro", "fcall", "fcall_ro":
		err = fmt.Errorf("redistest: %s has no virtual time", cmd.Name())
	}
	return undo, err
}

type bypass struct{}

// withoutClock lets a command pass as it is.
func withoutClock() context.Context { return context.WithValue(context.Background(), bypass{}, true) }

// clockHook is the part of a Clock that a client sees.
type clockHook struct{ c *Clock }

func (h clockHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h clockHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if ctx.Value(bypass{}) != nil {
			return next(ctx, cmd)
		}
		undo, err := h.c.rewrite(cmd)
		defer undo()
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h clockHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			undo, err := h.c.rewrite(cmd)
			defer undo()
			if err != nil {
				for _, cmd := range cmds {
					cmd.SetErr(err)
				}
				return err
			}
		}
		return next(ctx, cmds)
	}
}
