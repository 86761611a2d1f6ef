package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// as names the caller.
func as(ctx context.Context, user string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "user", user)
}

func TestMW01_RefusalsAreNoOutage(t *testing.T) {
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			m := miniredis.RunT(t)
			rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: m.Addr()}))
			defer rdb.Close()
			l, err := hybrid.New(rdb, hybrid.PerHour(1), hybrid.Options{OnFailure: hybrid.FailClosed})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(context.Background())
			byUser := grpclimit.ByMetadata("user")
			s := newSite(t, l, grpclimit.Options{Key: byUser})
			ctx := soon(t)

			if err := call(as(ctx, "alice"), s); err != nil {
				t.Fatal(err)
			}
			err = call(as(ctx, "alice"), s)
			wantCode(t, err, codes.ResourceExhausted)
			if retry, quota := details(t, err); retry == nil || quota == nil {
				t.Errorf("details %v and %v", retry, quota)
			}
			if n := s.served.Load(); n != 1 {
				t.Errorf("the handler was called %d times, want 1", n)
			}

			m.Close()
			err = call(as(ctx, "bob"), s)
			wantCode(t, err, codes.Unavailable)
			if retry, quota := details(t, err); retry != nil || quota != nil {
				t.Errorf("an outage with details %v and %v", retry, quota)
			}
			if n := s.served.Load(); n != 1 {
				t.Errorf("the handler was called in an outage")
			}

			other := newSite(t, l, grpclimit.Options{Key: byUser, OnError: func(_ context.Context, _ grpclimit.Call, err error) error {
				if errors.Is(err, limit.ErrUnavailable) {
					return status.Error(codes.Aborted, "later")
				}
				return nil
			}})
			wantCode(t, call(as(ctx, "bob"), other), codes.Aborted)
			wantCode(t, call(ctx, other), codes.InvalidArgument) // nil keeps the status
			if n := other.served.Load(); n != 0 {
				t.Errorf("the handler was called in an outage")
			}
			open := newSite(t, l, grpclimit.Options{Key: byUser, FailOpen: true, Tell: true})
			var trailer metadata.MD
			if err := call(as(ctx, "bob"), open, grpc.Trailer(&trailer)); err != nil || told(trailer) != 0 {
				t.Errorf("%v with %v, want to be served without a word", err, trailer)
			}
		})
	}
}

func TestDenied(t *testing.T) {
	const exact = 1234567891 * time.Nanosecond
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			ctx := as(soon(t), "alice")
			opts := grpclimit.Options{Key: grpclimit.ByMetadata("user"), Policy: "api"}
			s := newSite(t, deciding(denied(exact), nil), opts)
			var header, trailer metadata.MD
			err := call(ctx, s, grpc.Header(&header), grpc.Trailer(&trailer))
			wantCode(t, err, codes.ResourceExhausted)
			if got := status.Convert(err).Message(); got != "too many calls: try again in 1.235s" {
				t.Errorf("message %q", got)
			}
			retry, quota := details(t, err)
			if got := retry.GetRetryDelay().AsDuration(); got != exact {
				t.Errorf("RetryDelay %v, want %v", got, exact)
			}
			if v := quota.GetViolations(); len(v) != 1 || v[0].Subject != "api" || v[0].QuotaId != "api" || v[0].Description != "the limit is reached" {
				t.Errorf("violations %v", v)
			}
			if strings.Contains(fmt.Sprint(err, retry, quota, trailer), "alice") {
				t.Errorf("the key is told: %v %v", quota, trailer)
			}
			if got := fmt.Sprint(trailer["grpc-retry-pushback-ms"]); got != "[1235]" {
				t.Errorf("pushback %s", got)
			}
			if trailer["content-type"] == nil { // it would be in the header, if there was one
				t.Errorf("a header was sent: %v", header)
			}
			if s.served.Load() != 0 {
				t.Error("the handler was called")
			}

			opts.Subject = func(key string) string { return key }
			opts.MaxPushback = exact - 1
			err = call(ctx, newSite(t, bucket(t, limit.PerMinute(1)), opts))
			if err != nil {
				t.Fatal(err)
			}
			s = newSite(t, bucket(t, limit.PerMinute(30).WithBurst(1)), opts)
			wantCode(t, call(ctx, s), codes.OK)
			err = call(ctx, s, grpc.Trailer(&trailer))
			_, quota = details(t, err)
			if v := quota.GetViolations(); len(v) != 1 || v[0].Subject != "metadata:user:alice" || v[0].Description != "the limit of 30/m burst 1 is reached" {
				t.Errorf("violations %v", v)
			}
			if got := fmt.Sprint(trailer["grpc-retry-pushback-ms"]); got != "[-1]" {
				t.Errorf("pushback %s after 2s of at most %v", got, opts.MaxPushback)
			}

			opts.MaxPushback = -1
			err = call(ctx, newSite(t, deciding(denied(limit.Never), nil), opts), grpc.Trailer(&trailer))
			wantCode(t, err, codes.ResourceExhausted)
			if retry, quota := details(t, err); retry != nil || quota == nil || told(trailer) != 0 {
				t.Errorf("for ever: %v, %v, trailer %v", retry, quota, trailer)
			}

			opts.OnLimited = func(_ context.Context, call grpclimit.Call, res limit.Result) error {
				if res.RetryAfter != exact {
					return nil
				}
				return status.Error(codes.PermissionDenied, call.Method)
			}
			wantCode(t, call(ctx, newSite(t, deciding(denied(exact), nil), opts)), codes.PermissionDenied)
			wantCode(t, call(ctx, newSite(t, deciding(denied(time.Second), nil), opts)), codes.ResourceExhausted)
		})
	}
}

