package grpclimit

import (
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// countedStream counts the messages that it receives.
type countedStream struct {
	grpc.ServerStream
	server *Server
	call   Call
	key    string

	// refused is set by the receiver and read when the handler has returned, which may leave a goroutine behind that is
	// still receiving; so is told, the trailer of the last decision.
	refused atomic.Pointer[error]
	told    atomic.Pointer[metadata.MD]
}

// RecvMsg receives a message and decides about it: its cost may depend on what it says. After a refusal the limiter is not
// asked again.
func (c *countedStream) RecvMsg(m any) error {
	if err := c.refused.Load(); err != nil {
		return *err
	}
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	call := c.call
	call.Request = m
	trailer, err := c.server.admit(c.Context(), call, c.key)
	if trailer != nil {
		c.told.Store(&trailer)
	}
	if err != nil {
		c.refused.Store(&err)
	}
	return err
}

// end returns with what the stream ends. A refusal stays one, whatever the handler has made of it.
func (c *countedStream) end(err error) error {
	if trailer := c.told.Load(); trailer != nil {
		c.SetTrailer(*trailer)
	}
	if refused := c.refused.Load(); refused != nil {
		return *refused
	}
	return err
}
