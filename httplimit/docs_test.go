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
