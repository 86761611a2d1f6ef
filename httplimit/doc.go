// Package httplimit puts limits on HTTP requests: a [Middleware] for servers and a [Transport] for clients. It works with
// every [limit.Limiter] and needs nothing but the standard library.
//
//	mw, err := httplimit.New(limiter, httplimit.Options{Key: httplimit.ByHeader("X-Api-Key")})
//	...
//	http.ListenAndServe(addr, mw.Handler(mux))
//
// A request that the limiter denies is answered with 429, a Retry-After header and a body of problem details (RFC 9457).
// A limiter that cannot decide is an outage and no denial: it is answered with 503, without any rate headers. All
// answers tell the limit in X-RateLimit headers, and on demand in the fields of the IETF drafts ([Dialect]).
//
// Without [Options] requests are counted by the address of the TCP peer. Headers that name another address are believed
// only from proxies that are named, see [Addr].
//
// The package starts no goroutine, logs nothing, does not wrap the ResponseWriter, and puts no key into a header, an
// error or a body.
package httplimit
