// Package leasetest is for testing code that limits rates, without Redis.
//
// [Source] stands in for Redis, and decides as the script there does: give one to hybrid.NewFrom, or the same one to
// several limiters that play several processes. It runs in the time of time.Now, so in a bubble of testing/synctest
// minutes pass in an instant:
//
//	func TestQuota(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			src := leasetest.NewSource()
//			l, err := hybrid.NewFrom(src, hybrid.PerMinute(100), hybrid.Options{})
//			// ...
//		})
//	}
//
// What goes wrong between a process and Redis can be made to happen: see [Fault], [Source.Next], [Source.Always] and
// [Source.Down].
//
// [Envelope] records what was admitted and says whether it was ever more than a limit allows. [Bucket] is the bucket
// behind a Source, alone.
package leasetest
