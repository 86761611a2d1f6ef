package hybrid_test

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeCode requires that the Go code of the README is that of an example, so that it compiles and does what it
// says.
func TestReadmeCode(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples []string
	for _, file := range goFiles(t) {
		if !strings.HasPrefix(file, "examples/") && !strings.HasSuffix(file, "example_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, squeeze(string(text)))
	}
	blocks := goBlocks(string(readme))
	if len(blocks) == 0 {
		t.Error("README.md has no Go code")
	}
	for _, block := range blocks {
		found := false
		for _, text := range examples {
			found = found || strings.Contains(text, squeeze(block))
		}
		if !found {
			t.Errorf("in no example_test.go and nowhere under examples/:\n%s", block)
		}
	}
}

// squeeze makes indentation and line breaks not matter.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// goBlocks returns the fenced Go code of a Markdown text.
func goBlocks(text string) []string {
	var blocks []string
	var block strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		fence := strings.TrimSpace(line)
		switch {
		case !inside && fence == "```go":
			inside = true
			block.Reset()
		case inside && fence == "```":
			inside = false
			blocks = append(blocks, block.String())
		case inside:
			block.WriteString(line)
		}
	}
	return blocks
}

func TestGoBlocks(t *testing.T) {
	got := goBlocks("text\n```sh\nnot this\n```\n```go\na()\n\n\tb()\n```\nmore\n  ```go\n  c()\n  ```\n")
	want := []string{"a()\n\n\tb()\n", "  c()\n"}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %q, want %q", got, want)
	}
}
