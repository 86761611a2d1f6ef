// Package benchmarks compares the modes of hybrid with each other; package peers, below it, compares them with other
// libraries, and peers/yardsticks with the numbers they are meant to reach.
//
//	go test -bench . ./benchmarks
//
// BenchmarkAllow is speed: the cost of a decision that a limit never denies, for leases of several sizes, for the five
// algorithms in Redis and for those in memory, on one hot key or 10,000 keys with a Zipf distribution, asked by 1 or 64
// goroutines. Beside ns/op it reports
//
//	redis-calls/op   scripts (EVAL, EVALSHA) sent to Redis
//	round-trips/op   writes to a connection, each of which waits for its replies
//	p99-us           the 99th percentile of a decision, in microseconds
//
// BenchmarkAccuracy is how well the limit is kept: four instances share it, twice as much is asked for as it admits.
// It reports
//
//	admitted/ideal        of Burst + Rate*W, what a perfect bucket would have admitted
//	offered/ideal         how much was asked for
//	redis-calls/decision  what a decision cost meanwhile
//
// A benchmark fails when a mode admits more than it promises or needs more calls than it should.
//
// They use the Redis that HYBRID_REDIS_ADDR names (host:port), else start a redis-server if one is installed, else a
// miniredis, whose times say little about Redis. The line "redis:" at the start says which; benchstat reads it.
package benchmarks
