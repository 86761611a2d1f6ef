package report_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/chart"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/report"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
)

// recording is a run of n samples of 100 ms in which Redis hangs for the third second.
func recording(n, instances int) fleet.Recording {
	rec := fleet.Recording{
		Scenario: scenario.Scenario{
			Name: "made up", Limit: limit.PerSecond(1000), Mode: scenario.Leased, Instances: instances, LeaseSize: 50,
			Demand: scenario.Demand{Pattern: scenario.Steady, PerInstance: 300}, For: scenario.Duration(10 * time.Second),
		},
		Every: 0.1, Done: true,
		Verdict: fleet.Verdict{OfIdeal: 0.987, CallsEach: 0.004, P50: 0.3, P99: 1500, Asked: 12000, Admitted: 9870, Text: "98.7 % of ideal"},
	}
	for i := range n {
		s := fleet.Sample{
			At: float64(i+1) / 10, Asked: 120, Admitted: int64(95 + i%9), Ideal: 100, Calls: 3, DeniedLocal: 15, DeniedRemote: 5,
			P50: 0.3, P99: 12, Held: make([]int64, instances),
		}
		for k := range s.Held {
			s.Held[k] = int64(10 + (i+k)%7)
		}
		if i >= 20 && i < 30 {
			s.Fault = "Redis hangs"
		}
		if i == n/2 {
			s.P99 = 90000
		}
		rec.Samples = append(rec.Samples, s)
	}
	return rec
}

