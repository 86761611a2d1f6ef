package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// waiter is a Waiter that says always the same.
type waiter struct {
	err  error
	keys []string
}

func (w *waiter) Wait(_ context.Context, key string) error {
	w.keys = append(w.keys, key)
	return w.err
}

func newClient(t testing.TB, w grpclimit.Waiter, opts grpclimit.ClientOptions) *grpclimit.Client {
	t.Helper()
	c, err := grpclimit.NewClient(w, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refused is what a server answers.
func refused(code codes.Code, delay time.Duration) error {
	st, err := status.New(code, "try again").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// sends sends a unary call in a bubble to a server that answers with errs, and returns the times at which it was sent.
func sends(t *testing.T, c *grpclimit.Client, timeout time.Duration, errs ...error) (at []time.Duration, took time.Duration, err error) {
	t.Helper()
	conn, errNew := grpc.NewClient("passthrough:///api.example.com", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if errNew != nil {
		t.Fatal(errNew)
	}
	defer conn.Close()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		start := time.Now()
		err = c.Unary()(ctx, "/pkg.Service/Method", nil, nil, conn, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			at = append(at, time.Since(start))
			if n := len(at); n <= len(errs) {
				return errs[n-1]
			}
			return nil
		})
		took = time.Since(start)
	})
	return at, took, err
}

func TestRetries(t *testing.T) {
	const s = time.Second
	dry := refused(codes.ResourceExhausted, 2*s)
	for _, tt := range []struct {
		what    string
		opts    grpclimit.ClientOptions
		timeout time.Duration
		errs    []error
		at      []time.Duration
		code    codes.Code
	}{
		{"not unless asked", grpclimit.ClientOptions{}, 0, []error{dry}, []time.Duration{0}, codes.ResourceExhausted},
		{"once", grpclimit.ClientOptions{Retries: 1}, 0, []error{dry}, []time.Duration{0, 2 * s}, codes.OK},
		{"often enough", grpclimit.ClientOptions{Retries: 2}, 0, []error{dry, dry, dry}, []time.Duration{0, 2 * s, 4 * s}, codes.ResourceExhausted},
		{"within the deadline", grpclimit.ClientOptions{Retries: 9}, 3 * s, []error{dry, dry}, []time.Duration{0, 2 * s}, codes.ResourceExhausted},
		{"up to MaxDelay", grpclimit.ClientOptions{Retries: 1, MaxDelay: 2*s - 1}, 0, []error{dry}, []time.Duration{0}, codes.ResourceExhausted},
		{"up to a minute", grpclimit.ClientOptions{Retries: 1}, 0, []error{refused(codes.ResourceExhausted, time.Minute+1)}, []time.Duration{0}, codes.ResourceExhausted},
		{"no loop", grpclimit.ClientOptions{Retries: 1}, 0, []error{refused(codes.ResourceExhausted, -s)}, []time.Duration{0, time.Millisecond}, codes.OK},
		{"no details", grpclimit.ClientOptions{Retries: 1}, 0, []error{status.Error(codes.ResourceExhausted, "message too large")}, []time.Duration{0}, codes.ResourceExhausted},
		{"an outage", grpclimit.ClientOptions{Retries: 1}, 0, []error{refused(codes.Unavailable, s)}, []time.Duration{0}, codes.Unavailable},
		{"another error", grpclimit.ClientOptions{Retries: 1}, 0, []error{errSecret}, []time.Duration{0}, codes.Unknown},
	} {
		w := &waiter{}
		at, took, err := sends(t, newClient(t, w, tt.opts), tt.timeout, tt.errs...)
		wantCode(t, err, tt.code)
		if !slices.Equal(at, tt.at) || took != at[len(at)-1] {
			t.Errorf("%s: sent at %v and back after %v, want %v", tt.what, at, took, tt.at)
		}
		if len(w.keys) != len(at) || w.keys[0] != "target:passthrough:///api.example.com" {
			t.Errorf("%s: waited for %v", tt.what, w.keys)
		}
		at, _, _ = sends(t, newClient(t, nil, tt.opts), tt.timeout, tt.errs...)
		if !slices.Equal(at, tt.at) {
			t.Errorf("%s, without a limiter: sent at %v, want %v", tt.what, at, tt.at)
		}
	}
}

func TestNotSent(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code codes.Code
	}{
		{limit.ErrWouldExceedDeadline, codes.ResourceExhausted},
		{limit.ErrUnavailable, codes.Unavailable},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{limit.ErrInvalidKey, codes.InvalidArgument},
	} {
		s := serve(t, nil, newClient(t, &waiter{err: fmt.Errorf("more: %w", tt.err)}, grpclimit.ClientOptions{Retries: 3}).DialOptions()...)
		byKey := serve(t, nil, newClient(t, &waiter{}, grpclimit.ClientOptions{Key: func(context.Context, grpclimit.Call) (string, error) { return "", tt.err }}).DialOptions()...)
		for kind, call := range calls {
			for _, s := range []*site{s, byKey} {
				err := call(soon(t), s)
				wantCode(t, err, tt.code)
				if !errors.Is(err, tt.err) || s.served.Load() != 0 {
					t.Errorf("%s: %v, served %d; want %v", kind, err, s.served.Load(), tt.err)
				}
			}
		}
	}
	for err, want := range map[error]codes.Code{limit.ErrUnavailable: codes.OK, limit.ErrClosed: codes.Unavailable} {
		s := serve(t, nil, newClient(t, &waiter{err: err}, grpclimit.ClientOptions{FailOpen: true}).DialOptions()...)
		for _, call := range calls {
			wantCode(t, call(soon(t), s), want)
		}
	}
	s := serve(t, nil, newClient(t, &waiter{}, grpclimit.ClientOptions{Key: func(context.Context, grpclimit.Call) (string, error) { return "", nil }}).DialOptions()...)
	if err := calls["unary"](soon(t), s); !errors.Is(err, grpclimit.ErrNoKey) {
		t.Errorf("%v, want ErrNoKey", err)
	}
}

