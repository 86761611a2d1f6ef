package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/hybridlimit/hybrid/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	os.Exit(redistest.Main(m))
}

// quickstart runs the program with short loads.
func quickstart(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(ctx, append([]string{"-for", "50ms", "-instances", "2", "-workers", "4"}, args...), &out, &errs)
	return status, out.String(), errs.String()
}

// row returns the numbers of a mode: admitted and ideal tokens, and calls per decision.
func row(t *testing.T, table, name string) (admitted, ideal, calls float64) {
	t.Helper()
	for line := range strings.Lines(table) {
		rest, ok := strings.CutPrefix(line, name+" ")
		f := strings.Fields(strings.NewReplacer(",", "", "%", "").Replace(rest))
		if !ok || len(f) < 7 {
			continue
		}
		var n [5]float64
		for i := range n {
			var err error
			if n[i], err = strconv.ParseFloat(f[i], 64); err != nil {
				t.Fatalf("row %q: %v", line, err)
			}
		}
		return n[1], n[2], n[4]
	}
	t.Fatalf("no row %q in\n%s", name, table)
	return
}

func testTable(t *testing.T, args ...string) {
	status, out, errs := quickstart(t.Context(), args...)
	if status != 0 || errs != "" {
		t.Fatalf("status %d, stderr %q, stdout\n%s", status, errs, out)
	}
	if strings.Contains(out, "failed") {
		t.Errorf("calls failed:\n%s", out)
	}
	for _, m := range modes {
		admitted, ideal, calls := row(t, out, m.name)
		bound := ideal
		switch m.name {
		case "leased (hybrid)":
			bound += 2 * 5 // instances * lease
		case "fixed window":
			bound += 100 // another window begins
		}
		if admitted < 1 || admitted > bound {
			t.Errorf("%s: admitted %v, want 1 to %v", m.name, admitted, bound)
		}
		if m.alone && calls != 1 || calls <= 0 || calls > 1 {
			t.Errorf("%s: %v calls per decision", m.name, calls)
		}
	}
}

func TestTable(t *testing.T) {
	testTable(t, "-rate", "1000", "-burst", "100", "-lease", "5")
}

func TestTableOnRedis(t *testing.T) {
	srv := redistest.Start(t)
	testTable(t, "-redis", srv.Addr(), "-rate", "1000", "-burst", "100", "-lease", "5")

	rdb := srv.Client(t)
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, "quickstart:") {
			t.Errorf("key %q is not under the prefix of the program", key)
		}
		if ttl, err := rdb.TTL(t.Context(), key).Result(); err != nil || ttl < 0 && ttl != -2 { // -2: it has gone
			t.Errorf("key %q: time to live %v, error %v", key, ttl, err)
		}
	}
}

func TestLimitTooLargeForAMode(t *testing.T) {
	status, out, errs := quickstart(t.Context(), "-burst", "200000")
	if status != 0 || errs != "" || !strings.Contains(out, "too large for a log") {
		t.Errorf("status %d, stderr %q, stdout\n%s", status, errs, out)
	}
	row(t, out, "sliding counter") // the others run
}

func TestNoRedis(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	status, out, errs := quickstart(t.Context(), "-redis", addr)
	if status != 1 || out != "" || !strings.HasPrefix(errs, "quickstart: no Redis at "+addr+": ") || strings.Count(errs, "\n") != 1 {
		t.Errorf("status %d, stdout %q, stderr %q", status, out, errs)
	}
}

func TestBadFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-rate", "0"}, {"-burst", "-1"}, {"-burst", "many"}, {"-instances", "0"}, {"-workers", "0"}, {"-lease", "-1"},
		{"-for", "0"}, {"-nosuch"}, {"stray"}, {"-burst", "1000000001"},
	} {
		status, out, errs := quickstart(t.Context(), args...)
		if status != 2 || out != "" || !strings.HasPrefix(errs, "quickstart: ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: status %d, stdout %q, stderr %q", args, status, out, errs)
		}
	}
	if status, out, errs := quickstart(t.Context(), "-help"); status != 0 || errs != "" || !strings.Contains(out, "-redis") {
		t.Errorf("-help: status %d, stdout %q, stderr %q", status, out, errs)
	}
	status, _, errs := quickstart(t.Context(), "-redis", "redis://user:secret@host:port:1")
	if status != 1 || strings.Contains(errs, "secret") {
		t.Errorf("bad URL: status %d, stderr %q", status, errs)
	}
}

// cancelAt ends the run once the text has been printed.
type cancelAt struct {
	bytes.Buffer
	text   string
	cancel context.CancelFunc
}

func (c *cancelAt) Write(p []byte) (int, error) {
	n, err := c.Buffer.Write(p)
	if strings.Contains(c.String(), c.text) {
		c.cancel()
	}
	return n, err
}

func TestInterruptBetweenModes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &cancelAt{text: "GCRA", cancel: cancel}
	if status := run(ctx, []string{"-for", "20ms"}, out, io.Discard); status != 130 {
		t.Errorf("status %d", status)
	}
	row(t, out.String(), "GCRA") // what was measured so far
	if strings.Contains(out.String(), "fixed window") {
		t.Errorf("went on after the interrupt:\n%s", out.String())
	}
}

func TestInterruptUnderLoad(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	if status := run(ctx, []string{"-for", "1h"}, &out, io.Discard); status != 130 {
		t.Errorf("status %d", status)
	}
	row(t, out.String(), "leased (hybrid)")
}

func TestHistogram(t *testing.T) {
	var h, o histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("median of nothing: %v", got)
	}
	for i := range 1000 {
		h.add(time.Duration(i) * time.Microsecond)
		o.add(-1)
	}
	for q, want := range map[float64]time.Duration{0: 0, 0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond} {
		if got := h.quantile(q); (got - want).Abs() > want/30 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	h.merge(&o)
	if got := h.quantile(0.4); got != 0 || h.n != 2000 {
		t.Errorf("after merging as many zeros: quantile 0.4 is %v of %d", got, h.n)
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0s", 93: "93ns", 12345: "12.3µs", 4567890: "4.57ms"} {
		if got := short(d); got != want {
			t.Errorf("short(%d) = %q, want %q", d, got, want)
		}
	}
	if got := oneLine(fmt.Errorf("a\r\n b")); got != "a b" {
		t.Errorf("oneLine: %q", got)
	}
}
