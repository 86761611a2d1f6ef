package hybrid_test

import (
	"testing"
	"testing/synctest"

	"github.com/hybridlimit/hybrid"
)

func TestStatsCountAnswersThatBringTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		lim := hybrid.PerMinute(100)
		l := newLimiter(t, b, lim, hybrid.Options{LeaseSize: 10})
		count := func(when string, calls, leases, leased int64) {
			t.Helper()
			synctest.Wait() // for what is asked for ahead of need
			if s := l.Stats(); s.Calls != calls || s.Leases != leases || s.Leased != leased {
				t.Errorf("%s: %d calls, %d leases of %d tokens, want %d, %d and %d", when, s.Calls, s.Leases, s.Leased, calls, leases, leased)
			}
		}
		count("at first", 0, 0, 0)
		ask(t, l, "a", 1)
		count("the first lease", 1, 1, 9)
		ask(t, l, "b", 0)
		count("a look", 2, 1, 9)
		for range 9 {
			ask(t, l, "a", 1)
		}
		count("the next lease", 3, 2, 19)
		closeLimiter(t, l)
		count("after Close", 4, 2, 19)

		l = newLimiter(t, b, lim, hybrid.Options{Exact: true})
		ask(t, l, "c", 1)
		count("exact", 1, 0, 0)
		closeLimiter(t, l)
	})
}
