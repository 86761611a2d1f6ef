package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	goleak.VerifyTestMain(redistest.M{M: m})
}

// write makes a file of a test and returns its name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestRunScenarios(t *testing.T) {
	in := write(t, "in.json", `[{"name": "One", "for": "300ms"}, {"mode": "exact", "for": "100ms"}]`)
	out := filepath.Join(t.TempDir(), "out.json")
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-run", in, "-out", out}, &stdout, &stderr); status != 0 || stderr.Len() > 0 {
		t.Fatalf("status %d, %s", status, &stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "One: ") || !strings.HasPrefix(lines[1], "scenario 2: ") || !strings.Contains(lines[1], " % of ideal, ") {
		t.Errorf("%q", lines)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var recs []fleet.Recording
	if err := json.Unmarshal(data, &recs); err != nil || len(recs) != 2 || !recs[0].Done || recs[0].Verdict.Asked == 0 || recs[1].Scenario.Mode != scenario.Exact {
		t.Errorf("%+v, %v", recs, err)
	}
}

func TestChartsAsFiles(t *testing.T) {
	in := write(t, "in.json", `[{"for": "300ms"}, {"mode": "exact", "for": "100ms"}]`)
	dir := filepath.Join(t.TempDir(), "new", "charts")
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-run", in, "-out", dir + "/"}, &stdout, &stderr); status != 0 {
		t.Fatalf("status %d, %s", status, &stderr)
	}
	for _, name := range []string{"report.html", "admitted.svg", "calls.svg", "held-A.svg", "denials-B.svg", "latency.svg"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestUsage(t *testing.T) {
	bad := write(t, "bad.json", `{"instances": 100}`)
	good := write(t, "good.json", `{"for": "100ms"}`)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-help"}, 0, ""},
		{[]string{"-wrong"}, 2, "-help lists the flags"},
		{[]string{"more"}, 2, `unexpected argument "more"`},
		{[]string{"-out", "x.html"}, 2, "-out needs -run"},
		{[]string{"-run", good, "-out", "x.pdf"}, 2, "must end in .html, .json or /"},
		{[]string{"-run", bad}, 2, "bad.json: instances: 100 must be 1 to 64"},
		{[]string{"-run", bad + "x"}, 1, "no such file"},
		{[]string{"-run", good, "-redis", "127.0.0.1:1"}, 1, "no Redis at 127.0.0.1:1"},
		{[]string{"-run", good, "-out", filepath.Join(t.TempDir(), "missing", "x.json")}, 1, "no such file"},
		{[]string{"-run", good, "-out", good + "/"}, 1, "good.json"},
		{[]string{"-listen", taken.Addr().String()}, 1, "choose another address with -listen"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), c.args, &stdout, &stderr)
		if status > 0 && stdout.Len() > 0 {
			t.Errorf("%q: it ran %q first", c.args, &stdout)
		}
		if status != c.status || !strings.Contains(stderr.String(), c.want) || (stderr.Len() > 0) != (status > 0) || strings.Count(stderr.String(), "\n") > 1 {
			t.Errorf("%q: status %d, stderr %q", c.args, status, &stderr)
		}
	}
}

func TestInterruptedRun(t *testing.T) {
	in := write(t, "in.json", `{"for": "10m"}`)
	out := filepath.Join(t.TempDir(), "out.json")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var stdout, stderr bytes.Buffer
	if status := run(ctx, []string{"-run", in, "-out", out}, &stdout, &stderr); status != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("status %d, %q", status, &stderr)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("it wrote something")
	}
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

// What is printed is an address that the lab answers to, also if it listens on all of them.
func TestServeUntilInterrupted(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0", ":0"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stdout, stderr output
		ended := make(chan int)
		go func() { ended <- run(ctx, []string{"-listen", listen}, &stdout, &stderr) }()
		for !strings.HasPrefix(stdout.String(), "The lab is at ") {
			select {
			case status := <-ended:
				t.Fatalf("status %d, %s", status, &stderr)
			case <-time.After(5 * time.Millisecond):
			}
		}
		base, _, _ := strings.Cut(strings.TrimPrefix(stdout.String(), "The lab is at "), ",")
		browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if answer, err := browser.Get(base); err != nil {
			t.Error(err)
		} else if answer.Body.Close(); answer.StatusCode != http.StatusOK || !strings.HasPrefix(base, "http://localhost:") {
			t.Errorf("-listen %s prints %s, which answers %s", listen, base, answer.Status)
		}
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("status %d, %s", status, &stderr)
		}
	}
}

// The scenarios of the documentation are valid.
func TestScenariosOfTheDocs(t *testing.T) {
	names, err := filepath.Glob("../../docs/lab/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		list, err := scenario.ParseList(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range list {
			if s.Name == "" {
				t.Errorf("%s: a scenario has no name", name)
			}
		}
	}
}
