package hybrid_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
)

// The cases of the files cases_*_test.go were once bugs of other limiters. Where one is about leases from windows, the point of it is
// applied to the bucket.

// inEachMode runs a test with a limiter of each mode in a bubble of its own.
func inEachMode(t *testing.T, lim limit.Limit, f func(t *testing.T, b *bank, l *hybrid.Limiter, exact bool)) {
	t.Helper()
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBank()
				l := newLimiter(t, b, lim, opts)
				defer closeLimiter(t, l)
				f(t, b, l, opts.Exact)
			})
		})
	}
}

// sleepUntil waits until some time after start.
func sleepUntil(start time.Time, after time.Duration) { time.Sleep(time.Until(start.Add(after))) }

// few checks a count that is exact where Redis decides, and where denials are remembered for some time may be a little
// less, but never more.
func few(t *testing.T, what string, got, want, less int, exact bool) {
	t.Helper()
	if exact {
		less = 0
	}
	if got > want || got < want-less {
		t.Errorf("%s: admitted %d, want %d", what, got, want)
	}
}
