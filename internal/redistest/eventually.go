package redistest

import (
	"testing"
	"time"
)

// eventually waits for what another process or goroutine is about to do.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(startTimeout); !ok(); time.Sleep(poll) {
		if time.Now().After(end) {
			tb.Fatalf("redistest: %s: not so after %v", what, startTimeout)
		}
	}
}
