package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/report"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// headless runs the scenarios of a file one after the other, prints a line about each, and writes the report.
func headless(ctx context.Context, cfg config, stdout io.Writer) error {
	data, err := os.ReadFile(cfg.run)
	if err != nil {
		return err
	}
	scenarios, err := scenario.ParseList(data)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errUsage, cfg.run, err)
	}
	if cfg.out != "" {
		if err := writable(cfg.out); err != nil {
			return err
		}
	}
	r, err := connect(cfg)
	if err != nil {
		return err
	}
	defer r.Close()
	var recs []fleet.Recording
	for i, s := range scenarios {
		rec, err := record(ctx, r, s)
		if err != nil {
			return err
		}
		name := s.Name
		if name == "" {
			name = fmt.Sprintf("scenario %d", i+1)
		}
		fmt.Fprintf(stdout, "%s: %s\n", name, rec.Verdict.Text)
		recs = append(recs, rec)
	}
	if cfg.out == "" {
		return nil
	}
	return export(cfg.out, recs)
}

// record runs one scenario to its end.
func record(ctx context.Context, r *fleet.Redis, s scenario.Scenario) (fleet.Recording, error) {
	f, err := fleet.Start(r, s)
	if err != nil {
		return fleet.Recording{}, err
	}
	defer f.Stop()
	if err := f.Wait(ctx); err != nil {
		return fleet.Recording{}, fmt.Errorf("interrupted, nothing is written: %w", err)
	}
	return f.Recording(), nil
}

// isFolder reports whether -out names a folder, which need not exist.
func isFolder(name string) bool {
	return strings.HasSuffix(name, "/") || strings.HasSuffix(name, string(filepath.Separator))
}

// writable finds out whether export can write name, before minutes are spent on what it is to write. It makes the folder,
// and leaves no file that was not there.
func writable(name string) error {
	if isFolder(name) {
		if err := os.MkdirAll(name, 0o755); err != nil {
			return err
		}
		name = filepath.Join(name, "report.html")
	}
	_, missing := os.Stat(name)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if missing != nil {
		defer os.Remove(name)
	}
	return f.Close()
}

// export writes recs in the form that the name of the file asks for. In a folder, which is there, it is the report, and then
// each chart. Files of that name are replaced; if the disk gets full a part of one may be left.
func export(name string, recs []fleet.Recording) error {
	if isFolder(name) {
		if err := export(filepath.Join(name, "report.html"), recs); err != nil {
			return err
		}
		return report.SVGs(name, recs)
	}
	var b bytes.Buffer
	var err error
	if filepath.Ext(name) == ".json" {
		enc := json.NewEncoder(&b)
		enc.SetIndent("", " ")
		err = enc.Encode(recs)
	} else {
		err = report.Write(&b, recs)
	}
	if err != nil {
		return fmt.Errorf("cannot make %s: %w", name, err)
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}
