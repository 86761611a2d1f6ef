package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hybridlimit/hybrid/limit"
)

// deny returns the status of a call that was denied.
func (s *Server) deny(ctx context.Context, call Call, key string, lim limit.Limit, res limit.Result, trailer metadata.MD) error {
	wait := max(1, res.RetryAfter) // a client that is told 0, or less, comes back at once
	if s.opts.MaxPushback >= 0 {
		pushBack(trailer, wait, s.opts.MaxPushback)
	}
	if s.opts.OnLimited != nil {
		if err := s.opts.OnLimited(ctx, call, res); err != nil {
			return err
		}
	}
	subject := s.opts.Policy
	if s.opts.Subject != nil {
		subject = strings.ToValidUTF8(s.opts.Subject(key), "\uFFFD") // else no detail could be sent at all
	}
	what := "the limit is reached"
	if lim.Validate() == nil && lim.Rate > 0 && res.Origin != limit.Fallback {
		what = fmt.Sprintf("the limit of %v is reached", lim)
	}
	message := "too many calls: try again in " + (time.Duration(ceil(min(wait, limit.Never-time.Millisecond), time.Millisecond)) * time.Millisecond).String()
	details := []protoadapt.MessageV1{retryInfo(wait)}
	if res.RetryAfter == limit.Never {
		what = "no calls are allowed"
		message = "not allowed: waiting does not change that"
		details = nil
	}
	details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
		Subject: subject, Description: what, QuotaId: s.opts.Policy,
	}}})
	return withDetails(codes.ResourceExhausted, message, details...)
}

// fail returns the status of a call about which nothing was decided.
func (s *Server) fail(ctx context.Context, call Call, err error) error {
	if s.opts.OnError != nil {
		if own := s.opts.OnError(ctx, call, err); own != nil {
			return own
		}
	}
	if st, ok := statusOf(err); ok {
		return st.Err()
	}
	var known interface{ RetryAfter() time.Duration }
	if errors.As(err, &known) && known.RetryAfter() != limit.Never {
		return withDetails(Code(err), explain(err), retryInfo(max(0, known.RetryAfter())))
	}
	return status.Error(Code(err), explain(err))
}

func retryInfo(d time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

func withDetails(code codes.Code, message string, details ...protoadapt.MessageV1) error {
	st := status.New(code, message)
	if with, err := st.WithDetails(details...); err == nil {
		st = with
	}
	return st.Err()
}
