package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease/leasetest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	goleak.VerifyTestMain(redistest.M{M: m})
}

// lines are what the program prints. Some tokens flow in while it runs, and a few seconds of waiting may be over.
var lines = []string{
	`acme: a short answer +2000 +700 +9[3-9]00`,
	`acme: one longer than expected +2000 +3300 +6[0-9]00`,
	`acme: hung up in the middle +3000 +500 +5[5-9]00`,
	`acme: cancelled, the model is busy +3000 +0 +5[5-9]00`,
	`acme: the process dies before it settles +1500 +- +4[0-9]00`,
	`acme: another process gives that back +5[5-9]00`,
	`acme: far longer, 1500 of it are debt +5000 +7000 +0`,
	`acme: denied here +1000 +too many tokens, try again in 1[0-5]s`,
	`acme: denied in the other process +1000 +too many tokens, try again in 1[0-5]s`,
	`zeta: has tokens of its own +2000 +2000 +8[0-9]00`,
	`17000 tokens were reserved for answers, 13500 were used and paid for\.`,
}

func TestTranscript(t *testing.T) {
	srv := redistest.Start(t)
	for name, args := range map[string][]string{"embedded": nil, "redis": {"-redis", srv.Addr()}, "redis again": {"-redis", srv.Addr()}} {
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

// What was streamed is paid for, whatever ended the answer.
func TestAskSettles(t *testing.T) {
	l, err := hybrid.NewFrom(leasetest.NewSource(), hybrid.PerHour(1000), hybrid.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	g := &gateway{limiter: l}
	ends := func(after int, end func() error) func(string) error {
		return func(string) error {
			if after--; after == 0 {
				return end()
			}
			return nil
		}
	}
	broken := errors.New("broken pipe")
	if used, err := g.ask(t.Context(), "k", prompt{estimate: 300, length: 300}, ends(100, func() error { return broken })); used != 100 || !errors.Is(err, broken) {
		t.Errorf("%d, %v", used, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = g.ask(t.Context(), "k", prompt{estimate: 300, length: 300}, ends(50, func() error { panic("in a handler") }))
	}()
	gone, cancel := context.WithCancel(t.Context())
	if used, err := g.ask(gone, "k", prompt{estimate: 300, length: 300}, ends(25, func() error { cancel(); return gone.Err() })); used != 25 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d, %v", used, err)
	}
	// 175 are spent and no more, so 830 are too many and 825 are there.
	var denied tooMany
	if _, err := g.ask(t.Context(), "k", prompt{estimate: 830}, discard); !errors.As(err, &denied) || denied.retryAfter <= 0 {
		t.Errorf("%v, want a denial", err)
	}
	if _, err := g.ask(t.Context(), "k", prompt{estimate: 825, length: 825}, discard); err != nil {
		t.Error(err)
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