func names(charts []chart.Chart) string {
	var all []string
	for _, c := range charts {
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}

func lines(c chart.Chart) string {
	var all []string
	for _, s := range c.Series {
		all = append(all, s.Name)
	}
	return strings.Join(all, ", ")
}

func find(t *testing.T, charts []chart.Chart, name string) chart.Chart {
	t.Helper()
	for _, c := range charts {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no chart %s among %s", name, names(charts))
	return chart.Chart{}
}

func TestChartsOfOneRun(t *testing.T) {
	charts := report.Charts([]fleet.Recording{recording(100, 3)})
	if got, want := names(charts), "admitted calls held denials latency"; got != want {
		t.Fatalf("charts %q, want %q", got, want)
	}
	for _, c := range charts {
		if want := []chart.Span{{From: 2, To: 3, Label: "Redis hangs"}}; !reflect.DeepEqual(c.Spans, want) {
			t.Errorf("%s: spans %v, want %v", c.Name, c.Spans, want)
		}
	}
	calls := charts[1].Series[0].Points
	if len(calls) != 100 || calls[50].Y < 29.9 || calls[50].Y > 30.1 {
		t.Errorf("calls per second %v, want 30", calls)
	}
	if n := len(find(t, charts, "held").Series); n != 3 {
		t.Errorf("%d areas of instances, want 3", n)
	}
}

func TestManyInstancesAreEightAreas(t *testing.T) {
	held := find(t, report.Charts([]fleet.Recording{recording(10, 20)}), "held").Series
	if len(held) != 8 || held[7].Name != "13 others" {
		t.Fatalf("%d areas, the last is %q", len(held), held[len(held)-1].Name)
	}
	got, want := 0.0, 0.0
	for _, s := range held {
		got += s.Points[5].Y
	}
	for _, n := range recording(10, 20).Samples[5].Held {
		want += float64(n)
	}
	if got != want {
		t.Errorf("the areas add up to %v, the instances to %v", got, want)
	}
}

// TestLongRunsKeepTheirCountsAndSpikes: samples are joined, but nothing that was counted is lost.
func TestLongRunsKeepTheirCountsAndSpikes(t *testing.T) {
	rec := recording(6001, 2)
	charts := report.Charts([]fleet.Recording{rec})
	admitted := find(t, charts, "admitted").Series[1].Points
	if len(admitted) > 240 {
		t.Errorf("%d points", len(admitted))
	}
	got, want, before := 0.0, 0.0, 0.0
	for _, p := range admitted {
		got += p.Y * (p.X - before)
		before = p.X
	}
	for _, s := range rec.Samples {
		want += float64(s.Admitted)
	}
	if got < want-0.1 || got > want+0.1 {
		t.Errorf("the line stands for %v tokens, admitted were %v", got, want)
	}
	spike := 0.0
	for _, p := range find(t, charts, "latency").Series[1].Points {
		spike = max(spike, p.Y)
	}
	if spike != 90000 {
		t.Errorf("the highest p99 is %v, want 90000", spike)
	}
}

func TestChartsOfTwoRuns(t *testing.T) {
	a, b := recording(100, 3), recording(50, 3)
	for i := range b.Samples {
		b.Samples[i].Held = []int64{500, 500, 500}
		b.Samples[i].Fault = ""
	}
	charts := report.Charts([]fleet.Recording{a, b})
	if got, want := names(charts), "admitted calls held-A held-B denials-A denials-B latency"; got != want {
		t.Fatalf("charts %q, want %q", got, want)
	}
	one, two := find(t, charts, "held-A"), find(t, charts, "held-B")
	if one.Top != 1500 || two.Top != 1500 || one.End != two.End {
		t.Errorf("the scales are not the same: %v and %v, %v and %v", one.Top, two.Top, one.End, two.End)
	}
	if len(one.Spans) != 1 || len(two.Spans) != 0 {
		t.Errorf("A has %d spans, B %d; want 1 and 0", len(one.Spans), len(two.Spans))
	}
	if got, want := lines(charts[0]), "ideal, A, B"; got != want { // the two have the same name, and are asked the same
		t.Errorf("lines %q, want %q", got, want)
	}
	b.Scenario.Name, b.Scenario.Demand.Cost = "another", 2
	charts = report.Charts([]fleet.Recording{a, b})
	if got, want := lines(charts[0]), "made up: ideal, made up, another: ideal, another"; got != want {
		t.Errorf("lines %q, want %q", got, want)
	}
	if title := find(t, charts, "held-B").Title; title != "another: Tokens out on lease" {
		t.Errorf("title %q", title)
	}
}

// What was wrong for longer in one run than in the others is not lost.
func TestFaultsOfTwoRuns(t *testing.T) {
	a, b := recording(100, 3), recording(100, 3)
	if spans := find(t, report.Charts([]fleet.Recording{a, b}), "admitted").Spans; len(spans) != 1 {
		t.Errorf("the same fault in both: %+v", spans)
	}
	for i := range b.Samples[30:60] {
		b.Samples[30+i].Fault = "Redis hangs"
	}
	if spans := find(t, report.Charts([]fleet.Recording{a, b}), "admitted").Spans; len(spans) != 2 || spans[1].To != 6 {
		t.Errorf("a longer one in the second: %+v", spans)
	}
}

func TestModesWithoutLeasesSaySo(t *testing.T) {
	rec := recording(10, 3)
	rec.Scenario.Mode = scenario.GCRA
	svg := find(t, report.Charts([]fleet.Recording{rec}), "held").SVG(400)
	if !strings.Contains(svg, ">the mode gcra leases nothing<") {
		t.Error(svg)
	}
}

func TestNoSamplesYet(t *testing.T) {
	for _, c := range report.Charts([]fleet.Recording{{Scenario: scenario.Scenario{Mode: scenario.Leased}}}) {
		if svg := c.SVG(400); !strings.Contains(svg, ">no data yet<") {
			t.Errorf("%s:\n%s", c.Name, svg)
		}
	}
}

func TestNumbers(t *testing.T) {
	table := map[string][]string{}
	for _, n := range report.Numbers([]fleet.Recording{recording(1, 1), {}}) {
		table[n.Name] = n.Values
	}
	for name, want := range map[string][]string{
		"of ideal": {"98.7 %", "–"}, "calls per decision": {"0.004", "–"}, "worst excess": {"0", "–"}, "p50": {"300 ns", "–"},
		"p99": {"1.5 ms", "–"}, "asked": {"12000", "–"},
	} {
		if !reflect.DeepEqual(table[name], want) {
			t.Errorf("%s: %q, want %q", name, table[name], want)
		}
	}
}

func TestSettingsThatDiffer(t *testing.T) {
	a, b := recording(1, 1), recording(1, 1)
	b.Scenario.LeaseSize = 0
	b.Scenario.Faults = []scenario.Fault{{Kind: scenario.Kill, At: scenario.Duration(time.Second), For: scenario.Duration(2 * time.Second), Instance: 1}}
	differ := map[string][]string{}
	for _, s := range report.Settings([]fleet.Recording{a, b}) {
		if s.Differ {
			differ[s.Name] = s.Values
		}
	}
	want := map[string][]string{"lease size": {"50 tokens", "adaptive"}, "faults": {"none", "instance 1 dies at 1s for 2s"}}
	if !reflect.DeepEqual(differ, want) {
		t.Errorf("%q, want %q", differ, want)
	}
}

// The failure policy is one of package hybrid: without it calls fail.
func TestWithoutAFailurePolicy(t *testing.T) {
	for mode, want := range map[scenario.Mode]string{scenario.Leased: "open", scenario.Exact: "open", scenario.GCRA: "calls fail"} {
		rec := recording(10, 3)
		rec.Scenario.Mode, rec.Scenario.OnFailure = mode, "open"
		for _, s := range report.Settings([]fleet.Recording{rec}) {
			if s.Name == "when Redis is away" && s.Values[0] != want {
				t.Errorf("%s: %q, want %q", mode, s.Values[0], want)
			}
		}
	}
}

func TestWriteIsSelfContained(t *testing.T) {
	recs := []fleet.Recording{recording(40, 2), recording(40, 2)}
	recs[0].Scenario.Name = `</script><script>alert("x")</script>`
	recs[1].Terms = `leases of <b>50</b> tokens`
	var b bytes.Buffer
	if err := report.Write(&b, recs); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if n := strings.Count(text, "<script"); n != 1 {
		t.Errorf("%d script elements, want 1, for the data", n)
	}
	if m := regexp.MustCompile(`(src|href|action)=|@import|url\(`).FindString(text); m != "" {
		t.Errorf("the report has %q", m)
	}
	for _, want := range []string{"98.7 % of ideal", "&lt;b&gt;50&lt;/b&gt;", `<td>50 tokens</td>`, `id="held-A-title"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if n := strings.Count(text, "<svg"); n != 7 {
		t.Errorf("%d charts, want 7", n)
	}
	_, data, _ := strings.Cut(text, `<script type="application/json" id="recordings">`)
	data, _, _ = strings.Cut(data, "</script>")
	var got []fleet.Recording
	if err := json.Unmarshal([]byte(data), &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, recs) {
		t.Errorf("the recordings in the report are others:\n%+v\n%+v", got, recs)
	}
}

func TestNoRecording(t *testing.T) {
	if err := report.Write(io.Discard, nil); !errors.Is(err, report.ErrEmpty) {
		t.Errorf("Write: %v", err)
	}
	if err := report.SVGs(t.TempDir(), nil); !errors.Is(err, report.ErrEmpty) {
		t.Errorf("SVGs: %v", err)
	}
}

func TestSVGs(t *testing.T) {
	dir := t.TempDir()
	if err := report.SVGs(dir, []fleet.Recording{recording(40, 2)}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil || len(files) != 5 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(text, new(struct{})); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	if err := report.SVGs(filepath.Join(dir, "missing"), []fleet.Recording{recording(1, 1)}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
