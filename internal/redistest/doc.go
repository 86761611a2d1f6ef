// Package redistest is what tests and benchmarks need of Redis: a real server that can be killed and paused, a proxy
// that loses and delays replies, and a clock for scripts that only the test moves.
//
// A test of scripts runs on miniredis and on a real server, with the same time in both:
//
//	redistest.Each(t, start, func(t *testing.T, b *redistest.Backend) {
//		// use b.Client, then
//		b.Advance(time.Second)
//	})
//
// A test of failures starts a server of its own and puts a proxy in front of it:
//
//	srv := redistest.Start(t)
//	proxy := redistest.NewProxy(t, srv.Addr())
//	proxy.DropReplies(1)
//
// What clients meet in production has a server, or several, of its own: [StartTLS], [StartSentinel], [StartCluster]. A
// Ring is Start called several times.
//
// Tests that need redis-server are skipped where it is not installed, and fail there if HYBRID_REQUIRE_REDIS=1.
//
// The package never belongs in production code: it imports testing.
package redistest
