package hybrid

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/lease/leasetest"
)

// One attempt for those who wait is out at a time, whatever timers fire: two would charge them twice.
func TestOneAttemptForWaitersAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := leasetest.NewSource()
		l, err := NewFrom(src, PerHour(3600).WithBurst(10), Options{Exact: true})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(context.Background())
		if r, err := l.AllowN(t.Context(), "k", 8); err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
		src.Next(leasetest.Fault{Delay: 20 * time.Millisecond, Reply: 20 * time.Millisecond})
		done := make(chan error, 1)
		go func() { done <- l.Wait(t.Context(), "k") }()
		synctest.Wait()
		e, _ := l.keys.Get("k")
		a := e.account.Load()
		e.serve(a) // while the first is out
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if r, err := l.AllowN(t.Context(), "k", 0); err != nil || r.Remaining != 1 {
			t.Errorf("%+v, %v: want 10 less 8 less 1 left", r, err)
		}
	})
}
