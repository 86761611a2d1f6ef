package hybrid_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/remote"
)

// syncBuffer is a bytes.Buffer for many goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// listener is an Observer that remembers what it was told.
type listener struct {
	mu     sync.Mutex
	told   strings.Builder // "down" and "up", in order
	took   []time.Duration
	failed []error
	causes []error
	after  []time.Duration
}

func (w *listener) Called(took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = append(w.took, took)
	if err != nil {
		w.failed = append(w.failed, err)
	}
}

func (w *listener) Unavailable(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told.WriteString("down ")
	w.causes = append(w.causes, err)
}

func (w *listener) Available(after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told.WriteString("up ")
	w.after = append(w.after, after)
}

func (w *listener) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told.String()
}

func (w *listener) calls() (called, failed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.took), len(w.failed)
}

func TestObserverAndLogger(t *testing.T) {
	eachPolicy(t, func(t *testing.T, policy hybrid.FailurePolicy) {
		const key = "secret-key"
		b := newBank()
		w := &listener{}
		var text syncBuffer
		l := newFailing(t, b, hybrid.PerHour(100), hybrid.Options{OnFailure: policy, Observer: w, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		b.slow(20 * time.Millisecond)
		allowed(t, l, key, 1)
		allowed(t, l, "peek", 0)
		if len(w.took) != 2 || w.took[0] != 20*time.Millisecond || w.took[1] != 20*time.Millisecond || len(w.failed) != 0 {
			t.Errorf("told of calls that took %v and failed with %v", w.took, w.failed)
		}

		opened := time.Now()
		b.Down(errAway)
		for i := range 1000 {
			l.Allow(t.Context(), key+strconv.Itoa(i%10))
			time.Sleep(10 * time.Millisecond)
		}
		if w.String() != "down " || !errors.Is(w.causes[0], errAway) {
			t.Fatalf("told %q for %v", w, w.causes)
		}
		called, failed := w.calls()
		if called != b.Calls() || failed != called-2 || int64(failed) != l.Stats().Failed || !errors.Is(w.failed[failed-1], errAway) {
			t.Errorf("told of %d calls of %d, and %d failures, the last was %v", called, b.Calls(), failed, w.failed[failed-1])
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], policy.String()) || !strings.Contains(lines[0], errAway.Error()) {
			t.Errorf("logged after 10s of outage:\n%s", &text)
		}

		b.Down(nil)
		b.always(leasetest.Fault{})
		recovered(t, l)
		// Down since the fifth request, the last but one probe was in vain.
		took := time.Since(opened)
		if w.String() != "down up " || w.after[0] < 10*time.Second || w.after[0] > took {
			t.Errorf("told %q, %v after %v", w, w.after, took)
		}
		lines = strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[1], "level=INFO") || !strings.Contains(lines[1], "after="+w.after[0].String()) {
			t.Errorf("logged after the outage:\n%s", &text)
		}
		if strings.Contains(text.String(), key) {
			t.Errorf("a key was logged:\n%s", &text)
		}
	})
}

type slowHandler struct{ slog.Handler }

func (slowHandler) Enabled(context.Context, slog.Level) bool { return true }

func (slowHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelInfo {
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// A slow log handler does not turn the order of events around.
func TestTheObserverIsToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		w := &listener{}
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{OnFailure: hybrid.FailOpen, Observer: w, Logger: slog.New(slowHandler{slog.DiscardHandler})})
		goDown(t, b, l)
		b.Down(nil)
		time.Sleep(time.Second)
		l.Allow(t.Context(), "k") // a good probe
		synctest.Wait()
		b.Down(errAway)
		l.Allow(t.Context(), "l") // the breaker is on trial
		time.Sleep(100 * time.Millisecond)
		if w.String() != "down up down " || !l.Stats().Unavailable {
			t.Errorf("told %q, and Unavailable is %v", w, l.Stats().Unavailable)
		}
	})
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (*counter) Enabled(context.Context, slog.Level) bool { return true }

func (c *counter) Handle(context.Context, slog.Record) error {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	return nil
}

func (c *counter) WithAttrs([]slog.Attr) slog.Handler { return c }

func (c *counter) WithGroup(string) slog.Handler { return c }

// Refusals do not flood the log, nor do peeks flood Redis.
func TestRefusalsAreLoggedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		c := &counter{}
		l := newFailing(t, b, hybrid.PerHour(10), hybrid.Options{Logger: slog.New(c)})
		b.always(leasetest.Fault{Err: fmt.Errorf("%w: %w: NOPERM", hybrid.ErrUnavailable, remote.ErrRefused)})
		for i := range 1000 {
			l.Allow(t.Context(), strconv.Itoa(i))
		}
		for range 1000 {
			l.AllowN(t.Context(), "k", 0)
		}
		if c.n > 10 {
			t.Errorf("%d lines at one instant, and %d calls for a peek of one key", c.n, b.Calls("k"))
		}
	})
}
