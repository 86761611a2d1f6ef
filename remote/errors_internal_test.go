package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/limit"
)

type reply string

func (e reply) Error() string { return string(e) }
func (reply) RedisError()     {}

// A refusal of the server as it comes by itself, and from inside a script on servers of all ages.
func TestREDIS04_Classify(t *testing.T) {
	for code, want := range map[string]class{
		"LOADING Redis is loading the dataset in memory":                                                                 notExecuted,
		"READONLY You can't write against a read only replica.":                                                          notExecuted,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                               notExecuted,
		"CLUSTERDOWN Hash slot not served":                                                                               notExecuted,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                                        notExecuted,
		"MOVED 12182 127.0.0.1:7001":                                                                                     notExecuted,
		"ASK 12182 127.0.0.1:7001":                                                                                       notExecuted,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":                         notExecuted,
		"NOREPLICAS Not enough good replicas to write.":                                                                  notExecuted,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                               refused,
		"OOM command not allowed when used memory > 'maxmemory'.":                                                        refused,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                              refused,
		"CROSSSLOT Keys in request don't hash to the same slot":                                                          refused,
		"NOAUTH Authentication required.":                                                                                refused,
		"EXECABORT Transaction discarded because of previous errors.":                                                    refused,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that": refused,
	} {
		for _, form := range []string{
			"%s",
			"%s script: 3ffa0b1a1d4dd4eb1a2a8b2b8bbb3bb0f1b3b2b1, on @user_script:96.",
			"ERR Error running script (call to f_3ffa0b1a1d4dd4eb1a2a8b2b8bbb3bb0f1b3b2b1): @user_script:96: @user_script: 96: -%s",
			"ERR %s", // Kvrocks
		} {
			text := fmt.Sprintf(form, code)
			if got := classify(reply(text)); got != want {
				t.Errorf("%q: class %d, want %d", text, got, want)
			}
			if got := classify(fmt.Errorf("a hook: %w", reply(text))); got != want {
				t.Errorf("%q wrapped: class %d, want %d", text, got, want)
			}
			err := unavailable("p:", reply(text))
			if !errors.Is(err, limit.ErrUnavailable) || errors.Is(err, ErrRefused) != (want == refused) {
				t.Errorf("%q: %v; ErrRefused is for what waiting does not mend", text, err)
			}
			if want == refused && !strings.Contains(err.Error(), `"p:"`) {
				t.Errorf("%q: %q does not name the prefix", text, err)
			}
		}
	}
	for text, want := range map[string]class{
		"NOSCRIPT No matching script. Please use EVAL.":     noScript,
		"ERR NOSCRIPT No matching script. Please use EVAL.": noScript,
		"ERR max number of clients reached":                 notExecuted,
		"ERR unknown command 'EVALSHA'":                     refused,
		"ERR hybrid: bad arguments":                         refused,
		"FOREIGN not a GCRA of this version":                refused,
		"":                                                  refused,
		"ERR":                                               refused,
	} {
		if got := classify(reply(text)); got != want {
			t.Errorf("%q: class %d, want %d", text, got, want)
		}
	}
}

func TestClassifyClientErrors(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	dialTimeout := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	read := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	write := &net.OpError{Op: "write", Net: "tcp", Err: errors.New("broken pipe")}
	for _, tt := range []struct {
		err  error
		want class
	}{
		{dial, notExecuted}, {dialTimeout, notExecuted}, {fmt.Errorf("x: %w", dial), notExecuted},
		{redis.ErrPoolTimeout, notExecuted}, {redis.ErrPoolExhausted, notExecuted},
		{read, unknown}, {write, unknown}, {io.EOF, unknown}, {io.ErrUnexpectedEOF, unknown}, {redis.ErrClosed, unknown},
		{context.DeadlineExceeded, unknown}, {context.Canceled, unknown}, {errors.New("anything"), unknown},
		{redis.Nil, refused},
	} {
		if got := classify(tt.err); got != tt.want {
			t.Errorf("%v: class %d, want %d", tt.err, got, tt.want)
		}
		err := unavailable("p:", tt.err)
		if !errors.Is(err, limit.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: %v; want ErrUnavailable, and not the error of a caller's deadline", tt.err, err)
		}
		if again := unavailable("p:", err); again != err {
			t.Errorf("%v: wrapped twice: %v", tt.err, again)
		}
	}
	if err := unavailable("p:", redis.ErrClosed); !errors.Is(err, redis.ErrClosed) || !strings.Contains(err.Error(), "the client is closed") {
		t.Errorf("%v does not say that the client is closed", err)
	}
}

// The real thing, in case the client changes how it reports that it could not connect.
func TestClassifyDial(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	if err := rdb.Ping(context.Background()).Err(); classify(err) != notExecuted {
		t.Errorf("connection refused: %v has class %d", err, classify(err))
	}
	// Of a dial that ran into the deadline the client tells only that.
	never := redis.NewClient(&redis.Options{
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
		},
	})
	defer never.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := never.Ping(ctx).Err(); classify(err) == refused || errors.Is(unavailable("", err), context.DeadlineExceeded) {
		t.Errorf("dial time-out: %v has class %d, and becomes %v", err, classify(err), unavailable("", err))
	}
}
