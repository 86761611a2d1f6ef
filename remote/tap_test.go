package remote_test

import (
	"context"

	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
)

// tap is a hook on a client that counts the scripts it sends, and can answer in the place of Redis.
type tap struct {
	mu      sync.Mutex // guards the fields below
	scripts int        // EVALSHA and EVAL that were sent, each command of a pipeline by itself
	pipes   int        // pipelines with scripts
	before  func(n int) error
}

// attach puts a tap on a client.
func attach(rdb redis.UniversalClient) *tap {
	p := &tap{}
	rdb.AddHook(p)
	return p
}

// intercept calls f before each script, with the number of the script from 1. An error is what the call returns then.
func (p *tap) intercept(f func(n int) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scripts, p.before = 0, f
}

// sent is the number of scripts since the last call of sent or intercept.
func (p *tap) sent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.scripts
	p.scripts = 0
	return n
}

func (p *tap) meet(cmd redis.Cmder) error {
	if name := cmd.Name(); name != "evalsha" && name != "eval" {
		return nil
	}
	p.mu.Lock()
	p.scripts++
	n, before := p.scripts, p.before
	p.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(n)
}

func (p *tap) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (p *tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := p.meet(cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (p *tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.mu.Lock()
		p.pipes++
		p.mu.Unlock()
		for _, cmd := range cmds {
			if err := p.meet(cmd); err != nil {
				for _, cmd := range cmds {
					cmd.SetErr(err)
				}
				return err
			}
		}
		return next(ctx, cmds)
	}
}

// replyError is an error reply of the server.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// eventually waits for what another goroutine or process is about to do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %v", what, patience)
		}
	}
}

// parked waits until so many callers wait for the decision of a batch. No other test may run at the same time.
func parked(t *testing.T, callers int) {
	t.Helper()
	buf := make([]byte, 4<<20)
	waiting := 0
	defer func() {
		if t.Failed() {
			t.Logf("%d callers wait, want %d", waiting, callers)
		}
	}()
	eventually(t, "callers wait", func() bool {
		stacks := string(buf[:runtime.Stack(buf, true)])
		waiting = 0
		for g := range strings.SplitSeq(stacks, "\n\n") {
			head, stack, _ := strings.Cut(g, "\n")
			if !strings.Contains(stack, "internal/flight.(*Group).Do(") {
				continue
			}
			// For its batch, for the flight before that, or for the client, if it sees to the call itself. Anything else,
			// such as the collector, may hold it up before it has joined.
			if strings.Contains(head, "[select") || strings.Contains(head, "WaitGroup") || strings.Contains(head, "[chan receive") {
				waiting++
			}
		}
		return waiting == callers
	})
}

// through sends a client through a proxy.
func through(p *redistest.Proxy) func(*redis.Options) {
	return func(o *redis.Options) { o.Addr = p.Addr() }
}

// attend makes a client keep to the deadlines of contexts, or not, which is the default of go-redis.
func attend(on bool) func(*redis.Options) {
	return func(o *redis.Options) { o.ContextTimeoutEnabled = on }
}

// exit ends the goroutine, as t.FailNow does.
func exit() { runtime.Goexit() }

// spoil is a hook that, when it is set, keeps the second command of a pipeline from the server, because that is
// loading, and loses the reply to the fourth.
type spoil struct{ *atomic.Bool }

func (spoil) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (spoil) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s spoil) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !s.Load() {
			return next(ctx, cmds)
		}
		err := next(ctx, slices.Delete(slices.Clone(cmds), 1, 2))
		cmds[1].SetErr(replyError("LOADING Redis is loading the dataset in memory"))
		cmds[3].(interface{ SetVal(any) }).SetVal(nil)
		cmds[3].SetErr(io.EOF)
		return err
	}
}

// dialError is what a client gives that could not connect.
func dialError() error {
	_, err := net.DialTimeout("tcp", "127.0.0.1:1", time.Second)
	return err
}
