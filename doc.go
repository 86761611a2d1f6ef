// Package hybrid limits rates across processes without asking Redis for every request.
//
// One limit holds for each key in all processes that share a Redis. A process leases tokens from the key's token
// bucket in Redis, a batch at a time, and answers requests from its own memory until they are spent. Callers who find
// none share one call for the next batch.
//
//	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{})
//	...
//	res, err := lim.Allow(ctx, "customer-42")
//	if err == nil && !res.Allowed {
//		// too many requests: try again after res.RetryAfter
//	}
//
// # What it promises
//
// Tokens are paid before they are spent, so in the long run all processes together admit Rate and not more. At any
// moment each of n processes may hold up to Stats.LeaseSize tokens that it has fetched but not spent, while the bucket
// refills behind its back. In every window of length W all processes together therefore admit at most
//
//	Burst + Rate*W + n*LeaseSize
//
// A lease ends after Stats.LeaseTTL. Lost replies, crashes and forgotten keys lose tokens, which come back by refill;
// they never add any. A request is denied only when the bucket, at the time it was last asked, could not pay it; such a
// denial is remembered for at most a second.
//
// What Redis itself forgets (a flush, an eviction, a failover to a replica that lags) fills the bucket again: at most
// Burst more, once.
//
// # When Redis does not answer
//
// Tokens that are held stay good until their lease ends. A request that needs Redis returns an error that wraps
// ErrUnavailable, after Options.Timeout at the latest; what to do then is the caller's choice. No goroutine and no call
// outlives its Timeout, unless the client ignores deadlines (go-redis: set ContextTimeoutEnabled); then it ends with
// the client's ReadTimeout.
//
// # Related packages
//
// Package remote decides every request in Redis, by five algorithms. Package local decides in the memory of one process.
// All limiters implement limit.Limiter, so they can be exchanged and compared.
//
// # Testing
//
// NewFrom takes any lease.Source. New works with miniredis. Everything that waits, waits on channels and timers, so code
// that uses a Limiter can be tested in a testing/synctest bubble.
package hybrid
