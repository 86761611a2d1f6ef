package main

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"

	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/limit"
)

// newServer returns a server behind the limit. Its service is one that comes with gRPC, so that no code has to be
// generated.
func newServer(lim limit.Limiter) (*grpc.Server, error) {
	limits, err := grpclimit.New(lim, grpclimit.Options{
		// Behind a proxy: grpclimit.ByAddr(netip.MustParsePrefix("10.0.0.0/8")).
		Key: grpclimit.ByAddr(),
		SkipMethods: []string{
			"/grpc.health.v1.Health/",
			"/grpc.reflection.v1.ServerReflection/",
			"/grpc.reflection.v1alpha.ServerReflection/",
		},
		PerMessage: true,
		Policy:     "api",
		Tell:       true,
	})
	if err != nil {
		return nil, err
	}
	srv := grpc.NewServer(limits.ServerOptions()...)
	grpc_testing.RegisterTestServiceServer(srv, service{})
	grpc_health_v1.RegisterHealthServer(srv, health.NewServer())
	reflection.Register(srv)
	return srv, nil
}

// service answers what it is sent.
type service struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (service) UnaryCall(_ context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{Payload: in.GetPayload()}, nil
}

func (service) FullDuplexCall(stream grpc_testing.TestService_FullDuplexCallServer) error {
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}
