package remote

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/flight"
	"github.com/hybridlimit/hybrid/lease"
)

// script is a Lua script: how a command begins that runs it by the name which Redis knows it by, or by its source.
type script struct{ byName, bySource [2]any }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{[2]any{"evalsha", hex.EncodeToString(sum[:])}, [2]any{"eval", source}}
}

// command is a redis.Cmd that the client must not repeat. By default go-redis repeats a command whose reply was lost,
// up to three times and on any kind of client, and each repetition would charge the bucket again. Redirections of a
// cluster are still followed.
type command struct{ *redis.Cmd }

func (command) NoRetry() bool { return true }

// call runs a script on one key, by its name or by its source. Its arguments are args and the runs of costs.
func call(ctx context.Context, script [2]any, key string, args []any, costs []lease.Run) command {
	all := make([]any, 0, 4+len(args)+2*len(costs))
	all = append(all, script[0], script[1], 1, key)
	all = append(all, args...)
	for _, c := range costs {
		all = append(all, c.Cost, c.Count)
	}
	cmd := command{redis.NewCmd(ctx, all...)}
	cmd.SetFirstKeyPos(3)
	return cmd
}

// Pauses between attempts that certainly did not run.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// conn sends commands so that each runs at most once.
type conn struct {
	rdb Client
	// patient: the client goes on waiting for a reply when the deadline of the context has passed, which is the
	// default of go-redis. Calls are then left behind in a goroutine of their own.
	patient bool
}

func newConn(rdb Client) conn {
	var attentive bool
	switch c := rdb.(type) {
	case *redis.Client:
		attentive = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		attentive = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		attentive = c.Options().ContextTimeoutEnabled
	}
	return conn{rdb, !attentive}
}

// run runs a script on one key, see call, and returns its reply. ctx must have a deadline. Errors are as the client gave
// them.
func (c conn) run(ctx context.Context, s script, key string, args []any, costs []lease.Run) ([]any, error) {
	script := s.byName
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		cmd := call(ctx, script, key, args, costs)
		err := c.await(ctx, func() error { return c.rdb.Process(ctx, cmd) })
		if err == nil {
			return cmd.Slice()
		}
		switch classify(err) {
		case noScript: // a new server, a restart, a failover, SCRIPT FLUSH
			if script == s.bySource {
				return nil, err
			}
			script = s.bySource
			continue
		case notExecuted:
		default:
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

var errEnded = errors.New("remote: the client ended the goroutine of the call")

// await runs f, but no longer than ctx. A panic of the client, or of somebody's hook on it, is an error: where f has a
// goroutine of its own, nobody else could recover it.
func (c conn) await(ctx context.Context, f func() error) error {
	if !c.patient {
		return flight.Guard(f)
	}
	done := make(chan error, 1)
	go func() {
		err := errEnded
		defer func() { done <- err }()
		err = flight.Guard(f)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// remove deletes a key. Errors are as the client gave them.
func (c conn) remove(ctx context.Context, key string) error {
	cmd := redis.NewIntCmd(ctx, "del", key)
	return c.await(ctx, func() error { return c.rdb.Process(ctx, cmd) })
}

// integers appends a reply of exactly n numbers to out.
func integers(out []int64, reply []any, n int) ([]int64, error) {
	if len(reply) != n {
		return nil, badReply(strconv.Itoa(len(reply)) + " elements instead of " + strconv.Itoa(n))
	}
	for i, v := range reply {
		x, ok := v.(int64)
		if !ok {
			return nil, badReply("element " + strconv.Itoa(i) + " is no integer")
		}
		out = append(out, x)
	}
	return out, nil
}

// few is the room that the numbers of most replies need, so that reading them allocates nothing.
type few [16]int64
