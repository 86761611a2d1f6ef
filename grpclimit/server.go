package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hybridlimit/hybrid/limit"
)

// Server limits the calls to a gRPC server. It keeps nothing of a call, so one may serve any number of servers; they then
// share the limits. It is safe for concurrent use and must be made by New.
type Server struct {
	limiter limit.Limiter
	limits  limit.Describer // nil if the limiter is none
	opts    Options
}

// New returns a Server that asks l about each call. Errors wrap limit.ErrInvalid.
//
// If l is a limit.Describer, as all limiters of this module are, clients are told its limits; else only what is in a
// limit.Result.
func New(l limit.Limiter, opts Options) (*Server, error) {
	if isNil(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", limit.ErrInvalid)
	}
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{limiter: l, opts: opts}
	s.limits, _ = l.(limit.Describer)
	return s, nil
}

// isNil also finds a nil pointer in an interface that is not nil itself.
func isNil(l any) bool {
	v := reflect.ValueOf(l)
	return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// ServerOptions are Unary and Stream as options of grpc.NewServer. They are added behind interceptors that were given
// before.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary()), grpc.ChainStreamInterceptor(s.Stream())}
}

// Unary limits unary calls.
func (s *Server) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		call := Call{Method: info.FullMethod, Request: req}
		key, err := s.keyOf(ctx, call)
		if err == nil && key != "" {
			var trailer metadata.MD
			if trailer, err = s.admit(ctx, call, key); trailer != nil {
				_ = grpc.SetTrailer(ctx, trailer) // fails only without a server, where there is nobody to tell
			}
		}
		if err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// Stream limits streams: when they are opened, or with Options.PerMessage when they receive.
func (s *Server) Stream() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, call := stream.Context(), Call{Method: info.FullMethod}
		key, err := s.keyOf(ctx, call)
		switch {
		case err != nil:
			return err
		case key == "":
			return handler(srv, stream)
		case s.opts.PerMessage:
			counted := &countedStream{ServerStream: stream, server: s, call: call, key: key}
			return counted.end(handler(srv, counted))
		}
		trailer, err := s.admit(ctx, call, key)
		if trailer != nil {
			stream.SetTrailer(trailer)
		}
		if err != nil {
			return err
		}
		return handler(srv, stream)
	}
}

// keyOf returns the key of a call, the empty one if it is not limited, or the status of a call without a good key.
func (s *Server) keyOf(ctx context.Context, call Call) (string, error) {
	if s.opts.skips(ctx, call) {
		return "", nil
	}
	key, err := s.opts.Key(ctx, call)
	if err == nil && key == "" {
		err = ErrNoKey
	}
	switch {
	case err == nil:
		return key, nil
	case s.opts.AllowNoKey && errors.Is(err, ErrNoKey):
		return "", nil
	}
	return "", s.fail(ctx, call, err)
}

// admit decides a call. It returns nil, or the status that refuses it, and in either case what to put into the trailer.
func (s *Server) admit(ctx context.Context, call Call, key string) (metadata.MD, error) {
	cost := 1
	if s.opts.Cost != nil {
		cost = s.opts.Cost(ctx, call)
	}
	res, err := s.limiter.AllowN(ctx, key, cost)
	if err != nil {
		if s.opts.FailOpen && errors.Is(err, limit.ErrUnavailable) {
			return nil, nil
		}
		return nil, s.fail(ctx, call, err)
	}
	if res.Allowed && !s.opts.Tell {
		return nil, nil
	}
	var lim limit.Limit // the zero Limit where it is not known
	if s.limits != nil {
		lim = s.limits.LimitOf(key)
	}
	trailer := metadata.MD{}
	if s.opts.Tell {
		tell(trailer, lim, res)
	}
	if res.Allowed {
		return trailer, nil
	}
	return trailer, s.deny(ctx, call, key, lim, res, trailer)
}
