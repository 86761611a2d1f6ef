package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/report"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// maxRuns is how many scenarios are compared.
const maxRuns = 2

// api is what the page asks of the lab.
type api struct {
	ctx context.Context // of runs
	lab *lab
}

// refusal is the answer to what the lab does not do.
type refusal struct {
	Error string `json:"error"`
	Field string `json:"field,omitempty"` // of the scenario, if it is about one
	Run   int    `json:"run"`             // index of the scenario
}

// refuse answers with err, and with the field that it is about.
func refuse(w http.ResponseWriter, run int, err error) {
	answer, status := refusal{Error: err.Error(), Run: run}, http.StatusBadRequest
	var field *scenario.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &field):
		answer.Error, answer.Field, status = field.Text, field.Field, http.StatusUnprocessableEntity
	case errors.As(err, &large):
		answer.Error, status = "this is too long", http.StatusRequestEntityTooLarge
	case errors.Is(err, errBusy), errors.Is(err, errIdle):
		status = http.StatusConflict
	}
	reply(w, status, answer)
}

func reply(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// read reads the JSON of a request, of at most maxBody bytes.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return errors.New("this is not the JSON that is expected here")
	}
	return nil
}

// check says whether a scenario is valid, and gives its code.
func (a api) check(w http.ResponseWriter, r *http.Request) {
	var text json.RawMessage
	if err := read(w, r, &text); err != nil {
		refuse(w, 0, err)
		return
	}
	s, err := scenario.Parse(text)
	if err != nil {
		refuse(w, 0, err)
		return
	}
	reply(w, http.StatusOK, map[string]string{"code": s.Code()})
}

// start begins to run one scenario, or two to compare them: the body is a list.
func (a api) start(w http.ResponseWriter, r *http.Request) {
	var texts []json.RawMessage
	err := read(w, r, &texts)
	if err == nil && (len(texts) == 0 || len(texts) > maxRuns) {
		err = errors.New("one scenario is run, or two are compared")
	}
	if err != nil {
		refuse(w, 0, err)
		return
	}
	plan := make([]scenario.Scenario, len(texts))
	for i, text := range texts {
		if plan[i], err = scenario.Parse(text); err != nil {
			refuse(w, i, err)
			return
		}
	}
	if err := a.lab.begin(a.ctx, plan); err != nil {
		refuse(w, 0, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a api) stop(w http.ResponseWriter, r *http.Request) {
	if err := a.lab.stop(); err != nil {
		refuse(w, 0, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// fault makes something go wrong, or right again.
func (a api) fault(w http.ResponseWriter, r *http.Request) {
	var f struct {
		Kind     scenario.FaultKind `json:"kind"`
		Instance int                `json:"instance"`
		On       bool               `json:"on"`
	}
	err := read(w, r, &f)
	if err == nil {
		switch f.Kind {
		case scenario.Hang:
			err = a.lab.hang(f.On)
		case scenario.Kill:
			err = a.lab.kill(f.Instance, f.On)
		default:
			err = errors.New("there is no such fault")
		}
	}
	if err != nil {
		refuse(w, 0, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a api) exportJSON(w http.ResponseWriter, r *http.Request) {
	a.export(w, "application/json", "hybridlab.json", func(to io.Writer, recs []fleet.Recording) error {
		enc := json.NewEncoder(to)
		enc.SetIndent("", "\t")
		return enc.Encode(recs)
	})
}

func (a api) exportHTML(w http.ResponseWriter, r *http.Request) {
	a.export(w, "text/html; charset=utf-8", "hybridlab.html", report.Write)
}

// export answers with a file of what has been recorded.
func (a api) export(w http.ResponseWriter, kind, name string, write func(io.Writer, []fleet.Recording) error) {
	s, _ := a.lab.look()
	if len(s.recs) == 0 {
		http.Error(w, "nothing has run yet", http.StatusNotFound)
		return
	}
	var b bytes.Buffer
	if err := write(&b, s.recs); err != nil {
		http.Error(w, "the recording could not be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	_, _ = b.WriteTo(w)
}
