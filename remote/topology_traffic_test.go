package remote_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// thousand is a limit that no test waits for: what is admitted is the burst.
var thousand = limit.Limit{Rate: 1000, Period: 10_000 * time.Hour, Burst: 1000}

// impatience is the Timeout of tests of failovers. Bounds of time are the multiple of it that a busy machine may need.
const (
	impatience = 250 * time.Millisecond
	bearable   = 4 * impatience
)

// traffic is a caller who asks for one token of a key over and over.
type traffic struct {
	name string
	end  chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	admitted int
	denied   int
	failed   int
	first    error         // of those that failed
	wrong    error         // the first that is not a passing one
	longest  time.Duration // of a call
	last     time.Time     // when the last decision was made
	outage   time.Duration // the longest time without one
}

// drive starts traffic that pauses between calls.
func drive(t *testing.T, l limiter, name, key string, pause time.Duration) *traffic {
	t.Helper()
	f := &traffic{name: name, end: make(chan struct{}), last: time.Now()}
	f.done.Go(func() {
		for {
			f.ask(l, key)
			select {
			case <-time.After(pause):
			case <-f.end:
				return
			}
		}
	})
	t.Cleanup(f.stop)
	return f
}

func (f *traffic) ask(l limiter, key string) {
	began := time.Now()
	got, err := l.Allow(ctx, key)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.longest = max(f.longest, now.Sub(began))
	if err != nil {
		if f.failed++; f.failed == 1 {
			f.first = fmt.Errorf("after %v: %w", now.Sub(began), err)
		}
		if f.wrong == nil && (!errors.Is(err, limit.ErrUnavailable) || errors.Is(err, remote.ErrRefused) || got != (limit.Result{})) {
			f.wrong = err
		}
		return
	}
	f.outage = max(f.outage, now.Sub(f.last))
	f.last = now
	if got.Allowed {
		f.admitted++
	} else {
		f.denied++
	}
}

func (f *traffic) stop() {
	select {
	case <-f.end:
	default:
		close(f.end)
	}
	f.done.Wait()
}

// decisions is how many calls were decided so far.
func (f *traffic) decisions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.admitted + f.denied
}

// failures is how many calls failed so far.
func (f *traffic) failures() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// moves waits until each makes so many more decisions.
func moves(t *testing.T, what string, more int, all ...*traffic) {
	t.Helper()
	before := make([]int, len(all))
	for i, f := range all {
		before[i] = f.decisions()
	}
	for i, f := range all {
		eventually(t, f.name+": "+what, func() bool { return f.decisions() >= before[i]+more })
	}
}

// check stops the traffic and looks at its errors: they must be passing ones, each in time.
func (f *traffic) check(t *testing.T) {
	t.Helper()
	f.stop()
	if f.wrong != nil {
		t.Errorf("%s: %v, want ErrUnavailable and nothing that is not mended by waiting", f.name, f.wrong)
	}
	if f.longest > bearable {
		t.Errorf("%s: a call took %v, want at most %v", f.name, f.longest, bearable)
	}
}

// undisturbed is check for traffic that must not have noticed anything. Its Timeout is bearable.
func (f *traffic) undisturbed(t *testing.T) {
	t.Helper()
	f.check(t)
	if f.failed > 0 {
		t.Errorf("%s: %d calls failed, want none; the first: %v", f.name, f.failed, f.first)
	}
}

// delivered waits until the replica has all that the master has written.
func delivered(t *testing.T, master, replica *redis.Client) {
	t.Helper()
	offset := func(rdb *redis.Client) string {
		return rdb.InfoMap(ctx, "replication").Item("Replication", "master_repl_offset")
	}
	eventually(t, "the replica has everything", func() bool {
		sent := offset(master)
		return sent != "" && offset(replica) == sent
	})
}

// rest takes all that is left of a key and returns how much that was.
func rest(t *testing.T, l limiter, key string) int {
	t.Helper()
	ask := func(n int) limit.Result {
		t.Helper()
		got, err := l.AllowN(ctx, key, n)
		if err != nil {
			t.Fatalf("AllowN(%d): %v", n, err)
		}
		return got
	}
	left := ask(0).Remaining
	if got := ask(left); !got.Allowed {
		t.Errorf("%d left, but %+v", left, got)
	}
	if got := ask(1); got.Allowed {
		t.Errorf("nothing left, but %+v", got)
	}
	return left
}
