package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	goleak.VerifyTestMain(redistest.M{M: m})
}

// lines are what the program prints. A few seconds of waiting may be over, and a few tokens have come, on a slow machine.
var lines = []string{
	`  ann +6/m +and 4/d +4 of 100 answered, come back in (6h0m0s|5h59m5\ds)`,
	`  eve +60/m +and 10000/d +6\d of 100 answered, come back in 1s`,
	`  bigco +unlimited +and unlimited +100 of 100 answered`,
	`  mallory +blocked +and blocked +0 of 100 answered, for ever`,
	`  bob  answered, 2 left`,
	`  bob  answered, 1 left`,
	`  bob  answered, 0 left`,
	`  bob  denied by the minute of the user, come back in \d+s`,
	`  cat  answered, 3 left`,
	`  cat  answered, 0 left`,
	`  cat  denied by the day of the user, come back in (6h0m0s|5h59m5\ds)`,
	`  dan  answered, 0 left`,
	`  dan  denied by the tenant, come back in 7m[23]\ds`,
	// The longest: his own minute would let bob in much sooner.
	`  bob  denied by the minute of the user, come back in 7m[23]\ds`,
	`  ann +has used up her day +4/d +denied, come back in (6h0m0s|5h59m5\ds)`,
	`  ann +a second later +unlimited +answered`,
	`  ann +goes back to pro +10000/d +denied, come back in \d+s`,
	`  eve +does not pay +blocked +denied, for ever`,
}

func TestTranscript(t *testing.T) {
	srv := redistest.Start(t)
	for name, args := range map[string][]string{"embedded": nil, "redis": {"-redis", srv.Addr()}} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if status := run(t.Context(), args, &out, &errs); status != 0 || errs.Len() > 0 {
				t.Fatalf("status %d, stderr %q", status, errs.String())
			}
			rest := out.String()
			for _, line := range lines {
				at := regexp.MustCompile(`(?m)^` + line + `$`).FindStringIndex(rest)
				if at == nil {
					t.Fatalf("no line %q in\n%s", line, out.String())
				}
				rest = rest[at[1]:]
			}
		})
	}
}

// Every limit of every plan is a good one: else the first request of a customer would fail.
func TestPlans(t *testing.T) {
	for name, l := range limits {
		if err := l.perMinute.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.perDay.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		status int
	}{{[]string{"-nosuch"}, 2}, {[]string{"stray"}, 2}, {[]string{"-redis", "127.0.0.1:1"}, 1}} {
		var out, errs bytes.Buffer
		if got := run(t.Context(), tt.args, &out, &errs); got != tt.status || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: status %d, stderr %q", tt.args, got, errs.String())
		}
	}
	var out, errs bytes.Buffer
	if got := run(t.Context(), []string{"-help"}, &out, &errs); got != 0 || !strings.Contains(out.String(), "-redis") || errs.Len() > 0 {
		t.Errorf("-help: status %d, stdout %q, stderr %q", got, out.String(), errs.String())
	}
}
