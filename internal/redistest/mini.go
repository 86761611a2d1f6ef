package redistest

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// NewMini returns a miniredis with one clock for TIME and for expiry, which SetTime moves and nothing else, and a
// client of it. tb's Cleanup closes both.
func NewMini(tb testing.TB, start time.Time) (*miniredis.Miniredis, *redis.Client) {
	tb.Helper()
	m := miniredis.RunT(tb)
	m.SetTime(start)
	m.ClockTTL(true)
	return m, newClient(tb, m.Addr())
}
