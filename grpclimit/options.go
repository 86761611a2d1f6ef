package grpclimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hybridlimit/hybrid/limit"
)

// Options of a Server. The zero value is ready to use; New copies and checks them. The functions are called from many
// goroutines.
type Options struct {
	// Key says whom a call is counted for; a stream is asked once, when it is opened. Default ByAddr(): the address of
	// the TCP peer.
	Key KeyFunc
	// AllowNoKey serves calls for which Key returns ErrNoKey, without any limit. Default: they are refused with
	// InvalidArgument. To count them otherwise use First.
	AllowNoKey bool
	// Cost is what a call costs in tokens; 0 takes nothing and is never denied. A negative cost is refused with
	// InvalidArgument, one above the burst with FailedPrecondition. Default: 1.
	Cost func(ctx context.Context, call Call) int
	// PerMessage counts each message that a stream receives instead of the stream: opening it is free, and the first
	// message that is denied ends it. Unary calls are counted as ever. Default: a stream is counted when it is opened.
	PerMessage bool
	// Skip says which calls are served without being counted. Default: none.
	Skip func(ctx context.Context, call Call) bool
	// SkipMethods are full methods that are skipped too; "/grpc.health.v1.Health/" stands for all of a service.
	// Default: none.
	SkipMethods []string

	// Policy is the name of the limit in QuotaFailure: its quota_id, in UTF-8. Default "default".
	Policy string
	// Subject is what QuotaFailure names as the subject. It is sent to the client: return key to tell who was counted.
	// Default: Policy.
	Subject func(key string) string
	// MaxPushback is up to which RetryAfter a denial asks clients to send the call again after it, with the trailer
	// grpc-retry-pushback-ms. Clients obey without asking you if their retry policy lists ResourceExhausted, and all
	// others ignore it. After a longer time, and if waiting does not help, it asks them not to send it again. Default 5s;
	// negative: there is no such trailer.
	MaxPushback time.Duration
	// Tell tells the limit in the trailer of all calls that were decided: x-ratelimit-limit, x-ratelimit-remaining and
	// x-ratelimit-reset. Default: it does not.
	Tell bool

	// OnLimited may replace the error of a call that is denied; nil keeps it. Default: nothing is replaced.
	OnLimited func(ctx context.Context, call Call, res limit.Result) error
	// OnError may replace the error of a call about which nothing was decided, for example to use another code for
	// limit.ErrUnavailable; nil keeps it. Errors of Key come as they are. Default: nothing is replaced.
	OnError func(ctx context.Context, call Call, err error) error
	// FailOpen serves calls without limit while the limiter returns limit.ErrUnavailable. A hybrid.Limiter has its own
	// policy, which counts on, and returns it only with FailClosed. Default: they are refused with Unavailable.
	FailOpen bool
}

// complete returns the options with defaults filled in, or an error that wraps limit.ErrInvalid.
func (o Options) complete() (Options, error) {
	if o.Key == nil {
		o.Key = ByAddr()
	}
	if o.Policy == "" {
		o.Policy = "default"
	}
	if o.MaxPushback == 0 {
		o.MaxPushback = 5 * time.Second
	}
	if !utf8.ValidString(o.Policy) {
		return o, fmt.Errorf("%w: Options.Policy %q is no UTF-8", limit.ErrInvalid, o.Policy)
	}
	o.SkipMethods = slices.Clone(o.SkipMethods)
	for _, m := range o.SkipMethods {
		if !isMethod(m) {
			return o, fmt.Errorf("%w: Options.SkipMethods: %q is neither \"/package.Service/Method\" nor \"/package.Service/\"", limit.ErrInvalid, m)
		}
	}
	return o, nil
}

// isMethod reports whether m is a full method or a service with both slashes.
func isMethod(m string) bool {
	service, _, ok := strings.Cut(strings.TrimPrefix(m, "/"), "/")
	return strings.HasPrefix(m, "/") && ok && service != ""
}

// skips reports whether a call is served without being counted.
func (o *Options) skips(ctx context.Context, call Call) bool {
	for _, m := range o.SkipMethods {
		if call.Method == m || strings.HasSuffix(m, "/") && strings.HasPrefix(call.Method, m) {
			return true
		}
	}
	return o.Skip != nil && o.Skip(ctx, call)
}
