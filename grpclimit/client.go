package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hybridlimit/hybrid/limit"
)

// Waiter waits until a call for key may be sent; a hybrid.Limiter is one. Its error wraps limit.ErrWouldExceedDeadline, at
// once, if that would be after the deadline of ctx.
type Waiter interface {
	Wait(ctx context.Context, key string) error
}

// Client sends calls no faster than a limiter allows. It is safe for concurrent use and must be made by NewClient.
type Client struct {
	waiter Waiter // nil: only servers are heeded
	opts   ClientOptions
}

// ClientOptions of a Client. The zero value is ready to use; NewClient copies and checks them. The functions are called
// from many goroutines.
type ClientOptions struct {
	// Key says which limit a call is under. Default: that of the target of its connection,
	// "target:dns:///api.example.com:443".
	Key KeyFunc
	// Retries is how often a unary call is sent again that the server refused with ResourceExhausted and a RetryInfo:
	// after that time, and after another Wait. If it cannot wait for so long, the error of the server is returned.
	// Default 0: never.
	Retries int
	// MaxDelay is the longest time of a RetryInfo that is waited for, also if the context has no deadline. Default 1m.
	MaxDelay time.Duration
	// FailOpen sends calls without limit while the limiter returns limit.ErrUnavailable. Default: they fail with it.
	FailOpen bool
}

// NewClient returns a Client whose calls wait for w; with a nil w it has no limit of its own and only heeds what servers
// say. Errors wrap limit.ErrInvalid.
func NewClient(w Waiter, opts ClientOptions) (*Client, error) {
	if opts.Key == nil {
		opts.Key = By("target", func(_ context.Context, call Call) (string, error) { return call.Target, nil })
	}
	if opts.MaxDelay == 0 {
		opts.MaxDelay = time.Minute
	}
	switch {
	case w != nil && isNil(w):
		return nil, fmt.Errorf("%w: the limiter is a nil pointer", limit.ErrInvalid)
	case opts.Retries < 0:
		return nil, fmt.Errorf("%w: ClientOptions.Retries %d is negative", limit.ErrInvalid, opts.Retries)
	case opts.MaxDelay < 0:
		return nil, fmt.Errorf("%w: ClientOptions.MaxDelay %v is negative", limit.ErrInvalid, opts.MaxDelay)
	}
	return &Client{waiter: w, opts: opts}, nil
}

// DialOptions are Unary and Stream as options of grpc.NewClient. They are added behind interceptors that were given
// before.
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary()), grpc.WithChainStreamInterceptor(c.Stream())}
}

// Unary waits before each unary call.
//
// A call that is not sent fails with a status of Code, and errors.Is finds the cause in it:
// limit.ErrWouldExceedDeadline, at once, if it would have to wait for longer than its context allows, or for ever; the
// context's own error when that ends; else errors of Key and of the limiter.
func (c *Client) Unary() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		call := Call{Method: method, Request: req, Target: cc.Target()}
		if err := c.wait(ctx, call); err != nil {
			return err
		}
		for try := 0; ; try++ {
			err := invoker(ctx, method, req, reply, cc, opts...)
			if err == nil || try == c.opts.Retries {
				return err
			}
			delay, ok := retryDelay(err)
			if !ok || delay > c.opts.MaxDelay || sleep(ctx, delay) != nil || c.wait(ctx, call) != nil {
				return err
			}
		}
	}
}

// Stream waits before each stream is opened; its messages are not counted. Errors are those of Unary. A stream that the
// server refuses is not opened again: its messages are gone. The retry policy of gRPC can do that.
func (c *Client) Stream() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := c.wait(ctx, Call{Method: method, Target: cc.Target()}); err != nil {
			return nil, err
		}
		return streamer(ctx, desc, cc, method, opts...)
	}
}

// wait waits until a call may be sent.
func (c *Client) wait(ctx context.Context, call Call) error {
	if c.waiter == nil {
		return nil
	}
	key, err := c.opts.Key(ctx, call)
	if err == nil && key == "" {
		err = ErrNoKey
	}
	if err == nil {
		err = c.waiter.Wait(ctx, key)
		if c.opts.FailOpen && errors.Is(err, limit.ErrUnavailable) {
			return nil
		}
	}
	if err != nil {
		return &notSent{err}
	}
	return nil
}

// notSent is the error of a call that was not sent.
type notSent struct{ err error }

func (e *notSent) Error() string { return "grpclimit: the call was not sent: " + e.err.Error() }
func (e *notSent) Unwrap() error { return e.err }

// GRPCStatus makes it a status, as all errors of calls are.
func (e *notSent) GRPCStatus() *status.Status { return status.New(Code(e.err), e.Error()) }

// retryDelay reads after what time a server wants a call to be sent again that it has refused.
func retryDelay(err error) (time.Duration, bool) {
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.ResourceExhausted {
		return 0, false
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok && info.GetRetryDelay() != nil {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// shortestSleep keeps a server that says 0 from being asked in a loop.
const shortestSleep = time.Millisecond

// sleep returns at once if it would end after the deadline of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	d = max(d, shortestSleep)
	if end, ok := ctx.Deadline(); ok && d > time.Until(end) {
		return limit.ErrWouldExceedDeadline
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