// patient is a retry policy that comes back by itself only long after the test.
const patient = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "600s", "maxBackoff": "600s",
	"backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`

// A retry policy heeds a refusal only if no header was sent with it, and comes back when the trailer says so.
func TestPushback(t *testing.T) {
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			dry := decision{res: denied(time.Microsecond)}
			l := &scripted{script: []decision{dry, dry}}
			s := newSite(t, l, grpclimit.Options{Tell: true}, grpc.WithDefaultServiceConfig(patient))
			if err := call(soon(t), s); err != nil {
				t.Error(err)
			}
			if n := l.calls.Load(); n != 3 || s.served.Load() != 1 {
				t.Errorf("%d attempts, %d served", n, s.served.Load())
			}
			for _, res := range []limit.Result{denied(limit.Never), denied(5*time.Second + 1)} {
				l := deciding(res, nil)
				wantCode(t, call(soon(t), newSite(t, l, grpclimit.Options{}, grpc.WithDefaultServiceConfig(patient))), codes.ResourceExhausted)
				if n := l.calls.Load(); n != 1 {
					t.Errorf("%v: %d attempts, want 1", res.RetryAfter, n)
				}
			}
		})
	}
}

// probing is an outage whose end is known.
type probing struct{ after time.Duration }

func (p probing) Error() string             { return "probing" }
func (p probing) Unwrap() error             { return limit.ErrUnavailable }
func (p probing) RetryAfter() time.Duration { return p.after }

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code codes.Code
	}{
		{limit.ErrUnavailable, codes.Unavailable},
		{fmt.Errorf("%w: %w", limit.ErrUnavailable, context.DeadlineExceeded), codes.Unavailable},
		{probing{1500 * time.Microsecond}, codes.Unavailable},
		{probing{limit.Never}, codes.Unavailable},
		{limit.ErrClosed, codes.Unavailable},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{limit.ErrWouldExceedDeadline, codes.ResourceExhausted},
		{limit.ErrExceedsBurst, codes.FailedPrecondition},
		{limit.ErrInvalidTokens, codes.InvalidArgument},
		{limit.ErrInvalidKey, codes.InvalidArgument},
		{grpclimit.ErrNoKey, codes.InvalidArgument},
		{limit.ErrInvalid, codes.Internal},
		{fmt.Errorf("more: %w", errSecret), codes.Internal},
		{fmt.Errorf("secret: %w", status.Error(codes.Unauthenticated, "who are you?")), codes.Unauthenticated},
		{okError{}, codes.Internal},
	} {
		if got := grpclimit.Code(tt.err); got != tt.code {
			t.Errorf("Code(%v) = %v, want %v", tt.err, got, tt.code)
		}
		byKey := grpclimit.Options{Key: func(context.Context, grpclimit.Call) (string, error) { return "", tt.err }}
		for kind, call := range calls {
			for _, s := range []*site{newSite(t, deciding(limit.Result{}, tt.err), grpclimit.Options{Tell: true}), newSite(t, &scripted{}, byKey)} {
				var trailer metadata.MD
				err := call(soon(t), s, grpc.Trailer(&trailer))
				wantCode(t, err, tt.code)
				if st := status.Convert(err); st.Message() == "" || strings.Contains(st.Message(), "secret") {
					t.Errorf("%s, %v: message %q", kind, tt.err, st.Message())
				}
				retry, quota := details(t, err)
				known := tt.err == probing{1500 * time.Microsecond}
				if quota != nil || told(trailer) != 0 || known != (retry.GetRetryDelay().AsDuration() == 1500*time.Microsecond) || !known && retry != nil {
					t.Errorf("%s, %v: details %v, %v, trailer %v", kind, tt.err, retry, quota, trailer)
				}
				if n := s.served.Load(); n != 0 {
					t.Errorf("%s, %v: the handler was called", kind, tt.err)
				}
			}
		}
	}
	// FailOpen is for outages only.
	for err, code := range map[error]codes.Code{limit.ErrUnavailable: codes.OK, limit.ErrClosed: codes.Unavailable, limit.ErrExceedsBurst: codes.FailedPrecondition} {
		wantCode(t, calls["unary"](soon(t), newSite(t, deciding(limit.Result{}, err), grpclimit.Options{FailOpen: true})), code)
	}
}

