package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/hybridlimit/hybrid/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	os.Exit(redistest.Main(m))
}

// output is what a program that runs has printed.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

var address = regexp.MustCompile(`Serving on (127\.0\.0\.1:\d+) with [^\n]*\n`)

// start serves until the test ends, and returns where.
func start(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var out, errs output
	ended := make(chan int)
	go func() { ended <- run(ctx, append([]string{"-serve", "-listen", "127.0.0.1:0"}, args...), &out, &errs) }()
	t.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 || errs.String() != "" {
			t.Errorf("status %d, stderr %q", status, errs.String())
		}
	})
	for range 500 {
		if found := address.FindStringSubmatch(out.String()); found != nil {
			return found[1]
		}
		select {
		case status := <-ended:
			t.Fatalf("status %d, stderr %q", status, errs.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("it does not serve")
	return ""
}

func TestTwoProcesses(t *testing.T) {
	srv := redistest.Start(t)
	var clients []grpc_testing.TestServiceClient
	for range 2 {
		conn, err := grpc.NewClient(start(t, "-redis", srv.Addr(), "-limit", "2/h"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		clients = append(clients, grpc_testing.NewTestServiceClient(conn))
	}
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted, codes.ResourceExhausted} {
		if _, err := clients[i%2].UnaryCall(t.Context(), &grpc_testing.SimpleRequest{}); status.Code(err) != want {
			t.Errorf("call %d: %v, want %v", i, err, want)
		}
	}
}

// TestTranscript compares what the program prints with the documentation, but for the port and what depends on the time.
func TestTranscript(t *testing.T) {
	page, err := os.ReadFile("../../docs/grpc.md")
	if err != nil {
		t.Fatal(err)
	}
	var out, errs output
	if status := run(t.Context(), nil, &out, &errs); status != 0 || errs.String() != "" {
		t.Fatalf("status %d, stderr %q, stdout %s", status, errs.String(), out.String())
	}
	vague := regexp.MustCompile(`127\.0\.0\.1:\d+|in \d[0-9.]*s|retry_delay \S+|pushback-ms: \d+|reset: \d+`)
	documented := strings.Split(vague.ReplaceAllString(string(page), ""), "\n")
	for line := range strings.SplitSeq(vague.ReplaceAllString(out.String(), ""), "\n") {
		if !slices.Contains(documented, line) {
			t.Errorf("not in the documentation: %q", line)
		}
	}
	for what, n := range map[string]int{"code     OK": 3, "code     ResourceExhausted": 2, "RetryInfo": 2, "QuotaFailure": 2, "header": 0} {
		if got := strings.Count(out.String(), what); got != n {
			t.Errorf("%q is there %d times, want %d:\n%s", what, got, n, out.String())
		}
	}
}

func TestWithoutDenials(t *testing.T) {
	var out, errs output
	if status := run(t.Context(), []string{"-limit", "unlimited"}, &out, &errs); status != 0 || strings.Contains(out.String(), "ResourceExhausted") || errs.String() != "" {
		t.Errorf("status %d, stderr %q, stdout %s", status, errs.String(), out.String())
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs output
	if status := run(ctx, nil, &out, &errs); status != 1 || !strings.Contains(errs.String(), "Canceled") {
		t.Errorf("status %d, stderr %q", status, errs.String())
	}
}

func TestBadFlags(t *testing.T) {
	for status, all := range map[int][][]string{
		2: {{"-limit", "0/s"}, {"-limit", "many"}, {"-nosuch"}, {"stray"}},
		1: {{"-listen", "nowhere:-1"}},
	} {
		for _, args := range all {
			var out, errs output
			if got := run(t.Context(), args, &out, &errs); got != status || out.String() != "" || strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("%q: status %d, stdout %q, stderr %q", args, got, out.String(), errs.String())
			}
		}
	}
	var out, errs output
	if got := run(t.Context(), []string{"-help"}, &out, &errs); got != 0 || !strings.Contains(out.String(), "-redis") || errs.String() != "" {
		t.Errorf("-help: status %d, stdout %q, stderr %q", got, out.String(), errs.String())
	}
}
