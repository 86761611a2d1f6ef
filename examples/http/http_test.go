package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	goleak.VerifyTestMain(redistest.M{M: m})
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

var address = regexp.MustCompile(`http://localhost:\d+`)

// start runs the program until the test ends, and returns where its two instances serve.
func start(t *testing.T, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var out, errs output
	ended := make(chan int)
	go func() {
		ended <- run(ctx, append([]string{"-listen", "127.0.0.1:0,127.0.0.1:0"}, args...), &out, &errs)
	}()
	t.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 || errs.String() != "" {
			t.Errorf("status %d, stderr %q", status, errs.String())
		}
	})
	for range 500 {
		if text := out.String(); strings.HasSuffix(text, "/limits\n") {
			bases := slices.Compact(address.FindAllString(text, -1))
			return bases[:2]
		}
		select {
		case status := <-ended:
			t.Fatalf("status %d, stderr %q", status, errs.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("it does not serve")
	return nil
}

// curl returns the status, the headers and the body of an answer, as curl -i prints them, but in the order of their names.
func curl(t *testing.T, url string) (status, text string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for name, values := range resp.Header {
		for _, v := range values {
			lines = append(lines, name+": "+v+"\n")
		}
	}
	slices.Sort(lines)
	status = resp.Proto + " " + resp.Status
	return status, status + "\n" + strings.Join(lines, "") + "\n" + string(body)
}

func TestAPI(t *testing.T) {
	base := start(t, "-limit", "2/m")[0]
	for i, want := range []string{"200 OK", "200 OK", "429 Too Many Requests"} {
		if status, text := curl(t, base+"/hello/you"); status != "HTTP/1.1 "+want {
			t.Errorf("request %d:\n%s", i, text)
		}
		if _, text := curl(t, base+"/limit"); !strings.HasPrefix(text, "HTTP/1.1 204") || !strings.Contains(text, "X-Ratelimit-Limit: 2\n") {
			t.Errorf("/limit: %s", text)
		}
		for path, body := range map[string]string{"/healthz": "ok", "/limits": "api: 2/m, requests from each address"} {
			if _, text := curl(t, base+path); !strings.HasPrefix(text, "HTTP/1.1 200") || strings.Contains(text, "Ratelimit") || !strings.HasSuffix(text, "\n"+body+"\n") {
				t.Errorf("%s: %s", path, text)
			}
		}
	}
}

// alternate sends requests to the instances in turn.
func alternate(t *testing.T, bases []string, want ...string) {
	t.Helper()
	for i, want := range want {
		if status, text := curl(t, bases[i%len(bases)]+"/hello/you"); !strings.HasPrefix(status, "HTTP/1.1 "+want) {
			t.Errorf("request %d:\n%s", i, text)
		}
	}
}

func TestTwoInstances(t *testing.T) {
	alternate(t, start(t, "-limit", "2/m"), "200", "200", "429", "429")
}

func TestTwoProcesses(t *testing.T) {
	srv := redistest.Start(t)
	args := []string{"-redis", srv.Addr(), "-limit", "5/m"}
	alternate(t, append(start(t, args...), start(t, args...)...), "200", "200", "200", "200", "200", "429", "429", "429")
}

// TestTranscript compares the answers with those that are shown, but for dates and for the numbers of seconds.
func TestTranscript(t *testing.T) {
	for page, which := range map[string][]int{"../../docs/http.md": {0, 5}, "README.md": {0, 1, 5}} {
		testTranscript(t, page, which)
	}
}

func testTranscript(t *testing.T, name string, which []int) {
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	vague := regexp.MustCompile(`Date: .*|Retry-After: \d+|X-Ratelimit-Reset: \d+|;t=\d+|in \d+ seconds?`)
	bases := start(t)
	for i := range 6 {
		_, text := curl(t, bases[i%2]+"/hello/you")
		if !slices.Contains(which, i) {
			continue
		}
		for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
			line = vague.ReplaceAllString(line, "")
			if !slices.ContainsFunc(strings.Split(string(page), "\n"), func(l string) bool {
				return strings.TrimSpace(vague.ReplaceAllString(l, "")) == line
			}) {
				t.Errorf("answer %d has a line that is not in %s: %q", i, name, line)
			}
		}
	}
}

func TestBadFlags(t *testing.T) {
	for status, all := range map[int][][]string{
		2: {{"-limit", "0/s"}, {"-limit", "many"}, {"-nosuch"}, {"stray"}},
		1: {{"-listen", "nowhere:-1"}, {"-listen", "127.0.0.1:0,nowhere:-1"}},
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
