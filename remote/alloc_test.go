package remote_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// A call allocates a dozen times more than the client does to send the same command and read its reply: for the batch
// that others may join, its deadline, the command, the name of the key and the result.
func TestAllocations(t *testing.T) {
	const most = 16
	rdb := redistest.Start(t).Client(t, attend(true))
	for _, m := range allModes {
		lim := limit.PerSecond(remote.MaxLog)
		l, err := m.make(rdb, lim, remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		ours := testing.AllocsPerRun(300, func() {
			if got, err := l.Allow(ctx, "k"); err != nil || !got.Allowed {
				t.Errorf("%s: %+v, %v", m.name, got, err)
			}
		})
		rec := &recorder{}
		if l, err = m.make(rec, lim, remote.Options{}); err != nil {
			t.Fatal(err)
		}
		_, _ = l.Allow(ctx, "k")
		bare := testing.AllocsPerRun(300, func() {
			if err := rdb.Process(ctx, redis.NewCmd(ctx, rec.args[0]...)); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		})
		t.Logf("%-15s %v allocations, its command alone %v", m.name, ours, bare)
		if ours-bare > most {
			t.Errorf("%s: %v allocations more than its command alone, want at most %d", m.name, ours-bare, most)
		}
	}
}
