// Package grpclimit puts limits on gRPC calls: a [Server] with interceptors that refuse calls and a [Client] with
// interceptors that hold them back. It works with every [limit.Limiter].
//
//	limits, err := grpclimit.New(limiter, grpclimit.Options{Key: grpclimit.ByMetadata("x-api-key")})
//	...
//	srv := grpc.NewServer(limits.ServerOptions()...)
//
// A call that the limiter denies ends with codes.ResourceExhausted and the details RetryInfo and QuotaFailure of package
// errdetails, and its handler does not run. A limiter that cannot decide is an outage and no denial: the code is
// Unavailable, see [Code]. What clients are told travels in the trailer: a header would keep them from trying again.
//
// Without [Options] calls are counted by the address of the TCP peer.
//
// The package starts no goroutine, logs nothing, and puts no key into a status or a trailer unless it is told to.
//
// It is a module of its own, so that who does not use gRPC does not depend on it.
package grpclimit
