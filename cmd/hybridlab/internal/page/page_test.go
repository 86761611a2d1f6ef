package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// stage makes runs that last until they are told to end, and keeps what was done to them.
type stage struct {
	runs chan *act // each run as it starts
	fail error     // of starting
	hold chan struct{}
}

func newStage() *stage { return &stage{runs: make(chan *act, 10)} }

func (st *stage) start(s scenario.Scenario) (running, error) {
	if st.fail != nil {
		return nil, st.fail
	}
	a := &act{over: make(chan error, 1), hold: st.hold}
	a.dead = make([]bool, s.Instances)
	a.rec = fleet.Recording{Scenario: s, Terms: "made up", Every: 0.1}
	a.play()
	st.runs <- a
	return a, nil
}

// act is a run that is made up.
type act struct {
	over chan error    // what Wait returns
	hold chan struct{} // Stop waits until it is closed, if it is not nil

	mu    sync.Mutex // guards the fields below
	rec   fleet.Recording
	heard []string

	hanging bool
	dead    []bool
}

// play adds a sample.
func (a *act) play() {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.rec.Samples) + 1
	a.rec.Samples = append(a.rec.Samples, fleet.Sample{
		At: float64(n) / 10, Asked: 100, Admitted: 90, Ideal: 100, Calls: 4, DeniedLocal: 10, Held: []int64{3, 4}, P50: 1, P99: 20,
	})
	a.rec.Verdict = fleet.Verdict{OfIdeal: 0.9, Asked: int64(n) * 100, Admitted: int64(n) * 90, Text: "90.0 % of ideal"}
}

func (a *act) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.heard)
}

func (a *act) Recording() fleet.Recording {
	a.mu.Lock()
	defer a.mu.Unlock()
	rec := a.rec
	rec.Samples = slices.Clone(rec.Samples)
	return rec
}

func (a *act) Hang(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hanging = on
	a.heard = append(a.heard, map[bool]string{true: "hang", false: "recover"}[on])
}

func (a *act) Kill(i int)   { a.fate("kill", i, true) }
func (a *act) Revive(i int) { a.fate("revive", i, false) }

func (a *act) fate(what string, i int, dead bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dead[i] = dead
	a.heard = append(a.heard, fmt.Sprint(what, " ", i))
}

func (a *act) Faults() (hanging bool, dead []bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hanging, slices.Clone(a.dead)
}

