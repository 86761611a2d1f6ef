package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	goleak.VerifyTestMain(m)
}

func TestRun(t *testing.T) {
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"-for", "900ms"}, &out, &errs); status != 0 || errs.String() != "" {
		t.Fatalf("status %d, %q", status, errs.String())
	}
	middle, end, ok := strings.Cut(out.String(), "# At the end")
	if !ok || !strings.Contains(middle, `hybrid_decisions_total{class="paid",limiter="api",origin="`) {
		t.Errorf("under load:\n%s", middle)
	}
	for _, want := range []string{`class="free"`, `origin="fallback"`, "\nhybrid_redis_calls_total{limiter=\"api\"} ", "hybrid_redis_call_duration_seconds_bucket"} {
		if !strings.Contains(end, want) {
			t.Errorf("at the end there is no %s:\n%s", want, end)
		}
	}
	// The names of the metrics in the transcript of the docs are those of this program.
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(end) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok && !strings.Contains(string(page), "\n"+strings.Fields(name)[0]) {
			t.Errorf("the transcript in docs/metrics.md has no %s", strings.Fields(name)[0])
		}
	}
}

func TestStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if status := run(ctx, []string{"-for", "1h"}, &out, &errs); status != 0 || !strings.Contains(out.String(), "# At the end") {
		t.Errorf("status %d, %q", status, errs.String())
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]int{"-h": 0, "-nonsense": 2} {
		var out, errs bytes.Buffer
		if status := run(t.Context(), []string{args}, &out, &errs); status != want {
			t.Errorf("%s: status %d, want %d", args, status, want)
		}
	}
}
