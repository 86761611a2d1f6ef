package grpclimit_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/limit"
)

func TestPerMessage(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		l := bucket(t, limit.PerMinute(3))
		s := newSite(t, l, grpclimit.Options{PerMessage: true, Tell: true, MaxPushback: -1})
		s.deaf = deaf
		for range 5 { // opening is free
			wantAnswers(t, s, 0, 0, codes.OK)
		}
		wantAnswers(t, s, 2, 2, codes.OK)
		var trailer metadata.MD
		wantAnswers(t, s, 3, 1, codes.ResourceExhausted, grpc.Trailer(&trailer)) // also if the handler says that all is well
		if got := fmt.Sprint(trailer[grpclimit.TrailerRemaining]); got != "[0]" {
			t.Errorf("remaining %s: the trailer is not that of the last decision alone", got)
		}
		if n := s.messages.Load(); n != 3 {
			t.Errorf("the handler has got %d messages, want 3", n)
		}
		wantCode(t, calls["unary"](soon(t), s), codes.ResourceExhausted)
	}
}

func wantAnswers(t *testing.T, s *site, messages, answers int, code codes.Code, opts ...grpc.CallOption) {
	t.Helper()
	n, err := s.stream(soon(t), messages, opts...)
	wantCode(t, err, code)
	if n != answers {
		t.Errorf("%d answers to %d messages, want %d", n, messages, answers)
	}
}

func TestPerMessageAsksNoMoreAfterRefusal(t *testing.T) {
	l := &scripted{script: []decision{{res: denied(1)}}}
	s := newSite(t, l, grpclimit.Options{PerMessage: true})
	s.deaf = true // it receives again
	wantAnswers(t, s, 1, 0, codes.ResourceExhausted)
	if n := l.calls.Load(); n != 1 {
		t.Errorf("the limiter was asked %d times", n)
	}
}

func TestPerMessageCost(t *testing.T) {
	l := bucket(t, limit.PerMinute(1000))
	s := newSite(t, l, grpclimit.Options{PerMessage: true, Cost: func(_ context.Context, call grpclimit.Call) int {
		return len(call.Request.(*grpc_testing.StreamingOutputCallRequest).GetPayload().GetBody())
	}})
	stream, err := s.client.FullDuplexCall(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		size int
		code codes.Code
	}{{600, codes.OK}, {400, codes.OK}, {0, codes.OK}, {1, codes.ResourceExhausted}} {
		msg := &grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: make([]byte, tt.size)}}
		if err := stream.Send(msg); err != nil {
			t.Fatal(err)
		}
		_, err := stream.Recv()
		wantCode(t, err, tt.code)
	}
}

// The key of a stream is that of its opening: nobody is asked for it again with each message.
func TestPerMessageKey(t *testing.T) {
	asked := 0
	s := newSite(t, bucket(t, limit.PerMinute(9)), grpclimit.Options{PerMessage: true, Key: func(context.Context, grpclimit.Call) (string, error) {
		asked++
		return "k", nil
	}})
	wantAnswers(t, s, 3, 3, codes.OK)
	if asked != 1 {
		t.Errorf("the key was asked for %d times", asked)
	}

	s = newSite(t, &scripted{}, grpclimit.Options{PerMessage: true, Key: grpclimit.ByMetadata("user")})
	wantAnswers(t, s, 1, 0, codes.InvalidArgument)
	if s.served.Load() != 0 {
		t.Error("the handler was called without a key")
	}
	s = newSite(t, deciding(denied(1), nil), grpclimit.Options{PerMessage: true, AllowNoKey: true, Key: grpclimit.ByMetadata("user")})
	wantAnswers(t, s, 1, 1, codes.OK)
}