// okError claims to be a status, of success.
type okError struct{}

func (okError) Error() string              { return "fine" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

// An empty key is neither a bucket that all such calls share nor a way past the limit.
func TestEmptyKey(t *testing.T) {
	empty := func(context.Context, grpclimit.Call) (string, error) { return "", nil }
	l := deciding(denied(time.Second), nil)
	for kind, call := range calls {
		s := newSite(t, l, grpclimit.Options{Key: empty})
		wantCode(t, call(soon(t), s), codes.InvalidArgument)
		if n := l.calls.Load(); n != 0 || s.served.Load() != 0 {
			t.Errorf("%s: the limiter was asked %d times, %d calls were served", kind, n, s.served.Load())
		}
		wantCode(t, call(soon(t), newSite(t, l, grpclimit.Options{Key: empty, AllowNoKey: true})), codes.OK)
	}
}

func TestCOST01_AboveTheBurst(t *testing.T) {
	cost := 301
	s := newSite(t, bucket(t, limit.PerMinute(300)), grpclimit.Options{Cost: func(context.Context, grpclimit.Call) int { return cost }, Tell: true})
	for _, call := range calls {
		cost = 301
		wantCode(t, call(soon(t), s), codes.FailedPrecondition)
		for _, cost = range []int{-1, math.MinInt} {
			wantCode(t, call(soon(t), s), codes.InvalidArgument)
		}
	}
	cost = 300
	wantCode(t, calls["unary"](soon(t), s), codes.OK)
	cost = 1
	wantCode(t, calls["unary"](soon(t), s), codes.ResourceExhausted)
	cost = 0
	wantCode(t, calls["unary"](soon(t), s), codes.OK)
}

func TestSkip(t *testing.T) {
	l := deciding(denied(time.Second), nil)
	s := newSite(t, l, grpclimit.Options{
		SkipMethods: []string{"/grpc.health.v1.Health/", "/grpc.testing.TestService/UnaryCal", "/grpc.testing.TestService/FullDuplexCall"},
	})
	if _, err := s.health.Check(soon(t), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	wantCode(t, calls["stream"](soon(t), s), codes.OK)
	if n := l.calls.Load(); n != 0 {
		t.Errorf("the limiter was asked %d times", n)
	}
	wantCode(t, calls["unary"](soon(t), s), codes.ResourceExhausted)

	s = newSite(t, l, grpclimit.Options{Skip: func(ctx context.Context, call grpclimit.Call) bool {
		return call.Request != nil // unary calls
	}})
	wantCode(t, calls["unary"](soon(t), s), codes.OK)
	wantCode(t, calls["stream"](soon(t), s), codes.ResourceExhausted)
}

// lowered is a limiter whose limit has been lowered since it decided.
type lowered struct{ *scripted }

func (lowered) LimitOf(string) limit.Limit { return limit.PerMinute(9) }

func TestTell(t *testing.T) {
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			tell := func(l limit.Limiter) string {
				t.Helper()
				s := newSite(t, l, grpclimit.Options{Tell: true, MaxPushback: -1})
				var header, trailer metadata.MD
				_ = call(soon(t), s, grpc.Header(&header), grpc.Trailer(&trailer))
				for name := range header {
					if strings.Contains(name, "ratelimit") {
						t.Errorf("header %s", name)
					}
				}
				return fmt.Sprint(trailer[grpclimit.TrailerLimit], trailer[grpclimit.TrailerRemaining], trailer[grpclimit.TrailerReset], told(trailer))
			}
			three := bucket(t, limit.Limit{Rate: 2, Period: time.Minute, Burst: 2})
			fallback := denied(time.Second)
			fallback.Origin = limit.Fallback
			for i, tt := range []struct {
				l    limit.Limiter
				want string
			}{
				{three, "[2] [1] [30] 3"},
				{three, "[2] [0] [60] 3"},
				{three, "[2] [0] [60] 3"},
				{&scripted{}, "[] [7] [] 1"},
				{bucket(t, limit.Blocked()), "[0] [0] [] 2"},
				{bucket(t, limit.Unlimited()), "[] [] [] 0"},
				{deciding(fallback, nil), "[] [] [] 0"},
				{deciding(limit.Result{ResetAfter: 1500 * time.Millisecond}, nil), "[] [0] [2] 2"},
				{deciding(limit.Result{ResetAfter: limit.Never}, nil), "[] [0] [] 1"},
				{lowered{deciding(limit.Result{Remaining: 50}, nil)}, "[9] [9] [0] 3"},
				{deciding(limit.Result{Remaining: -1}, nil), "[] [0] [] 1"},
			} {
				if got := tell(tt.l); got != tt.want {
					t.Errorf("row %d: %s, want %s", i, got, tt.want)
				}
			}
		})
	}
	s := newSite(t, bucket(t, limit.PerMinute(2)), grpclimit.Options{})
	var trailer metadata.MD
	wantCode(t, calls["unary"](soon(t), s, grpc.Trailer(&trailer)), codes.OK)
	if told(trailer) != 0 {
		t.Errorf("trailer %v without being asked", trailer)
	}
}

