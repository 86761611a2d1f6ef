// Package hybrid limits rates across processes without asking Redis for every request.
//
// One limit holds for each key in all processes that share a Redis. A process leases tokens from the key's token
// bucket in Redis, as many as it needs for a moment, and answers requests from its own memory until they are spent.
// Callers who find none share one call for more.
//
//	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{})
//	...
//	res, err := lim.Allow(ctx, "customer-42")
//	if err == nil && !res.Allowed {
//		// too many requests: try again after res.RetryAfter
//	}
//
// # Promises
//
// 1. Never above the limit. In every window of length W all processes together admit at most
//
//	Burst + Rate*W + Slack*Burst
//
// tokens, Slack being 0 unless Options say otherwise. Lost, late and repeated replies, crashes and forgotten keys do not
// change it. What does is a short list, each with its own bound: docs/guarantees.md.
//
// 2. Bounded cost of leasing. At most MaxLeased of the burst is lent at once, for at most LeaseTTL. In the long run and
// under overload Rate is admitted; what is missed against one bucket is a one-off of about Rate*Refresh.
//
// 3. Bounded load on Redis. The calls per second for one key and process depend on Burst/Rate and the round trip, not on
// how many requests there are, whether the key is busy, dry or flooded.
//
// 4. No false denials. With one process a request is denied only when the tokens are not there, or because a bucket that
// was found dry is not asked again for at most a second. With several, also only while the bucket is nearly dry. Never
// because of how callers share a call: each is paid from its own batch.
//
// 5. It answers when Redis does not: within Options.Timeout at first (twice that at most, for who had to wait for a call
// that was out already), at once afterwards. Tokens that are held stay good until their lease ends; then
// Options.OnFailure decides: by the process's share of the limit, not at all, or always yes. Result.Origin tells. New does
// no I/O, and everything recovers by itself, as a rule within a second of Redis being well.
//
// 6. Bounded memory: at most MaxKeys keys. Forgetting one never hands out a fresh allowance, because the bucket in Redis
// decides.
//
// # Waiting, costs that are not known yet, several limits
//
// Wait waits for tokens, in the order of arrival. Reserve takes an estimate and Settle corrects it. TakeAll takes from
// several keys or from none.
//
// # Exactness
//
// With Options.Exact, and in package remote, Redis decides every request. Exact and leasing processes may share a key.
//
// # Related packages
//
// Package remote decides in Redis by five algorithms, package local in the memory of one process. All limiters implement
// limit.Limiter, so they can be exchanged and compared. Package httplimit is middleware for net/http; package tally counts
// the decisions of any limiter. Modules of their own beside this one: grpclimit, promlimit, otellimit.
//
// # Testing
//
// NewFrom takes any lease.Source; package lease/leasetest has one in memory, with faults to order. New works with
// miniredis, which expires keys only after ClockTTL(true). Everything that waits, waits on channels and timers, so code that uses a Limiter can be tested in a
// testing/synctest bubble.
package hybrid
