package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Default is four instances that are asked for a little more than their limit allows.
func Default() Scenario {
	return Scenario{
		Limit:     limit.PerSecond(1000),
		Mode:      Leased,
		Instances: 4,
		Demand:    Demand{Pattern: Steady, PerInstance: 300, Cost: 1},
		For:       Duration(20 * time.Second),
	}
}

// Parse reads a scenario as JSON. What the text does not mention is as in Default. A field that there is not is an error,
// so that a misspelt one is not taken for its default. What Parse returns without an error is valid.
func Parse(data []byte) (Scenario, error) {
	s, err := parse(data)
	var e *Error
	if errors.As(err, &e) && e.Field == "" {
		return Scenario{}, named(e, data)
	}
	return s, err
}

func parse(data []byte) (Scenario, error) {
	s := Default()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return Scenario{}, plain(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Scenario{}, &Error{Text: "there is more text after the scenario; several scenarios go into a list: [{...}, {...}]"}
	}
	return s, s.Validate()
}

// ParseList reads one scenario, or a list of them, each as Parse does.
func ParseList(data []byte) ([]Scenario, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		s, err := Parse(data)
		return []Scenario{s}, err
	}
	var texts []json.RawMessage
	if err := json.Unmarshal(data, &texts); err != nil {
		return nil, plain(err)
	}
	if len(texts) == 0 || len(texts) > MaxList {
		return nil, &Error{Text: fmt.Sprintf("a list holds 1 to %d scenarios, this one has %d", MaxList, len(texts))}
	}
	var list []Scenario
	for i, text := range texts {
		s, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("scenario %d of %d: %w", i+1, len(texts), err)
		}
		list = append(list, s)
	}
	return list, nil
}

// named returns err with the field that it is about, if there is one. Package json does not tell in which field a text
// cannot be read: it is the one that cannot be read by itself either.
func named(err *Error, data []byte) *Error {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		alone, _ := json.Marshal(map[string]json.RawMessage{name: fields[name]}) // it was JSON before
		var e *Error
		if _, failed := parse(alone); errors.As(failed, &e) && e.Field == "" {
			return &Error{name, e.Text}
		}
	}
	return err
}

// plain turns an error of package json into one that speaks of fields of a scenario.
func plain(err error) error {
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrongType):
		return &Error{wrongType.Field, fmt.Sprintf("a %.40s does not fit here", wrongType.Value)}
	case errors.As(err, &syntax):
		return &Error{Text: fmt.Sprintf("this is no JSON: %v, at byte %d", syntax, syntax.Offset)}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &Error{Text: "this is no JSON: it ends too early"}
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(text, "unknown field "); ok {
		return &Error{strings.Trim(name, `"`), "there is no such field"}
	}
	return &Error{Text: strings.TrimPrefix(text, limit.ErrInvalid.Error()+": ")}
}