func TestNewRefuses(t *testing.T) {
	var none *hybrid.Limiter
	for what, err := range map[string]error{
		"the limiter is nil":  errOf(grpclimit.New(nil, grpclimit.Options{})),
		"limiter is nil":      errOf(grpclimit.New(none, grpclimit.Options{})),
		`SkipMethods: "svc/"`: errOf(grpclimit.New(&scripted{}, grpclimit.Options{SkipMethods: []string{"svc/"}})),
		`SkipMethods: "/svc"`: errOf(grpclimit.New(&scripted{}, grpclimit.Options{SkipMethods: []string{"/svc"}})),
		`SkipMethods: "/"`:    errOf(grpclimit.New(&scripted{}, grpclimit.Options{SkipMethods: []string{"/"}})),
		`SkipMethods: "//"`:   errOf(grpclimit.New(&scripted{}, grpclimit.Options{SkipMethods: []string{"//"}})),
		`Policy "a\xff"`:      errOf(grpclimit.New(&scripted{}, grpclimit.Options{Policy: "a\xff"})),
		"a nil pointer":       errOf(grpclimit.NewClient(none, grpclimit.ClientOptions{})),
		"Retries -1":          errOf(grpclimit.NewClient(nil, grpclimit.ClientOptions{Retries: -1})),
		"MaxDelay -1ns":       errOf(grpclimit.NewClient(nil, grpclimit.ClientOptions{MaxDelay: -1})),
	} {
		if !errors.Is(err, limit.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want ErrInvalid with %q", err, what)
		}
	}
}

