package remote_test

import (
	"strings"
	"testing"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

func TestRESET01_Reset(t *testing.T) {
	each(t, allModes, per(5, 60), func(r *rig) {
		prefixed := startWith(r.t, r.b, r.b.Client, r.mode, per(5, 60), remote.Options{Prefix: "api:", Timeout: patience})
		for _, s := range []*rig{r, r.on(strings.Repeat("long", 100)), r.on("{a}b{"), prefixed} {
			if err := s.Reset(ctx, s.key); err != nil {
				s.t.Errorf("Reset of an unknown key: %v", err)
			}
			s.at(0).admitted(3)
			s.at(61).admitted(6) // the counter has two windows now
			if err := s.Reset(ctx, s.key); err != nil {
				s.t.Errorf("Reset: %v", err)
			}
			if got := r.b.Keys(); len(got) != 0 {
				s.t.Errorf("keys after Reset: %q", got)
			}
			s.run([]step{{61, 1, true, 4, 0}})
			if err := s.Reset(ctx, s.key); err != nil {
				s.t.Errorf("Reset: %v", err)
			}
		}
		if err := r.Reset(ctx, ""); err == nil {
			r.t.Error("Reset of an empty key: no error")
		}
	})
}

func TestRESET02_OtherProcessesSeeIt(t *testing.T) {
	each(t, allModes, per(5, 60), func(r *rig) {
		other := r.with(per(5, 60))
		r.admitted(6)
		if got := other.admitted(1); got != 0 {
			r.t.Errorf("%d admitted before the reset", got)
		}
		if err := r.at(1).Reset(ctx, r.key); err != nil {
			r.t.Error(err)
		}
		got := 0
		for s := 2.0; s < 8; s++ {
			got += r.at(s).admitted(1) + other.admitted(1)
		}
		if got != 5 {
			r.t.Errorf("%d admitted after the reset, want 5", got)
		}
	})
}

// Unlimited and Blocked have no rate to refill a bucket by, and no bucket: there is nothing to reset, and nothing is sent.
func TestResetWithoutABucket(t *testing.T) {
	for _, lim := range []limit.Limit{limit.Unlimited(), limit.Blocked()} {
		l, err := remote.NewTokenBucket(unreachable(), lim, remote.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Reset(ctx, "k"); err != nil {
			t.Errorf("%v: %v", lim, err)
		}
		if err := l.Reset(ctx, ""); err == nil {
			t.Errorf("%v: no error for an empty key", lim)
		}
	}
}
