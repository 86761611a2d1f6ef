package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Transport is an http.RoundTripper that sends requests no faster than a limiter allows and pauses when a server asks
// for it. It is safe for concurrent use and must be made by NewTransport.
type Transport struct {
	limiter limit.Limiter // nil: only servers are heeded
	opts    TransportOptions
	pauses  pauses
}

// TransportOptions of a Transport. The zero value is ready to use; NewTransport copies and checks them. The functions are
// called from many goroutines.
type TransportOptions struct {
	// Base sends the requests. Default http.DefaultTransport.
	Base http.RoundTripper
	// Key says which limit a request is under. Default: that of the host it goes to, "host:api.example.com:8443", in
	// lower case, with the port if the URL has one.
	Key KeyFunc
	// Cost is what a request costs in tokens. Default: 1.
	Cost func(r *http.Request) int
	// MaxWait is the longest that a request is held back, each time before it is sent; if it would be longer the request
	// fails at once. Default 0: as long as its context allows.
	MaxWait time.Duration
	// MaxPause is the longest pause that one answer of a server can cause. Default 1h.
	MaxPause time.Duration
	// SlowDown also pauses when a server answers X-RateLimit-Remaining: 0, until X-RateLimit-Reset. Default: it does not.
	SlowDown bool
	// XRateLimit is what X-RateLimit-Reset means to these servers, XDelta or XEpoch; it cannot be told from the number.
	// Default XDelta.
	XRateLimit XStyle
	// Retries is how often a request is sent again that was answered with 429 or 503 and a Retry-After: after that time
	// and for another token, if it has no body or a GetBody to make it anew, and on 503 only if its method is idempotent.
	// If it cannot wait for so long, the answer is returned. Default 0: never.
	Retries int
	// FailOpen sends requests without limit while the limiter returns limit.ErrUnavailable. Default: they fail with it.
	FailOpen bool
	// MaxHosts is for how many hosts pauses are remembered; of more, those that end first are forgotten. Default 1024.
	MaxHosts int
}

// NewTransport returns a Transport that asks l about each request; with a nil l it has no limit of its own and only
// heeds what servers say. Errors wrap limit.ErrInvalid.
func NewTransport(l limit.Limiter, opts TransportOptions) (*Transport, error) {
	if l != nil && isNil(l) {
		return nil, fmt.Errorf("%w: the limiter is a nil pointer", limit.ErrInvalid)
	}
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	return &Transport{limiter: l, opts: opts, pauses: pauses{most: opts.MaxHosts, until: map[string]time.Time{}}}, nil
}

// complete returns the options with defaults filled in, or an error that wraps limit.ErrInvalid.
func (o TransportOptions) complete() (TransportOptions, error) {
	bad := func(format string, args ...any) (TransportOptions, error) {
		return o, fmt.Errorf("%w: TransportOptions."+format, append([]any{limit.ErrInvalid}, args...)...)
	}
	if o.Base == nil {
		o.Base = http.DefaultTransport
	}
	if o.Key == nil {
		o.Key = By("host", func(r *http.Request) (string, error) { return hostOf(r), nil })
	}
	if o.MaxPause == 0 {
		o.MaxPause = time.Hour
	}
	if o.MaxHosts == 0 {
		o.MaxHosts = 1024
	}
	switch {
	case o.MaxWait < 0:
		return bad("MaxWait %v is negative", o.MaxWait)
	case o.MaxPause < 0:
		return bad("MaxPause %v is negative", o.MaxPause)
	case o.MaxHosts < 0:
		return bad("MaxHosts %d is negative", o.MaxHosts)
	case o.Retries < 0:
		return bad("Retries %d is negative", o.Retries)
	case o.XRateLimit != XDelta && o.XRateLimit != XEpoch:
		return bad("XRateLimit must be XDelta or XEpoch")
	}
	return o, nil
}

