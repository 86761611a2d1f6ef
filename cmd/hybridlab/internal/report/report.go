// Package report writes recordings as one HTML file.
package report

import (
	"errors"
	"io"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
)

// Write writes a page that shows recs beside each other.
func Write(w io.Writer, recs []fleet.Recording) error { return errors.New("report: not there yet") }
