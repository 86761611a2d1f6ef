package page

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/report"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// view is what the page shows of a state: an event of the stream.
type view struct {
	Phase    phase   `json:"phase"`
	Status   string  `json:"status"`   // where the lab is, in words; it changes only when that does
	Spoken   string  `json:"spoken"`   // what is read aloud after it and stands elsewhere for who sees: the verdicts at the end
	Progress float64 `json:"progress"` // 0 to 1, of all runs of the plan
	Verdicts string  `json:"verdicts"` // HTML, as the next two
	Numbers  string  `json:"numbers"`
	Charts   string  `json:"charts"`
	Hanging  bool    `json:"hanging"`
	Dead     []bool  `json:"dead"` // of each instance of the current run; empty if there is none
	Failure  string  `json:"failure,omitempty"`
}

//go:embed results.html
var resultsSource string

// results are the parts of a view that are HTML.
var results = template.Must(template.New("results").Funcs(template.FuncMap{"letter": report.Letter}).Parse(resultsSource))

// show returns the view of s, with charts that are width pixels wide.
func show(s state, width int) (view, error) {
	v := view{
		Phase: s.phase, Status: status(s), Spoken: spoken(s), Progress: progress(s), Hanging: s.hanging, Dead: s.dead, Failure: s.failure,
	}
	data := struct {
		Many     bool
		Recs     []fleet.Recording
		Numbers  []report.Number
		Settings []report.Setting
		Charts   []template.HTML
	}{len(s.plan) > 1, s.recs, report.Numbers(s.recs), report.Settings(s.recs), nil}
	recs := s.recs
	if len(recs) == 0 { // the charts are there all the same, empty
		recs = []fleet.Recording{{Scenario: scenario.Scenario{Mode: scenario.Leased}}}
	}
	for _, c := range report.Charts(recs) {
		data.Charts = append(data.Charts, template.HTML(c.SVG(width)))
	}
	for name, into := range map[string]*string{"verdicts": &v.Verdicts, "numbers": &v.Numbers, "charts": &v.Charts} {
		var b bytes.Buffer
		if err := results.ExecuteTemplate(&b, name, data); err != nil {
			return view{}, err
		}
		*into = strings.TrimSpace(b.String())
	}
	return v, nil
}

// status says where the lab is. Between two changes of that it is the same text, so that it can be read aloud.
func status(s state) string {
	switch s.phase {
	case active:
		text := "Running."
		if len(s.plan) > 1 {
			text = fmt.Sprintf("Running %s, %d of %d.", report.Letter(max(0, len(s.recs)-1)), max(1, len(s.recs)), len(s.plan))
		}
		if wrong := fault(s); wrong != "" {
			text += " Now: " + wrong + "."
		}
		return text
	case done:
		return "Done."
	}
	return "Nothing has run yet."
}

// spoken is the verdicts, once they are final.
func spoken(s state) string {
	if s.phase != done {
		return ""
	}
	var all []string
	for i, rec := range s.recs {
		text := rec.Verdict.Text
		if len(s.plan) > 1 {
			text = report.Letter(i) + ": " + text
		}
		all = append(all, text+".")
	}
	return strings.Join(all, " ")
}

// fault is what was wrong in the last sample of the current run.
func fault(s state) string {
	if len(s.recs) == 0 || s.recs[len(s.recs)-1].Done {
		return ""
	}
	samples := s.recs[len(s.recs)-1].Samples
	if len(samples) == 0 {
		return ""
	}
	return samples[len(samples)-1].Fault
}

// progress is how much of the plan is behind.
func progress(s state) float64 {
	if s.phase == done {
		return 1
	}
	all, past := 0.0, 0.0
	for i, sc := range s.plan {
		long := float64(sc.For) / 1e9
		all += long
		if i < len(s.recs) {
			if samples := s.recs[i].Samples; len(samples) > 0 {
				past += min(samples[len(samples)-1].At, long)
			}
		}
	}
	if all == 0 {
		return 0
	}
	return math.Round(1000*past/all) / 1000
}

// firstWidth is for who does not say how wide charts shall be.
const firstWidth = 520