// A limiter that computes nonsense, and one that computes centuries.
func TestHDR06_NothingAbsurd(t *testing.T) {
	for wait, want := range map[time.Duration]struct {
		delay             time.Duration
		message, pushback string
	}{
		-time.Hour:      {1, "1ms", "1"},
		0:               {1, "1ms", "1"},
		limit.Never - 1: {limit.Never - 1, "2562047h47m16.854s", "-1"},
	} {
		var trailer metadata.MD
		err := calls["unary"](soon(t), newSite(t, deciding(denied(wait), nil), grpclimit.Options{}), grpc.Trailer(&trailer))
		wantCode(t, err, codes.ResourceExhausted)
		retry, _ := details(t, err)
		message, pushback := status.Convert(err).Message(), fmt.Sprint(trailer["grpc-retry-pushback-ms"])
		if retry.GetRetryDelay().AsDuration() != want.delay || message != "too many calls: try again in "+want.message || pushback != "["+want.pushback+"]" {
			t.Errorf("%v: %v, %q, pushback %s", wait, retry, message, pushback)
		}
	}
}

// A key may hold any bytes, and a client chooses them: the details are there all the same.
func TestSubjectIsText(t *testing.T) {
	opts := grpclimit.Options{
		Key:     grpclimit.By("user", func(context.Context, grpclimit.Call) (string, error) { return "a\xff", nil }),
		Subject: func(key string) string { return key },
	}
	for _, call := range calls {
		retry, quota := details(t, call(soon(t), newSite(t, deciding(denied(time.Second), nil), opts)))
		if retry == nil || quota.GetViolations()[0].GetSubject() != "user:a\uFFFD" {
			t.Errorf("details %v and %v", retry, quota)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

// Clients cannot make methods up to get a fresh bucket for each: an unknown one reaches no interceptor.
func TestUnknownMethodsAreNotCounted(t *testing.T) {
	l := &scripted{}
	s := newSite(t, l, grpclimit.Options{Key: grpclimit.ByMethod()})
	for _, method := range []string{"/made.Up/Call", "/grpc.testing.TestService/MadeUp", "grpc.testing.TestService/UnaryCall"} {
		err := s.conn.Invoke(soon(t), method, &grpc_health_v1.HealthCheckRequest{}, &grpc_health_v1.HealthCheckResponse{})
		wantCode(t, err, codes.Unimplemented)
	}
	if n := l.calls.Load(); n != 0 || s.served.Load() != 0 {
		t.Errorf("the limiter was asked %d times", n)
	}
}

// Of two limits in a chain each tells its own.
func TestTwoLimits(t *testing.T) {
	outer, err := grpclimit.New(bucket(t, limit.PerMinute(5)), grpclimit.Options{Tell: true})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := grpclimit.New(bucket(t, limit.PerMinute(1)), grpclimit.Options{Tell: true, Policy: "inner"})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, append(outer.ServerOptions(), inner.ServerOptions()...))
	var trailer metadata.MD
	for _, want := range []string{"[4 0]", "[3 0]"} {
		err := calls["unary"](soon(t), s, grpc.Trailer(&trailer))
		if got := fmt.Sprint(trailer[grpclimit.TrailerRemaining]); got != want {
			t.Errorf("remaining %s, want %s", got, want)
		}
		if _, quota := details(t, err); err != nil && quota.GetViolations()[0].GetQuotaId() != "inner" {
			t.Errorf("denied by %v", quota)
		}
	}
}
