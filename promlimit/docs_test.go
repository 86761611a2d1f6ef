package promlimit_test

import (
	"os"
	"strings"
	"testing"
)

// squeeze makes indentation and line breaks not matter.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestDocsCode requires that the Go code of docs/metrics.md is that of a program or an example, so that it compiles and
// does what it says.
func TestDocsCode(t *testing.T) {
	var examples strings.Builder
	for _, name := range []string{"example/main.go", "example_test.go", "../otellimit/example_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		examples.WriteString(squeeze(string(text)) + "\n")
	}
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(page), "```go\n")
	if len(parts) != 4 {
		t.Errorf("docs/metrics.md has %d blocks of Go code", len(parts)-1)
	}
	for _, part := range parts[1:] {
		block, _, _ := strings.Cut(part, "```")
		if !strings.Contains(examples.String(), squeeze(block)) {
			t.Errorf("in no example:\n%s", block)
		}
	}
}
