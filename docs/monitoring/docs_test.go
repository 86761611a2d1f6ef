package monitoring

import (
	"strings"
	"testing"
)

// TestDocsQueries requires of the queries in docs/metrics.md what it requires of the alerts.
func TestDocsQueries(t *testing.T) {
	metrics := scrape(t)
	parts := strings.Split(read(t, "../metrics.md"), "```promql\n")
	if len(parts) < 5 {
		t.Errorf("docs/metrics.md has %d queries", len(parts)-1)
	}
	for _, part := range parts[1:] {
		query, _, _ := strings.Cut(part, "```")
		expr, err := promQL.ParseExpr(query)
		if err != nil {
			t.Errorf("%v in\n%s", err, query)
			continue
		}
		metrics.check(t, query, expr)
	}
}

// TestDocsNameAllAlerts requires that no section is about an alert that is gone.
func TestDocsNameAllAlerts(t *testing.T) {
	known := make(map[string]bool)
	for _, r := range rules(t) {
		known[r.Alert] = true
	}
	for line := range strings.Lines(read(t, "../metrics.md")) {
		if name, ok := strings.CutPrefix(line, "### Hybrid"); ok && !known["Hybrid"+strings.TrimSpace(name)] {
			t.Errorf("docs/metrics.md has a section on Hybrid%s", name)
		}
	}
}
