package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// talk makes calls until the limit denies them, and prints what a client sees. Denials are no error.
func talk(ctx context.Context, addr string, stdout io.Writer) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	service := grpc_testing.NewTestServiceClient(conn)

	for range 3 {
		var header, trailer metadata.MD
		_, err := service.UnaryCall(ctx, &grpc_testing.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err := show(stdout, "UnaryCall", err, header, trailer); err != nil {
			return err
		}
	}

	stream, err := service.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{}); err != nil {
		return err
	}
	_, err = stream.Recv()
	header, _ := stream.Header()
	if err := show(stdout, "FullDuplexCall, the first message", err, header, stream.Trailer()); err != nil {
		return err
	}

	var trailer metadata.MD
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Trailer(&trailer))
	return show(stdout, "Health/Check, which is not limited", err, nil, trailer)
}

// show prints how a call has ended. It returns the error if it is not a denial.
func show(stdout io.Writer, what string, err error, header, trailer metadata.MD) error {
	st := status.Convert(err)
	fmt.Fprintf(stdout, "%s\n    code     %v\n", what, st.Code())
	if st.Message() != "" {
		fmt.Fprintf(stdout, "    message  %s\n", st.Message())
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			fmt.Fprintf(stdout, "    detail   RetryInfo: retry_delay %v\n", d.GetRetryDelay().AsDuration())
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				fmt.Fprintf(stdout, "    detail   QuotaFailure: subject %q, description %q, quota_id %q\n", v.GetSubject(), v.GetDescription(), v.GetQuotaId())
			}
		}
	}
	showMetadata(stdout, "header ", header)
	showMetadata(stdout, "trailer", trailer)
	fmt.Fprintln(stdout)
	if st.Code() == codes.ResourceExhausted {
		return nil
	}
	return err
}

// showMetadata prints what is not of gRPC itself, in the order of the names.
func showMetadata(stdout io.Writer, what string, md metadata.MD) {
	var lines []string
	for name, values := range md {
		if name != "content-type" && name != "grpc-status-details-bin" {
			lines = append(lines, fmt.Sprintf("    %s  %s: %s\n", what, name, strings.Join(values, ", ")))
		}
	}
	slices.Sort(lines)
	fmt.Fprint(stdout, strings.Join(lines, ""))
}
