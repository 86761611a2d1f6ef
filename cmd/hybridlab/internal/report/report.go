// Package report shows recordings: as charts, as figures, and all of it as one HTML file.
package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/chart"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
)

// ErrEmpty is returned when there is no recording to write.
var ErrEmpty = errors.New("report: there is no recording")

// Widths of charts in pixels: in the report two stand side by side, in the documentation one stands alone.
const (
	reportWidth = 520
	fileWidth   = 720
)

//go:embed report.html
var source string

// page is the report. Its parts are texts that this module wrote, or escaped by the template.
var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"svg":    func(c chart.Chart) template.HTML { return template.HTML(c.SVG(reportWidth)) },
	"letter": Letter,
}).Parse(source))

// Write writes a page that shows recs beside each other. It needs no network and no scripts. The recordings are in it as
// JSON, in the element with the id "recordings". Without a recording it returns ErrEmpty; on an error of w a part may have
// been written.
func Write(w io.Writer, recs []fleet.Recording) error {
	if len(recs) == 0 {
		return ErrEmpty
	}
	data, err := json.Marshal(recs) // which has no "<" in it
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var b bytes.Buffer
	err = page.Execute(&b, struct {
		Style    template.CSS
		Recs     []fleet.Recording
		Numbers  []Number
		Settings []Setting
		Charts   []chart.Chart
		Data     template.HTML
	}{template.CSS(chart.CSS), recs, Numbers(recs), Settings(recs), Charts(recs),
		template.HTML(`<script type="application/json" id="recordings">` + string(data) + `</script>`)})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = b.WriteTo(w)
	return err
}

// SVGs writes each chart of recs as a file of its own, NAME.svg, into the folder dir. Files of that name are replaced;
// on an error those written so far stay. Without a recording it returns ErrEmpty.
func SVGs(dir string, recs []fleet.Recording) error {
	if len(recs) == 0 {
		return ErrEmpty
	}
	for _, c := range Charts(recs) {
		if err := os.WriteFile(filepath.Join(dir, c.Name+".svg"), []byte(c.File(fileWidth)), 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}
