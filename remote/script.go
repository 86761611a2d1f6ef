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
)

// script is the source of a Lua script and the name that Redis knows it by.
type script struct {
	source string
	sha    string
}

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// command is a redis.Cmd that the client must not repeat. By default go-redis repeats a command whose reply was lost,
// up to three times and on any kind of client, and each repetition would charge the bucket again. Redirections of a
// cluster are still followed.
type command struct{ *redis.Cmd }

func (command) NoRetry() bool { return true }

// call is one script for one key.
func (s script) call(ctx context.Context, verb, key string, args []any) command {
	all := make([]any, 0, 4+len(args))
	id := s.sha
	if verb == "eval" {
		id = s.source
	}
	all = append(all, verb, id, 1, key)
	cmd := command{redis.NewCmd(ctx, append(all, args...)...)}
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

// run runs a script on one key and returns its reply. ctx must have a deadline. Errors are as the client gave them.
func (c conn) run(ctx context.Context, s script, key string, args []any) ([]any, error) {
	verb := "evalsha"
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		cmd := s.call(ctx, verb, key, args)
		err := c.await(ctx, func() error { return c.rdb.Process(ctx, cmd) })
		if err == nil {
			return cmd.Slice()
		}
		switch classify(err) {
		case noScript: // a new server, a restart, a failover, SCRIPT FLUSH
			if verb == "eval" {
				return nil, err
			}
			verb = "eval"
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

// integers reads a reply of exactly n numbers.
func integers(reply []any, n int) ([]int64, error) {
	if len(reply) != n {
		return nil, badReply(strconv.Itoa(len(reply)) + " elements instead of " + strconv.Itoa(n))
	}
	out := make([]int64, n)
	for i, v := range reply {
		x, ok := v.(int64)
		if !ok {
			return nil, badReply("element " + strconv.Itoa(i) + " is no integer")
		}
		out[i] = x
	}
	return out, nil
}
