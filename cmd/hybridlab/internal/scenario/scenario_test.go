package scenario_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
)

const ms = scenario.Duration(time.Millisecond)

func TestPresetsAreValid(t *testing.T) {
	if err := scenario.Default().Validate(); err != nil {
		t.Error("the default:", err)
	}
	names := map[string]bool{}
	for _, s := range scenario.Presets() {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if s.Name == "" || names[s.Name] {
			t.Errorf("the name %q is empty or there twice", s.Name)
		}
		names[s.Name] = true
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := scenario.Parse(text); err != nil || !reflect.DeepEqual(back, s) {
			t.Errorf("%s\nread back as %+v\nwant         %+v, %v", text, back, s, err)
		}
	}
}

func TestParse(t *testing.T) {
	s, err := scenario.Parse([]byte(`{"limit": "5/10m burst 20", "demand": {"perInstance": 7}, "delay": "1.5ms"}`))
	want := scenario.Default()
	want.Limit = limit.Limit{Rate: 5, Period: 10 * time.Minute, Burst: 20}
	want.Demand.PerInstance = 7
	want.Delay = scenario.Duration(1500 * time.Microsecond)
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, %v\nwant %+v", s, err, want)
	}
}

// An error names the field and says what is wrong in the words of a scenario.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"leasesize2": 1}`:                         `leasesize2: there is no such field`,
		`{"instances": "many"}`:                     `instances: a string does not fit here`,
		`{"limit": "fast"}`:                         `limit: no "/" in "fast"`,
		`{"for": "long"}`:                           `for: "long" is no duration`,
		`{"for": "1s", "faults": [{"at": "soon"}]}`: `faults: "soon" is no duration`,
		`{"demand": {"perInstance": 1e300}}`:        `all instances together are asked 4e+300 times per second`,
		`{`:                                         `this is no JSON: it ends too early`,
		``:                                          `this is no JSON: it ends too early`,
		`{]`:                                        `this is no JSON: invalid character ']'`,
		`{} {}`:                                     `more text after the scenario`,
		`{"instances": 0}`:                          `instances: 0 must be 1 to 64`,
		`[]`:                                        `a list holds 1 to 16 scenarios`,
		`[{}, {"instances": 65}]`:                   `scenario 2 of 2: instances: 65 must be`,
		`[{}`:                                       `this is no JSON`,
		`[{}` + strings.Repeat(`,{}`, 16) + `]`:     `this one has 17`,
	} {
		if _, err := scenario.ParseList([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
	if list, err := scenario.ParseList([]byte(` [{"instances": 2}, {}] `)); err != nil || len(list) != 2 || list[0].Instances != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := scenario.ParseList([]byte(`{"instances": 3}`)); err != nil || len(list) != 1 || list[0].Instances != 3 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestValidate(t *testing.T) {
	type S = scenario.Scenario
	for field, changes := range map[string][]func(s *S){
		"name":           {func(s *S) { s.Name = strings.Repeat("x", 101) }, func(s *S) { s.Name = "two\nlines" }, func(s *S) { s.Name = "red\x1b[31m" }},
		"mode":           {func(s *S) { s.Mode = "" }, func(s *S) { s.Mode = "fast" }},
		"instances":      {func(s *S) { s.Instances = 0 }, func(s *S) { s.Instances = 65 }},
		"leaseSize":      {func(s *S) { s.LeaseSize = -1 }},
		"refresh":        {func(s *S) { s.Refresh = -ms }},
		"leaseTTL":       {func(s *S) { s.LeaseTTL = -ms }},
		"maxLeased":      {func(s *S) { s.MaxLeased = 1.1 }, func(s *S) { s.MaxLeased = math.NaN() }},
		"slack":          {func(s *S) { s.Slack = -0.1 }, func(s *S) { s.Slack = math.NaN() }},
		"onFailure":      {func(s *S) { s.OnFailure = "panic" }},
		"delay":          {func(s *S) { s.Delay = -ms }, func(s *S) { s.Delay = 251 * ms }},
		"demand.pattern": {func(s *S) { s.Demand.Pattern = "" }},
		"demand.perInstance": {
			func(s *S) { s.Demand.PerInstance = 0 }, func(s *S) { s.Demand.PerInstance = math.NaN() },
			func(s *S) { s.Demand.PerInstance = 50_001 }, // by 4 instances
			func(s *S) { s.Demand.Pattern, s.Demand.PerInstance = scenario.Flood, 5001 },
		},
		"demand.cost": {func(s *S) { s.Demand.Cost = -1 }, func(s *S) { s.Demand.Cost = 1001 }},
		"for":         {func(s *S) { s.For = 99 * ms }, func(s *S) { s.For = scenario.Duration(11 * time.Minute) }},
		"limit": {
			func(s *S) { s.Limit = limit.Limit{} }, func(s *S) { s.Limit = limit.Unlimited() }, func(s *S) { s.Limit = limit.Blocked() },
			func(s *S) { s.Mode, s.Limit.Burst = scenario.FixedWindow, 999 },
			func(s *S) { s.Mode, s.Limit.Burst = scenario.SlidingCounter, 1001 },
			func(s *S) {
				s.Mode, s.Limit = scenario.FixedWindow, limit.Limit{Rate: 1, Period: time.Microsecond, Burst: 1}
			},
			func(s *S) { s.Mode, s.Limit = scenario.SlidingLog, limit.PerSecond(100_001) },
			func(s *S) { s.Limit = limit.PerDay(1).WithBurst(2) },
		},
		"faults":         {func(s *S) { s.Faults = make([]scenario.Fault, 65) }},
		"faults[0].kind": {func(s *S) { s.Faults = []scenario.Fault{{Kind: "fire", For: ms}} }},
		"faults[0].at":   {func(s *S) { s.Faults = []scenario.Fault{{Kind: scenario.Hang, At: s.For, For: ms}} }},
		"faults[0].for":  {func(s *S) { s.Faults = []scenario.Fault{{Kind: scenario.Hang}} }},
		"faults[0].instance": {
			func(s *S) { s.Faults = []scenario.Fault{{Kind: scenario.Kill, For: ms, Instance: 4}} },
			func(s *S) { s.Faults = []scenario.Fault{{Kind: scenario.Hang, For: ms, Instance: 1}} },
		},
		"faults[1].at": {func(s *S) {
			s.Faults = []scenario.Fault{{Kind: scenario.Hang, At: 5 * ms, For: 5 * ms}, {Kind: scenario.Hang, At: ms, For: 5 * ms}}
		}},
	} {
		for i, change := range changes {
			s := scenario.Default()
			change(&s)
			var bad *scenario.Error
			if err := s.Validate(); !errors.As(err, &bad) || bad.Field != field || strings.Contains(bad.Text, "\n") {
				t.Errorf("%s, change %d: %v", field, i, err)
			}
		}
	}
	for i, change := range []func(s *S){
		func(s *S) { s.Instances, s.Demand.PerInstance = 64, 3125 },
		func(s *S) { s.Demand.Cost = 1000 },
		func(s *S) { s.Mode, s.Limit = scenario.FixedWindow, limit.PerDay(10) },
		func(s *S) {
			s.Faults = []scenario.Fault{{Kind: scenario.Kill, For: 5 * ms, Instance: 1}, {Kind: scenario.Kill, For: 5 * ms}, {Kind: scenario.Kill, At: 5 * ms, For: ms}}
		},
	} {
		s := scenario.Default()
		change(&s)
		if err := s.Validate(); err != nil {
			t.Errorf("good change %d: %v", i, err)
		}
	}
}

// TestCode requires that the code of each scenario is in code_test.go, so that it compiles.
func TestCode(t *testing.T) {
	compiled, err := os.ReadFile("code_test.go")
	if err != nil {
		t.Fatal(err)
	}
	all := scenario.Presets()
	for _, m := range scenario.Modes() {
		s := scenario.Default()
		s.Name, s.Mode, s.Instances = "mode "+string(m), m, 1
		s.OnFailure, s.LeaseSize, s.Slack = "open", 10, 0.5 // for leases only
		all = append(all, s)
	}
	for name, l := range map[string]limit.Limit{
		"minute": limit.PerMinute(30), "hour": limit.PerHour(30).WithBurst(5), "day": limit.PerDay(30), "odd": limit.Every(1500 * time.Microsecond),
	} {
		s := scenario.Default()
		s.Name, s.Limit = name, l
		s.Refresh, s.LeaseTTL, s.MaxLeased, s.OnFailure = 150*ms, scenario.Duration(time.Second), 0.5, "closed"
		all = append(all, s)
	}
	far := scenario.Default()
	far.Name, far.Mode, far.Delay = "far", scenario.GCRA, 40*ms
	for _, s := range append(all, far) {
		code := s.Code()
		if indented := "\t" + strings.ReplaceAll(strings.TrimSpace(code), "\n", "\n\t"); !strings.Contains(string(compiled), "\n"+indented+"\n") {
			t.Errorf("%s: not in code_test.go:\n%s", s.Name, indented)
		}
	}
}
