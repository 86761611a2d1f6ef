package monitoring

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

type target struct{ RefID, Expr, LegendFormat string }

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []target
}

type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
		}
	}
	Panels []panel
}

func theDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// The units of Grafana that the panels use.
var units = map[string]bool{"none": true, "s": true, "reqps": true, "percentunit": true}

func TestDashboardIsWellFormed(t *testing.T) {
	d := theDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 39 || len(d.Panels) < 10 {
		t.Errorf("%q, %q, schema %d, %d panels", d.UID, d.Title, d.SchemaVersion, len(d.Panels))
	}
	variables := make(map[string]string)
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
	}
	if variables["datasource"] != "datasource" || variables["limiter"] != "query" {
		t.Errorf("variables %v", variables)
	}
	ids, titles := make(map[int]bool), make(map[string]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] || p.ID < 1 || p.Title == "" {
			t.Errorf("panel %d, %q: there is one of that name or number", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		if g := p.GridPos; g.X < 0 || g.Y < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("%s is at %+v", p.Title, g)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if !units[p.FieldConfig.Defaults.Unit] || p.Description == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%s: unit %q, description %q, data source %q, %d targets", p.Title, p.FieldConfig.Defaults.Unit, p.Description, p.Datasource.UID, len(p.Targets))
		}
		refs := make(map[string]bool)
		for _, q := range p.Targets {
			if refs[q.RefID] || q.RefID == "" {
				t.Errorf("%s: target %q twice", p.Title, q.RefID)
			}
			refs[q.RefID] = true
		}
	}
}

var (
	inLegend  = regexp.MustCompile(`{{(\w+)}}`)
	labelsOf  = regexp.MustCompile(`label_values\((\w+), (\w+)\)`)
	variables = strings.NewReplacer("$__rate_interval", "5m", "$limiter", ".*")
)

func TestDashboardIsOfMetricsThatExist(t *testing.T) {
	metrics, d := scrape(t), theDashboard(t)
	shown := make(map[string]bool)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			expr, err := promQL.ParseExpr(variables.Replace(q.Expr))
			if err != nil {
				t.Errorf("%s: %v", p.Title, err)
				continue
			}
			names := metrics.check(t, p.Title, expr)
			for _, name := range names {
				shown[name] = true
			}
			for _, m := range inLegend.FindAllStringSubmatch(q.LegendFormat, -1) {
				if !strings.Contains(q.Expr, "by (") || metrics[names[0]][m[1]] == nil {
					t.Errorf("%s: no label %q for the legend", p.Title, m[1])
				}
			}
			if strings.Count(q.Expr, `limiter=~"$limiter"`) != len(names) {
				t.Errorf("%s: %s does not go by the chosen limiter throughout", p.Title, q.Expr)
			}
		}
	}
	for name := range metrics {
		if base := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count"); base == name && !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
	for _, v := range d.Templating.List {
		if m := labelsOf.FindStringSubmatch(string(v.Query)); v.Name == "limiter" && (m == nil || metrics[m[1]][m[2]] == nil) {
			t.Errorf("variable %s: %s", v.Name, v.Query)
		}
	}
}
