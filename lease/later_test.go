package lease_test

import (
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// A wait that is never over stays that when the clock of the bucket lags.
func TestGrant_Pay_neverWithLag(t *testing.T) {
	lim := limit.Every(285 * 365 * 24 * time.Hour)
	g := lease.Grant{Admitted: []int{0}, Level: -1, Lag: time.Second}
	got := g.Pay(lim, []lease.Run{{Cost: 1, Count: 1}}, 0)[0].Denied
	if got.RetryAfter != limit.Never || got.ResetAfter != limit.Never {
		t.Errorf("%+v, want never", got)
	}
}
