package flight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// A batch that times out while it waits for the flight before it must not take callers who come after that: they have
// their own time to wait, and the flight may land in it.
func TestNobodyJoinsABatchThatTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		g := New(100 * time.Millisecond)
		release := make(chan struct{})
		first := true
		send := func(_ context.Context, _ string, costs []lease.Run) ([]lease.Paid, error) {
			if first {
				first = false
				<-release // longer than its context allows
			}
			paid := make([]lease.Paid, len(costs))
			for i, c := range costs {
				paid[i] = lease.Paid{Cost: c.Cost, Admitted: c.Count, Allowed: limit.Result{Verdict: limit.Verdict{Allowed: true}}}
			}
			return paid, nil
		}
		do := func(want error) {
			if r, err := g.Do(ctx, "key", 1, send); !errors.Is(err, want) || r.Allowed != (want == nil) {
				t.Errorf("%+v, %v; want %v", r, err, want)
			}
		}
		go do(limit.ErrUnavailable) // flies, and its flight hangs
		synctest.Wait()
		go do(limit.ErrUnavailable) // waits for that flight until it times out as well
		synctest.Wait()
		time.Sleep(101 * time.Millisecond)
		go do(nil)
		synctest.Wait()
		time.Sleep(50 * time.Millisecond)
		close(release)
		synctest.Wait()
	})
}