// RoundTrip waits until the pause of the host is over and the limiter admits the request, and sends it. Callers who wait
// for the same key are not kept in order.
//
// When the wait would be longer than the deadline of the request's context or MaxWait, the error wraps
// limit.ErrWouldExceedDeadline and comes at once, and no token is taken; so it is when no waiting will help. When the
// context ends it is the context's own error. Errors of Key and of the limiter are returned wrapped. The request was then
// not sent. A Client wraps all of them once more; errors.Is finds them.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL == nil {
		return t.opts.Base.RoundTrip(r) // which has an error for it
	}
	if err := t.admit(r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // the contract of RoundTripper
		}
		return nil, err
	}
	resp, err := t.opts.Base.RoundTrip(r)
	for try := 0; err == nil; try++ {
		if again := t.heed(r, resp); !again || try == t.opts.Retries || !repeatable(r, resp) {
			break
		}
		// The answer is kept until the request may be sent: if it may not, it is what the caller gets.
		if t.admit(r) != nil {
			break
		}
		next, errBody := renew(r)
		if errBody != nil {
			break
		}
		discard(resp)
		resp, err = t.opts.Base.RoundTrip(next)
	}
	return resp, err
}

// CloseIdleConnections passes the call of http.Client on to Base.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.opts.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// shortestSleep keeps a limiter that says 0 from being asked in a loop.
const shortestSleep = time.Millisecond

// admit waits until r may be sent. The pause comes first, as it costs no token, and once more after the token, as it may
// have begun in between.
func (t *Transport) admit(r *http.Request) error {
	ctx, host := r.Context(), hostOf(r)
	key, cost := "", 1
	if t.limiter != nil {
		var err error
		if key, err = t.opts.Key(r); err == nil && key == "" {
			err = ErrNoKey
		}
		if err != nil {
			return fmt.Errorf("httplimit: %w", err)
		}
		if t.opts.Cost != nil {
			cost = t.opts.Cost(r)
		}
	}
	var latest time.Time // none if zero
	if t.opts.MaxWait > 0 {
		latest = time.Now().Add(t.opts.MaxWait)
	}
	if d, ok := ctx.Deadline(); ok && (latest.IsZero() || d.Before(latest)) {
		latest = d
	}
	for admitted := t.limiter == nil; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		wait := t.pauses.left(host)
		if wait <= 0 && admitted {
			return nil
		}
		if wait <= 0 {
			res, err := t.limiter.AllowN(ctx, key, cost)
			if err == nil && res.Allowed || err != nil && t.opts.FailOpen && errors.Is(err, limit.ErrUnavailable) {
				admitted = true
				continue
			}
			if err != nil {
				return fmt.Errorf("httplimit: %w", err)
			}
			wait = max(res.RetryAfter, shortestSleep)
		}
		if err := sleep(ctx, wait, latest); err != nil {
			return err
		}
	}
}

// sleep returns at once if it would end after latest, or never.
func sleep(ctx context.Context, d time.Duration, latest time.Time) error {
	if d == limit.Never {
		return fmt.Errorf("httplimit: %w: no waiting will admit the request", limit.ErrWouldExceedDeadline)
	}
	if !latest.IsZero() && d > time.Until(latest) {
		return fmt.Errorf("httplimit: %w: the request would have to wait %v", limit.ErrWouldExceedDeadline, d)
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

// heed begins the pause that an answer asks for. It reports whether the request may be sent again after it.
func (t *Transport) heed(r *http.Request, resp *http.Response) (again bool) {
	now := time.Now()
	wait := time.Duration(0)
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		wait, again = retryAfter(resp.Header, now)
	}
	if t.opts.SlowDown && !again {
		wait, _ = untilReset(resp.Header, t.opts.XRateLimit, now)
	}
	if wait > 0 {
		t.pauses.extend(hostOf(r), now.Add(min(wait, t.opts.MaxPause)))
	}
	return again
}

func hostOf(r *http.Request) string { return strings.ToLower(r.URL.Host) }

// repeatable reports whether r may be sent a second time after this answer. 429 says that nothing was done; 503 only
// mostly does.
func repeatable(r *http.Request, resp *http.Response) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		return true
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// renew returns r with a body that has not been read.
func renew(r *http.Request) (*http.Request, error) {
	next := r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return next, nil
	}
	var err error
	next.Body, err = r.GetBody()
	return next, err
}

// discard reads what is left of a short body, so that the connection can be used again.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	_ = resp.Body.Close()
}