// A call that would have to wait for too long fails at once, is not sent and takes no token.
func TestDeadlineBeforeTheTokens(t *testing.T) {
	l, err := hybrid.NewFrom(leasetest.NewSource(), hybrid.PerHour(1), hybrid.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	s := serve(t, nil, newClient(t, l, grpclimit.ClientOptions{}).DialOptions()...)
	wantCode(t, calls["unary"](soon(t), s), codes.OK)
	for kind, call := range calls {
		err := call(soon(t), s)
		wantCode(t, err, codes.ResourceExhausted)
		if !errors.Is(err, limit.ErrWouldExceedDeadline) || s.served.Load() != 1 {
			t.Errorf("%s: %v, served %d", kind, err, s.served.Load())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, calls["unary"](ctx, s), codes.Canceled)
}

// The server's RetryInfo is the one that the client reads.
func TestRetryAgainstServer(t *testing.T) {
	dry := decision{res: denied(time.Microsecond)}
	l := &scripted{script: []decision{dry, dry}}
	s := newSite(t, l, grpclimit.Options{}, newClient(t, nil, grpclimit.ClientOptions{Retries: 2}).DialOptions()...)
	wantCode(t, calls["unary"](soon(t), s), codes.OK)
	if n := l.calls.Load(); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	l.calls.Store(0)
	wantCode(t, calls["stream"](soon(t), s), codes.ResourceExhausted)
}

func TestClientKeySeesTheCall(t *testing.T) {
	var seen atomic.Value
	c := newClient(t, &waiter{}, grpclimit.ClientOptions{Key: func(_ context.Context, call grpclimit.Call) (string, error) {
		seen.Store(fmt.Sprint(call.Method, " ", call.Request != nil, " ", call.Target != ""))
		return "k", nil
	}})
	s := serve(t, nil, c.DialOptions()...)
	for kind, want := range map[string]string{
		"unary":  "/grpc.testing.TestService/UnaryCall true true",
		"stream": "/grpc.testing.TestService/FullDuplexCall false true",
	} {
		wantCode(t, calls[kind](soon(t), s), codes.OK)
		if got := seen.Load(); got != want {
			t.Errorf("%s: %v, want %s", kind, got, want)
		}
	}
}
