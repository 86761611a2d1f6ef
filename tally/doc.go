// Package tally counts what a limiter decides.
//
// A hybrid.Limiter takes a few nanoseconds for a decision from memory and writes one word; to count each of them in there
// would double that for everybody. So decisions are counted by who asks for it, around any [limit.Limiter]:
//
//	counted, err := tally.New(lim, tally.Options{})
//	...
//	mw, err := httplimit.New(counted, httplimit.Options{})
//
// Counts are kept by outcome and origin, and by class if [Options] name one. A key never becomes a class by itself.
//
// Packages promlimit and otellimit, modules of their own, export the counts.
//
// # What is not counted
//
// Only calls of Allow and AllowN of the [Limiter] are. A call of the limiter inside, of its handles (hybrid.Key), Wait,
// Reserve and TakeAll go past it, and so do looks (n = 0), which decide nothing. How many tokens were spent overall does
// not depend on that: of those leased it is Leased - Held - Returned - Expired of hybrid.Stats.
package tally
