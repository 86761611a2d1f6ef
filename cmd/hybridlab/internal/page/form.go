package page

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html/template"
	"net/http"
	"strings"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// group is fields of the form that belong together.
type group struct {
	Legend string
	About  string
	Leases bool // in force only in the mode that leases
	Closed bool // shown when asked for
	Faults bool // has the list of faults
	Fields []field
}

// field is one input of the form.
type field struct {
	Name    string // its path in the JSON of a scenario
	Label   string
	Unit    string
	Help    string
	Kind    kind
	Empty   string   // what an empty input stands for; shown in it
	Options []option // of a choice
}

// kind is what a field holds.
type kind string

const (
	text     kind = "text"
	number   kind = "number"
	duration kind = "duration" // empty: 0
	choice   kind = "choice"
)

// Is is for the template.
func (k kind) Is(name string) bool { return string(k) == name }

type option struct{ Value, Text string }

// form is all that can be set.
func form() []group {
	return []group{
		{Legend: "Limit", Fields: []field{
			{Name: "limit", Label: "Limit", Unit: "tokens", Kind: text, Help: "For all instances together: “1000/s”, “600/m burst 2000”."},
			{Name: "mode", Label: "Mode", Kind: choice, Options: modes(), Help: "Who decides: leases in memory, or Redis each time."},
			{Name: "instances", Label: "Instances", Unit: "processes", Kind: number, Help: "Limiters that share the limit."},
		}},
		{Legend: "Lease", Leases: true, Fields: []field{
			{Name: "leaseSize", Label: "Lease size", Unit: "tokens", Kind: number, Empty: "adaptive", Help: "Tokens of each lease. Larger: fewer calls, more burst in the wrong place."},
			{Name: "refresh", Label: "Refresh", Unit: "time", Kind: duration, Empty: "default", Help: "The demand that an adaptive lease is sized for: “50ms”."},
			{Name: "leaseTTL", Label: "Lease TTL", Unit: "time", Kind: duration, Empty: "default", Help: "Life of a lease; what a crash keeps from others."},
			{Name: "maxLeased", Label: "Most leased", Unit: "of the burst", Kind: number, Empty: "default", Help: "Part of the burst that may be out on lease, 0 to 1."},
			{Name: "slack", Label: "Slack", Unit: "of the burst", Kind: number, Empty: "none", Help: "Part of the burst by which the limit may be exceeded."},
		}},
		{Legend: "Demand", Fields: []field{
			{Name: "demand.pattern", Label: "Pattern", Kind: choice, Options: patterns(), Help: "How requests are spread over time and instances."},
			{Name: "demand.perInstance", Label: "Requests", Unit: "per second", Kind: number, Help: "Of each instance, on average."},
			{Name: "demand.cost", Label: "Cost", Unit: "tokens", Kind: number, Empty: "1", Help: "What one request takes."},
			{Name: "for", Label: "Runs for", Unit: "time", Kind: duration, Help: "Length of the run: “20s”."},
		}},
		{Legend: "Redis and faults", Closed: true, Faults: true, Fields: []field{
			{Name: "delay", Label: "Delay", Unit: "time", Kind: duration, Empty: "none", Help: "Added to each round trip to Redis: “5ms”."},
			{Name: "onFailure", Label: "On failure", Kind: choice, Options: policies(), Help: "Who decides while Redis is away. In modes leased and exact."},
			{Name: "name", Label: "Name", Unit: "text", Kind: text, Empty: "none", Help: "Stands in the report."},
		}},
	}
}

var meanings = map[string]string{
	string(scenario.Steady):  "everywhere alike",
	string(scenario.Bursty):  "each second in a tenth",
	string(scenario.Skewed):  "half goes to the first",
	string(scenario.Roaming): "all to one at a time",
	string(scenario.Flood):   "ten times the requests",

	string(scenario.Leased): "tokens from memory",
	string(scenario.Exact):  "a call each time",
}

func modes() []option {
	var list []option
	for _, m := range scenario.Modes() {
		list = append(list, explained(string(m)))
	}
	return list
}

func patterns() []option {
	var list []option
	for _, p := range scenario.Patterns() {
		list = append(list, explained(string(p)))
	}
	return list
}

func policies() []option {
	return []option{
		{"local", "local: a share of the limit in memory"}, {"closed", "closed: calls fail"}, {"open", "open: admit"},
	}
}

func explained(value string) option {
	name := strings.ReplaceAll(value, "-", " ")
	if meaning, ok := meanings[value]; ok {
		name += ": " + meaning
	}
	return option{value, name}
}

//go:embed index.html
var indexSource string

var indexPage = template.Must(template.New("index").Funcs(template.FuncMap{
	"id":   func(name string) string { return "f-" + strings.ReplaceAll(name, ".", "-") },
	"json": func(v any) (string, error) { b, err := json.Marshal(v); return string(b), err },
}).Parse(indexSource))

// index answers with the page.
func index(w http.ResponseWriter, r *http.Request) {
	v, err := show(state{phase: idle}, firstWidth)
	var b bytes.Buffer
	if err == nil {
		err = indexPage.Execute(&b, struct {
			Groups           []group
			Presets          []scenario.Scenario
			Default          scenario.Scenario
			Verdicts, Charts template.HTML
			Status           string
		}{form(), scenario.Presets(), scenario.Default(), template.HTML(v.Verdicts), template.HTML(v.Charts), v.Status})
	}
	if err != nil {
		http.Error(w, "the page could not be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = b.WriteTo(w)
}
