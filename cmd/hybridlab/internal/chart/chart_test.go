package chart_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/chart"
)

func example() chart.Chart {
	return chart.Chart{
		Name: "calls", Title: "Calls", About: "How often Redis is asked.", Unit: "calls/s", End: 10,
		Series: []chart.Series{
			{Name: "A", Points: []chart.Point{{1, 100}, {2, 900}, {3, math.NaN()}, {4, 500}}},
			{Name: "B", Color: 1, Dashed: true, Points: []chart.Point{{1, 50}, {4, 60}}},
		},
		Spans: []chart.Span{{From: 2, To: 4, Label: "Redis hangs"}},
	}
}

// wellFormed fails the test if svg is not XML, or if an attribute holds a number that is none.
func wellFormed(t *testing.T, svg string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
}

func TestSVGSaysWhatItShows(t *testing.T) {
	svg := example().SVG(600)
	wellFormed(t, svg)
	for _, want := range []string{
		`role="img"`, `aria-labelledby="calls-title calls-desc"`, `<title id="calls-title">Calls</title>`,
		`A: last 500 calls/s.`, `From 2 s to 4 s: Redis hangs.`, `rotate(-90)" text-anchor="middle">calls/s</text>`, `>1k</text>`, `>10 s</text>`,
		`class="line c1 dashed"`, `class="fault"`,
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in\n%s", want, svg)
		}
	}
	if strings.Contains(svg, "style") {
		t.Error("the form for a page brings styles, which a content security policy forbids")
	}
}

