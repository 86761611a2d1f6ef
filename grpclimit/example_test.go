package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

// limiter returns one in memory, so that the examples need no Redis. A service has one of package hybrid.
func limiter(lim limit.Limit) limit.Limiter {
	l, err := local.NewTokenBucket(lim, local.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// exampleServe registers the health service and serves it.
func exampleServe(srv *grpc.Server) (addr string, stop func()) {
	grpc_health_v1.RegisterHealthServer(srv, health.NewServer())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- srv.Serve(ln) }()
	return ln.Addr().String(), func() {
		srv.Stop()
		<-ended
	}
}

func check(conn *grpc.ClientConn, opts ...grpc.CallOption) error {
	_, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{}, opts...)
	return err
}

func ExampleNew() {
	lim := limiter(limit.PerMinute(1)) // in a service: hybrid.New(rdb, hybrid.PerMinute(1), hybrid.Options{})

	limits, err := grpclimit.New(lim, grpclimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	srv := grpc.NewServer(limits.ServerOptions()...)
	addr, stop := exampleServe(srv)
	defer stop()

	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for range 2 {
		err := check(conn)
		st := status.Convert(err)
		fmt.Println(st.Code())
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *errdetails.RetryInfo:
				fmt.Println("try again in", d.GetRetryDelay().AsDuration().Round(time.Second))
			case *errdetails.QuotaFailure:
				fmt.Println(d.GetViolations()[0].GetDescription())
			}
		}
	}
	// Output:
	// OK
	// ResourceExhausted
	// try again in 1m0s
	// the limit of 1/m is reached
}

func ExampleOptions_tell() {
	limits, err := grpclimit.New(limiter(limit.PerMinute(10)), grpclimit.Options{Tell: true})
	if err != nil {
		log.Fatal(err)
	}
	addr, stop := exampleServe(grpc.NewServer(limits.ServerOptions()...))
	defer stop()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	var trailer metadata.MD
	if err := check(conn, grpc.Trailer(&trailer)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(trailer.Get(grpclimit.TrailerRemaining), "of", trailer.Get(grpclimit.TrailerLimit))
	// Output: [9] of [10]
}

func ExampleBy() {
	type userKey struct{}
	user := grpclimit.By("user", func(ctx context.Context, _ grpclimit.Call) (string, error) {
		name, ok := ctx.Value(userKey{}).(string) // put there by the interceptor before, which has checked it
		if !ok {
			return "", grpclimit.ErrNoKey
		}
		return name, nil
	})
	each := grpclimit.Join(user, grpclimit.ByMethod())

	ctx := context.WithValue(context.Background(), userKey{}, "alice")
	fmt.Println(each(ctx, grpclimit.Call{Method: "/shop.Orders/List"}))
	// Output: 10:user:alice24:method:/shop.Orders/List <nil>
}

func ExampleOptions_cost() {
	opts := grpclimit.Options{
		SkipMethods: []string{"/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/"},
		PerMessage:  true,
		Cost: func(_ context.Context, call grpclimit.Call) int {
			if in, ok := call.Request.(*grpc_testing.StreamingOutputCallRequest); ok {
				return 1 + len(in.GetPayload().GetBody())/1024
			}
			return 1
		},
	}
	in := &grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 4096)}}
	fmt.Println(opts.Cost(context.Background(), grpclimit.Call{Request: in}))
	// Output: 5
}

func ExampleOptions_onError() {
	opts := grpclimit.Options{
		OnError: func(_ context.Context, _ grpclimit.Call, err error) error {
			if errors.Is(err, limit.ErrUnavailable) {
				return status.Error(codes.Internal, "the limit cannot be checked")
			}
			return nil // as it would be without OnError
		},
	}
	fmt.Println(opts.OnError(context.Background(), grpclimit.Call{}, limit.ErrUnavailable))
	fmt.Println(opts.OnError(context.Background(), grpclimit.Call{}, limit.ErrInvalidKey))
	// Output:
	// rpc error: code = Internal desc = the limit cannot be checked
	// <nil>
}

func ExampleNewClient() {
	lim, err := hybrid.NewFrom(leasetest.NewSource(), hybrid.PerMinute(1), hybrid.Options{}) // in a service: hybrid.New
	if err != nil {
		log.Fatal(err)
	}
	defer lim.Close(context.Background())
	addr, stop := exampleServe(grpc.NewServer())
	defer stop()

	waits, err := grpclimit.NewClient(lim, grpclimit.ClientOptions{Retries: 1})
	if err != nil {
		log.Fatal(err)
	}
	opts := append(waits.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(addr, opts...)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range 2 {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if errors.Is(err, limit.ErrWouldExceedDeadline) { // it would have had to wait for too long
			before, _, _ := strings.Cut(err.Error(), ": limit")
			fmt.Println(status.Code(err), "-", before)
			continue
		}
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// ResourceExhausted - grpclimit: the call was not sent
}