func (a *act) Stop() {
	if a.hold != nil {
		<-a.hold
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rec.Done = true
}
func (a *act) Wait(ctx context.Context) error {
	select {
	case err := <-a.over:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// browser asks a lab that is served on a loopback address.
type browser struct {
	*testing.T
	ctx  context.Context // of all requests, so that a stream that says nothing fails a test
	host string
	http *http.Client
}

// newBrowser returns one that waits for the lab at addr for half a minute.
func newBrowser(t *testing.T, addr net.Addr) browser {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return browser{t, ctx, addr.String(), &http.Client{Transport: &http.Transport{}}}
}

// open serves a lab with st until the end of the test.
func open(t *testing.T, st *stage) browser {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- serve(ctx, ln, newLab(st.start), io.Discard) }()
	b := newBrowser(t, ln.Addr())
	t.Cleanup(func() {
		cancel()
		b.http.CloseIdleConnections()
		if err := <-over; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return b
}

func (b browser) request(method, path, body string, header ...string) *http.Request {
	b.Helper()
	r, err := http.NewRequestWithContext(b.ctx, method, "http://"+b.host+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return r
}

// do returns the status and the text of an answer.
func (b browser) do(method, path, body string, header ...string) (int, string, http.Header) {
	b.Helper()
	resp, err := b.http.Do(b.request(method, path, body, header...))
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

func (b browser) want(status int, method, path, body string, header ...string) string {
	b.Helper()
	got, text, _ := b.do(method, path, body, header...)
	if got != status {
		b.Fatalf("%s %s %q: %d, want %d: %s", method, path, body, got, status, text)
	}
	return text
}

// stream is what a tab hears of the lab.
type stream struct {
	*testing.T
	body io.ReadCloser
	read *bufio.Reader
}

func (b browser) listen(query string) *stream {
	b.Helper()
	resp, err := b.http.Do(b.request("GET", "/api/events"+query, ""))
	if err != nil {
		b.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		b.Fatalf("status %d, type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	b.Cleanup(func() { resp.Body.Close() })
	return &stream{b.T, resp.Body, bufio.NewReader(resp.Body)}
}

// until returns the first view that is like ok.
func (s *stream) until(ok func(v view) bool) view {
	s.Helper()
	for {
		line, err := s.read.ReadString('\n')
		if err != nil {
			s.Fatalf("the stream ended: %v", err)
		}
		data, found := strings.CutPrefix(line, "data: ")
		if !found {
			continue
		}
		var v view
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			s.Fatal(err)
		}
		if ok(v) {
			return v
		}
	}
}

func in(p phase) func(v view) bool { return func(v view) bool { return v.Phase == p } }

func TestARunIsSeenByAll(t *testing.T) {
	st := newStage()
	b := open(t, st)
	one, two := b.listen("?width=300"), b.listen("")
	first := one.until(in(idle))
	if !strings.Contains(first.Verdicts, "press <strong>Run</strong>") || !strings.Contains(first.Charts, "no data yet") || first.Numbers != "" {
		t.Errorf("before the first run: %+v", first)
	}
	b.want(204, "POST", "/api/start", `[{"instances": 2}]`)
	a := <-st.runs
	a.play()
	for _, tab := range []*stream{one, two, b.listen("")} { // and one that comes later
		v := tab.until(func(v view) bool { return strings.Contains(v.Numbers, "<dd>200</dd>") })
		if v.Phase != active || v.Status != "Running." || v.Spoken != "" || len(v.Dead) != 2 || !strings.Contains(v.Verdicts, "90.0 % of ideal") {
			t.Errorf("%+v", v)
		}
	}
	if v := one.until(in(active)); !strings.Contains(v.Charts, `viewBox="0 0 300 `) {
		t.Error("the charts do not have the width that was asked for")
	}
	b.want(409, "POST", "/api/start", `[{}]`)
	a.over <- nil
	if v := two.until(in(done)); v.Status != "Done." || v.Spoken != "90.0 % of ideal." || v.Progress != 1 || len(v.Dead) != 0 || v.Failure != "" {
		t.Errorf("%+v", v)
	}
	b.want(409, "POST", "/api/stop", "")
	b.want(409, "POST", "/api/fault", `{"kind": "hang", "on": true}`)
}

func TestComparisonRunsOneAfterTheOther(t *testing.T) {
	st := newStage()
	b := open(t, st)
	tab := b.listen("")
	b.want(204, "POST", "/api/start", `[{"leaseSize": 10}, {"leaseSize": 99}]`)
	a := <-st.runs
	if v := tab.until(in(active)); v.Status != "Running A, 1 of 2." {
		t.Errorf("status %q", v.Status)
	}
	a.over <- nil
	second := <-st.runs
	if size := second.Recording().Scenario.LeaseSize; size != 99 || !a.Recording().Done {
		t.Errorf("the second has lease size %d, the first is over: %v", size, a.Recording().Done)
	}
	v := tab.until(func(v view) bool { return v.Status == "Running B, 2 of 2." })
	if !strings.Contains(v.Verdicts, "What differs: lease size A 10 tokens, B 99 tokens.") {
		t.Error(v.Verdicts)
	}
	second.over <- nil
	if v = tab.until(in(done)); v.Spoken != "A: 90.0 % of ideal. B: 90.0 % of ideal." || !strings.Contains(v.Charts, "held-B-title") {
		t.Errorf("%q", v.Status)
	}
	var recs []fleet.Recording
	if err := json.Unmarshal([]byte(b.want(200, "GET", "/export/hybridlab.json", "")), &recs); err != nil || len(recs) != 2 {
		t.Errorf("%d recordings, %v", len(recs), err)
	}
}

// TestStopEndsThePlan: the second run of a comparison does not start when the first is stopped.
func TestStopEndsThePlan(t *testing.T) {
	st := newStage()
	b := open(t, st)
	tab := b.listen("")
	b.want(204, "POST", "/api/start", `[{}, {}]`)
	a := <-st.runs
	b.want(204, "POST", "/api/stop", "")
	v := tab.until(in(done))
	if v.Failure != "" || !a.Recording().Done || len(st.runs) != 0 {
		t.Errorf("failure %q, %d more runs", v.Failure, len(st.runs))
	}
	b.want(204, "POST", "/api/start", `[{}]`) // and there can be another
	tab.until(in(active))
	(<-st.runs).over <- nil
	tab.until(in(done))
}

func TestFaults(t *testing.T) {
	st := newStage()
	b := open(t, st)
	tab := b.listen("")
	b.want(204, "POST", "/api/start", `[{"instances": 2}]`)
	a := <-st.runs
	tab.until(func(v view) bool { return len(v.Dead) == 2 })
	b.want(204, "POST", "/api/fault", `{"kind": "hang", "on": true}`)
	tab.until(func(v view) bool { return v.Hanging })
	b.want(204, "POST", "/api/fault", `{"kind": "hang"}`)
	tab.until(func(v view) bool { return !v.Hanging })
	b.want(204, "POST", "/api/fault", `{"kind": "kill", "instance": 1, "on": true}`)
	tab.until(func(v view) bool { return v.Dead[1] && !v.Dead[0] })
	b.want(204, "POST", "/api/fault", `{"kind": "kill", "instance": 1}`)
	tab.until(func(v view) bool { return !v.Dead[1] })
	b.want(204, "POST", "/api/fault", `{"kind": "hang", "on": true}`)
	a.Hang(false) // as the end of a fault of the scenario does
	tab.until(func(v view) bool { return !v.Hanging })
	a.Kill(0)
	tab.until(func(v view) bool { return v.Dead[0] })
	for _, body := range []string{`{"kind": "kill", "instance": 2}`, `{"kind": "kill", "instance": -1}`, `{"kind": "fire"}`, `[`} {
		b.want(400, "POST", "/api/fault", body)
	}
	if got, want := a.all(), []string{"hang", "recover", "kill 1", "revive 1", "hang", "recover", "kill 0"}; !slices.Equal(got, want) {
		t.Errorf("the run heard %q, want %q", got, want)
	}
	a.over <- nil
}

func TestWhatGoesWrongIsSaid(t *testing.T) {
	st := newStage()
	b := open(t, st)
	tab := b.listen("")
	b.want(204, "POST", "/api/start", `[{}, {}]`)
	(<-st.runs).over <- errors.New("out of luck")
	(<-st.runs).over <- nil
	if v := tab.until(in(done)); v.Failure != "run 1 of 2 ended early: out of luck" {
		t.Errorf("failure %q", v.Failure)
	}
	st.fail = errors.New("no Redis")
	b.want(204, "POST", "/api/start", `[{}]`)
	tab.until(func(v view) bool { return v.Phase == done && v.Failure == "run 1 of 1 did not start: no Redis" })
}

func TestInvalidSettings(t *testing.T) {
	b := open(t, newStage())
	for _, c := range []struct {
		path, body string
		status     int
		want       refusal
	}{
		{"/api/check", `{"instances": 0}`, 422, refusal{"0 must be 1 to 64", "instances", 0}},
		{"/api/start", `[{}, {"demand": {"pattern": "odd", "perInstance": 1}}]`, 422,
			refusal{`"odd" is none of steady, bursty, skewed, roaming, flood`, "demand.pattern", 1}},
		{"/api/check", `{"instances": 2, "limit": "plenty"}`, 422,
			refusal{`no "/" in "plenty" (want for example "100/s", "5/10m burst 20", "unlimited" or "blocked")`, "limit", 0}},
		{"/api/check", `{"delay": "soon"}`, 422, refusal{`"soon" is no duration (want for example "150ms", "2s" or "1m30s")`, "delay", 0}},
		{"/api/check", `[1]`, 422, refusal{"a array does not fit here", "", 0}},
		{"/api/start", `[]`, 400, refusal{"one scenario is run, or two are compared", "", 0}},
		{"/api/start", `[{},{},{}]`, 400, refusal{"one scenario is run, or two are compared", "", 0}},
		{"/api/start", `{}`, 400, refusal{"this is not the JSON that is expected here", "", 0}},
		{"/api/start", `[{}` + strings.Repeat(" ", maxBody) + `]`, 413, refusal{"this is too long", "", 0}},
		{"/api/check", `"` + strings.Repeat("x", maxBody) + `"`, 413, refusal{"this is too long", "", 0}},
		{"/api/fault", `"` + strings.Repeat("x", maxBody) + `"`, 413, refusal{"this is too long", "", 0}},
	} {
		var got refusal
		if err := json.Unmarshal([]byte(b.want(c.status, "POST", c.path, c.body)), &got); err != nil {
			t.Fatal(err)
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.path, got, c.want)
		}
	}
	if text := b.want(200, "POST", "/api/check", `{"leaseSize": 77}`); !strings.Contains(text, "LeaseSize: 77") {
		t.Error(text)
	}
}

func TestExports(t *testing.T) {
	st := newStage()
	b := open(t, st)
	for _, path := range []string{"/export/hybridlab.json", "/export/hybridlab.html"} {
		b.want(404, "GET", path, "")
	}
	tab := b.listen("")
	b.want(204, "POST", "/api/start", `[{"name": "mine"}]`)
	(<-st.runs).over <- nil
	tab.until(in(done))
	for path, want := range map[string]string{"/export/hybridlab.json": `"name": "mine"`, "/export/hybridlab.html": "<strong>mine</strong>"} {
		status, text, header := b.do("GET", path, "")
		if status != 200 || !strings.Contains(text, want) || !strings.HasPrefix(header.Get("Content-Disposition"), "attachment; ") {
			t.Errorf("%s: %d, %q", path, status, header)
		}
	}
}

// TestServeEndsWithItsContext: tabs are open and a run is under way, and all the same nothing is left.
func TestServeEndsWithItsContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	st := newStage()
	st.hold = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- serve(ctx, ln, newLab(st.start), io.Discard) }()
	b := newBrowser(t, ln.Addr())
	one, two := b.listen(""), b.listen("")
	b.want(204, "POST", "/api/start", `[{}, {}]`)
	a := <-st.runs
	one.until(in(active))
	cancel()
	select {
	case <-over:
		t.Fatal("the lab has gone while its run was still ending")
	case <-time.After(50 * time.Millisecond):
	}
	close(st.hold)
	if err := <-over; err != nil {
		t.Errorf("serve: %v", err)
	}
	if !a.Recording().Done || len(st.runs) != 0 {
		t.Error("the run was not stopped, or the next one was started")
	}
	for _, tab := range []*stream{one, two} {
		if _, err := io.Copy(io.Discard, tab.read); err != nil {
			t.Errorf("the stream did not end well: %v", err)
		}
	}
	b.http.CloseIdleConnections()
	ln.Close()
	if err := serve(t.Context(), ln, newLab(st.start), io.Discard); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a listener that is closed: %v", err)
	}
}

func TestThePageHasAllFields(t *testing.T) {
	b := open(t, newStage())
	status, text, header := b.do("GET", "/", "")
	if status != 200 || header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%d, %q", status, header)
	}
	var fields map[string]any
	data, err := json.Marshal(scenario.Scenario{
		Name: "x", LeaseSize: 1, Refresh: 1, LeaseTTL: 1, MaxLeased: 1, Slack: 1, OnFailure: "x", Delay: 1,
		Demand: scenario.Demand{Cost: 1}, Faults: []scenario.Fault{{}}, Limit: scenario.Default().Limit,
	})
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range fields {
		names := []string{name}
		if inner, ok := value.(map[string]any); ok {
			names = nil
			for key := range inner {
				names = append(names, name+"."+key)
			}
		}
		for _, name := range names {
			if !strings.Contains(text, `data-field="`+name+`"`) {
				t.Errorf("the form has no %s", name)
			}
		}
	}
	for _, g := range form() {
		for _, f := range g.Fields {
			if f.Help == "" || f.Unit == "" && f.Kind != choice {
				t.Errorf("%s has no help or no unit", f.Name)
			}
		}
	}
	for _, path := range []string{"/assets/lab.js", "/assets/lab.css", "/assets/chart.css", "/assets/icon.svg"} {
		if !strings.Contains(text, path) {
			t.Errorf("the page does not use %s", path)
		}
		b.want(200, "GET", path, "")
	}
	b.want(404, "GET", "/nothing", "")
	b.want(405, "GET", "/api/start", "")
	if bytes.Contains([]byte(text), []byte("style=")) {
		t.Error("the page has styles in attributes, which its policy forbids")
	}
}
