package grpclimit_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/limit"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

func TestDocsNameAllOptions(t *testing.T) {
	page := read(t, "../docs/grpc.md")
	for _, opts := range []any{grpclimit.Options{}, grpclimit.ClientOptions{}} {
		typ := reflect.TypeOf(opts)
		for field := range typ.Fields() {
			if name := field.Name; !strings.Contains(page, "| `"+name+"` |") {
				t.Errorf("docs/grpc.md has no row for %s.%s", typ.Name(), name)
			}
		}
	}
}

// TestDocsCodes compares the table of errors with Code.
func TestDocsCodes(t *testing.T) {
	page := read(t, "../docs/grpc.md")
	for name, err := range map[string]error{
		"limit.ErrUnavailable": limit.ErrUnavailable, "limit.ErrClosed": limit.ErrClosed, "limit.ErrExceedsBurst": limit.ErrExceedsBurst,
		"ErrNoKey": grpclimit.ErrNoKey, "limit.ErrInvalidKey": limit.ErrInvalidKey, "limit.ErrInvalidTokens": limit.ErrInvalidTokens,
	} {
		found := false
		for line := range strings.SplitSeq(page, "\n") {
			cells := strings.Split(line, "|")
			found = found || len(cells) > 2 && strings.Contains(cells[1], "`"+name+"`") && strings.TrimSpace(cells[2]) == fmt.Sprintf("`%v`", grpclimit.Code(err))
		}
		if !found {
			t.Errorf("docs/grpc.md has no row of %s with %v", name, grpclimit.Code(err))
		}
	}
	if !strings.Contains(page, codes.ResourceExhausted.String()) {
		t.Error("docs/grpc.md does not tell the code of a denial")
	}
}
