package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hybridlimit/hybrid/limit"
)

// Code is the code for an error of a limiter or a KeyFunc:
//
//	InvalidArgument     ErrNoKey, limit.ErrInvalidKey, limit.ErrInvalidTokens: the call is at fault
//	FailedPrecondition  limit.ErrExceedsBurst: it costs more than is ever allowed at once. Of all codes this is the one
//	                    that tells clients not to send it again
//	ResourceExhausted   limit.ErrWouldExceedDeadline: a Client may not send it in time. It is the limit, and no outage
//	Unavailable         limit.ErrUnavailable, limit.ErrClosed: nobody could decide
//	Canceled            context.Canceled
//	DeadlineExceeded    context.DeadlineExceeded
//	Internal            all others
//
// An error in the chain that is a gRPC status already, such as one of codes.Unauthenticated made by a KeyFunc, keeps its
// code.
func Code(err error) codes.Code {
	is := func(target error) bool { return errors.Is(err, target) }
	if st, ok := statusOf(err); ok {
		return st.Code()
	}
	switch {
	case is(ErrNoKey), is(limit.ErrInvalidKey), is(limit.ErrInvalidTokens):
		return codes.InvalidArgument
	case is(limit.ErrExceedsBurst):
		return codes.FailedPrecondition
	case is(limit.ErrWouldExceedDeadline):
		return codes.ResourceExhausted
	case is(limit.ErrUnavailable), is(limit.ErrClosed):
		return codes.Unavailable
	case is(context.Canceled):
		return codes.Canceled
	case is(context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return codes.Internal
}

// statusOf finds a status in the chain of err. One that says OK is none: it would admit the call that it should refuse.
func statusOf(err error) (*status.Status, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &s) {
		return nil, false
	}
	st := s.GRPCStatus()
	return st, st.Code() != codes.OK
}

// explain says to the sender of a call what err means for him. The text of the error itself is for the operator.
func explain(err error) string {
	switch {
	case errors.Is(err, ErrNoKey):
		return "the call does not say who sends it, so it cannot be counted"
	case errors.Is(err, limit.ErrInvalidKey):
		return "who sends the call cannot be told from what it says"
	case errors.Is(err, limit.ErrInvalidTokens):
		return "what the call costs cannot be told from it"
	case errors.Is(err, limit.ErrExceedsBurst):
		return "the call costs more than is ever allowed at once; waiting does not help, make it smaller"
	case Code(err) == codes.Unavailable:
		return "the limit cannot be checked at the moment"
	case Code(err) == codes.Canceled, Code(err) == codes.DeadlineExceeded:
		return "the call ended before its limit was checked"
	}
	return "the limit could not be checked"
}