func TestFileBringsItsColours(t *testing.T) {
	svg := example().File(600)
	wellFormed(t, svg)
	for _, want := range []string{"<style>", "prefers-color-scheme: dark", `class="paper"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestGapBreaksTheLine: the value at 3 s is missing, so the line starts anew at 4 s.
func TestGapBreaksTheLine(t *testing.T) {
	path := regexp.MustCompile(`class="line c0" d="(M[^"]*L[^"]*)"`).FindStringSubmatch(example().SVG(600))
	if path == nil || strings.Count(path[1], "M") != 2 {
		t.Errorf("path %q, want two pieces", path)
	}
}

func TestNothingToDraw(t *testing.T) {
	for name, c := range map[string]chart.Chart{
		"zero":            {},
		"no points":       {Series: []chart.Series{{Name: "A"}}, End: 10},
		"only gaps":       {Series: []chart.Series{{Points: []chart.Point{{1, math.NaN()}, {2, math.Inf(1)}}}}, End: 10},
		"zeros of a log":  {Log: true, Series: []chart.Series{{Points: []chart.Point{{1, 0}, {2, -1}}}}, End: 10},
		"no time":         {Series: []chart.Series{{Points: []chart.Point{{0, 1}}}}},
		"stacked, nobody": {Stacked: true, Series: []chart.Series{{Step: true}, {}}, End: 10},
	} {
		svg := c.SVG(400)
		wellFormed(t, svg)
		if strings.Count(svg, "no data yet") != 2 { // to be seen, and to be heard
			t.Errorf("%s:\n%s", name, svg)
		}
	}
	if svg := (chart.Chart{Empty: "nothing is leased"}).SVG(400); !strings.Contains(svg, ">nothing is leased</text>") {
		t.Error(svg)
	}
}

func TestStackedAreasLieOnEachOther(t *testing.T) {
	c := chart.Chart{Name: "held", End: 4, Stacked: true, Series: []chart.Series{
		{Name: "1", Points: []chart.Point{{1, 10}, {4, 10}}},
		{Name: "2", Color: 1, Points: []chart.Point{{1, 30}, {4, 30}}},
		{Name: "3", Color: 2, Step: true},
	}}
	svg := c.SVG(300)
	wellFormed(t, svg)
	if !strings.Contains(svg, ">40</text>") {
		t.Error("the axis does not reach the sum")
	}
	// The upper edge of the first is the lower one of the second.
	paths := regexp.MustCompile(`<path class="area c\d" d="M([\d. ]+)h0L([\d. ]+)(?:V[\d.]+|L([\d. ]+))`).FindAllStringSubmatch(svg, -1)
	if len(paths) != 2 || paths[1][3] != paths[0][2] {
		t.Errorf("paths %q", paths)
	}
}

// TestTextStaysText: names come from whoever wrote the settings.
func TestTextStaysText(t *testing.T) {
	c := example()
	c.Series[0].Name = `<script>alert(1)</script> & "` + "\x00\xff\ufffe\uffff"
	c.Spans[0].Label, c.Title, c.Unit, c.Name = `</title><b>`, `<i>`, `<u>`, `"><b>`
	for _, svg := range []string{c.SVG(900), c.File(900)} {
		wellFormed(t, svg)
		for _, bad := range []string{"<script", "<b>", "<i>", "<u>", "\x00"} {
			if strings.Contains(svg, bad) {
				t.Errorf("%q in\n%s", bad, svg)
			}
		}
	}
}

// TestNothingIsClipped: at any width all text begins and ends in the drawing, as far as its length can be told.
func TestNothingIsClipped(t *testing.T) {
	c := example()
	c.Series[0].Name = strings.Repeat("a long name ", 20)
	c.Spans = append(c.Spans, chart.Span{From: 9, To: 10, Label: "instance 4 is dead"})
	text := regexp.MustCompile(`<text x="([-\d.]+)" y="([-\d.]+)"[^>]*?(text-anchor="\w+")?>([^<]*)</text>`)
	for _, width := range []int{0, 300, 420, 700, 5000} {
		svg := c.SVG(width)
		box := regexp.MustCompile(`viewBox="0 0 (\d+) (\d+)"`).FindStringSubmatch(svg)
		wide, high := number(t, box[1]), number(t, box[2])
		found := text.FindAllStringSubmatch(svg, -1)
		if len(found) < 8 {
			t.Fatalf("only %d texts", len(found))
		}
		for _, m := range found {
			x, y, long := number(t, m[1]), number(t, m[2]), 5.8*float64(len([]rune(m[4])))
			from, to := x, x+long
			switch {
			case strings.Contains(m[3], "end"):
				from, to = x-long, x
			case strings.Contains(m[3], "middle"):
				from, to = x-long/2, x+long/2
			}
			if from < 0 || to > wide || y < 10 || y > high {
				t.Errorf("width %d: %q at %v..%v, %v", width, m[4], from, to, y)
			}
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestLabels(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0625: "0.0625", 0.5: "0.5", 12: "12", 99.96: "100", 999: "999", 999.9: "1k", 1500: "1.5k", 25000: "25k", 1e6: "1M",
		2.5e9: "2.5G", -40: "-40",
	} {
		if got := chart.Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0 µs", 0.25: "250 ns", 1: "1 µs", 12.34: "12.3 µs", 1500: "1.5 ms", 999.9: "1 ms", 2e6: "2 s"} {
		if got := chart.Micros(v); got != want {
			t.Errorf("Micros(%v) = %q, want %q", v, got, want)
		}
	}
}

// TestContrast holds lines and text against the paper, as WCAG 2 counts it: 4.5 for text, 3 for lines.
func TestContrast(t *testing.T) {
	blocks := regexp.MustCompile(`\{\s*(--paper[^}]*)\}`).FindAllStringSubmatch(chart.CSS, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of colours, want a light and a dark one", len(blocks))
	}
	for i, block := range blocks {
		colours := map[string]float64{}
		for _, m := range regexp.MustCompile(`--(\w+): (#\w{6})`).FindAllStringSubmatch(block[1], -1) {
			colours[m[1]] = luminance(t, m[2])
		}
		least := map[string]float64{"ink": 7, "dim": 4.5, "fault": 4.5}
		for k := range chart.Colors {
			least["c"+strconv.Itoa(k)] = 3
		}
		for name, want := range least {
			a, b := colours[name], colours["paper"]
			if got := (max(a, b) + 0.05) / (min(a, b) + 0.05); got < want {
				t.Errorf("block %d: %s has contrast %.2f, want %v", i, name, got, want)
			}
		}
	}
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	v, err := strconv.ParseUint(colour[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		c := float64(v>>(16-8*i)&0xff) / 255
		if c <= 0.03928 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
