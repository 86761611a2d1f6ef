package httplimit_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hybridlimit/hybrid/httplimit"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// squeeze makes indentation and line breaks not matter.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestDocsCode requires that the Go code of docs/http.md is that of an example, so that it compiles and does what it says.
// Of a framework, which is no dependency, the examples have a stand-in.
func TestDocsCode(t *testing.T) {
	examples := squeeze(read(t, "example_test.go") + read(t, "transport_example_test.go") + read(t, "../examples/http/api.go"))
	parts := strings.Split(read(t, "../docs/http.md"), "```go\n")
	if len(parts) < 5 {
		t.Errorf("docs/http.md has %d blocks of Go code", len(parts)-1)
	}
	for _, part := range parts[1:] {
		block, _, _ := strings.Cut(part, "```")
		if !strings.Contains(examples, squeeze(strings.ReplaceAll(block, "gin.Context", "ginContext"))) {
			t.Errorf("in no example:\n%s", block)
		}
	}
}

func TestDocsNameAllOptions(t *testing.T) {
	page := read(t, "../docs/http.md")
	for _, opts := range []any{httplimit.Options{}, httplimit.TransportOptions{}, httplimit.Addr{}} {
		typ := reflect.TypeOf(opts)
		for field := range typ.Fields() {
			if name := field.Name; !strings.Contains(page, "| `"+name+"` |") {
				t.Errorf("docs/http.md has no row for %s.%s", typ.Name(), name)
			}
		}
	}
}
