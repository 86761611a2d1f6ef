package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would report that it cannot reach the servers that are down on purpose
	goleak.VerifyTestMain(m)
}

// bucket is a token bucket whose clock stands still.
func bucket(t testing.TB, lim limit.Limit) *local.TokenBucket {
	t.Helper()
	now := time.Unix(1_800_000_000, 0)
	l, err := local.NewTokenBucket(lim, local.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// scripted is a limiter that decides what its script says, and at the end of it allows. It describes no limit.
type scripted struct {
	script []decision
	calls  atomic.Int64
}

type decision struct {
	res limit.Result
	err error
}

func (s *scripted) Allow(ctx context.Context, key string) (limit.Result, error) {
	return s.AllowN(ctx, key, 1)
}

func (s *scripted) AllowN(context.Context, string, int) (limit.Result, error) {
	if n := s.calls.Add(1); n <= int64(len(s.script)) {
		d := s.script[n-1]
		return d.res, d.err
	}
	return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Remote}, Remaining: 7}, nil
}

// deciding is a limiter that always decides the same.
func deciding(res limit.Result, err error) *scripted {
	s := &scripted{}
	for range 100 {
		s.script = append(s.script, decision{res, err})
	}
	return s
}

func denied(retryAfter time.Duration) limit.Result {
	return limit.Result{Verdict: limit.Verdict{Origin: limit.Remote}, RetryAfter: retryAfter}
}

// service counts what comes through to its handlers.
type service struct {
	grpc_testing.UnimplementedTestServiceServer
	served, messages atomic.Int64
	deaf             bool // ends streams with success, whatever receiving them said
}

func (s *service) UnaryCall(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	s.served.Add(1)
	return &grpc_testing.SimpleResponse{}, nil
}

func (s *service) FullDuplexCall(stream grpc_testing.TestService_FullDuplexCallServer) error {
	s.served.Add(1)
	for {
		_, err := stream.Recv()
		switch {
		case err == io.EOF:
			return nil
		case err != nil && s.deaf:
			_, _ = stream.Recv()
			return nil
		case err != nil:
			return err
		}
		s.messages.Add(1)
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// site is a server and a connection to it.
type site struct {
	service
	conn   *grpc.ClientConn
	client grpc_testing.TestServiceClient
	health grpc_health_v1.HealthClient
}

// newSite serves behind a limit on a TCP port until the test ends.
func newSite(t testing.TB, l limit.Limiter, opts grpclimit.Options, dial ...grpc.DialOption) *site {
	t.Helper()
	s, err := grpclimit.New(l, opts)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, s.ServerOptions(), dial...)
}

func serve(t testing.TB, opts []grpc.ServerOption, dial ...grpc.DialOption) *site {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, ln, ln.Addr().String(), opts, dial...)
}

func serveOn(t testing.TB, ln net.Listener, target string, opts []grpc.ServerOption, dial ...grpc.DialOption) *site {
	t.Helper()
	s := &site{}
	srv := grpc.NewServer(opts...)
	grpc_testing.RegisterTestServiceServer(srv, &s.service)
	grpc_health_v1.RegisterHealthServer(srv, health.NewServer())
	ended := make(chan error)
	go func() { ended <- srv.Serve(ln) }()
	conn, err := grpc.NewClient(target, append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	s.conn, s.client, s.health = conn, grpc_testing.NewTestServiceClient(conn), grpc_health_v1.NewHealthClient(conn)
	return s
}

// calls are the two kinds: a unary call, and a stream with one message.
var calls = map[string]func(ctx context.Context, s *site, opts ...grpc.CallOption) error{
	"unary": func(ctx context.Context, s *site, opts ...grpc.CallOption) error {
		_, err := s.client.UnaryCall(ctx, &grpc_testing.SimpleRequest{}, opts...)
		return err
	},
	"stream": func(ctx context.Context, s *site, opts ...grpc.CallOption) error {
		_, err := s.stream(ctx, 1, opts...)
		return err
	},
}

// stream sends messages, each after the answer to the one before, and returns how many were answered.
func (s *site) stream(ctx context.Context, messages int, opts ...grpc.CallOption) (answered int, err error) {
	stream, err := s.client.FullDuplexCall(ctx, opts...)
	if err != nil {
		return 0, err
	}
	for range messages {
		// After the end of the stream sending fails with io.EOF, and receiving tells why.
		if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{}); err != nil && err != io.EOF {
			return answered, err
		}
		if _, err := stream.Recv(); err != nil {
			return answered, err
		}
		answered++
	}
	if err := stream.CloseSend(); err != nil {
		return answered, err
	}
	if _, err := stream.Recv(); err != io.EOF {
		return answered, err
	}
	return answered, nil
}

// wantCode compares the code of an error.
func wantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%v, want %v", err, want)
	}
}

// details finds the details of a status; what is not there is nil.
func details(t testing.TB, err error) (retry *errdetails.RetryInfo, quota *errdetails.QuotaFailure) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.QuotaFailure:
			quota = d
		default:
			t.Errorf("unexpected detail %v", d)
		}
	}
	return retry, quota
}

// told is how many entries a trailer has besides those of gRPC itself.
func told(trailer metadata.MD) int {
	n := len(trailer)
	for _, name := range []string{"content-type", "grpc-status-details-bin"} {
		if trailer[name] != nil {
			n--
		}
	}
	return n
}

// soon is for calls that take no time; a call that hangs fails the test.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var errSecret = errors.New("secret customer-42")

// transport stands for the stream that a server has for a call.
type transport struct{ trailer metadata.MD }

func (t *transport) Method() string               { return "" }
func (t *transport) SetHeader(metadata.MD) error  { return nil }
func (t *transport) SendHeader(metadata.MD) error { return nil }
func (t *transport) SetTrailer(md metadata.MD) error {
	t.trailer = md
	return nil
}
