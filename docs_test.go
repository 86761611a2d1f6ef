package hybrid_test

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestDocsCode requires that the Go code of each page is found in some Go file of the project, that of nested modules
// included, so that it compiles; most of it is that of examples. Of a framework, which is no dependency, there is a stand-in.
func TestDocsCode(t *testing.T) {
	everything := func(string) bool { return true }
	var code strings.Builder
	for _, file := range filesUnder(t, ".go", everything) {
		code.WriteString(squeeze(readDoc(t, file)))
	}
	for _, page := range filesUnder(t, ".md", everything) {
		blocks := goBlocks(readDoc(t, page))
		if page == "README.md" && len(blocks) == 0 {
			t.Error("README.md has no Go code")
		}
		for _, block := range blocks {
			if !strings.Contains(code.String(), squeeze(strings.ReplaceAll(block, "gin.Context", "ginContext"))) {
				t.Errorf("%s: in no Go file:\n%s", page, block)
			}
		}
	}
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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

var (
	fenceLine = regexp.MustCompile("^ *(```|~~~)")
	codeSpan  = regexp.MustCompile("`[^`]*`")
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	htmlLink  = regexp.MustCompile(`(?:src|srcset|href)="([^"]+)"`)
)

// TestDocsLinks requires that every link of a page that stays within the project leads somewhere, headings included, and
// that every page is reached from the README. Links to other places are not followed; they must be https.
func TestDocsLinks(t *testing.T) {
	pages := map[string][]string{} // and the pages that they link to
	anchors := map[string][]string{}
	for _, page := range filesUnder(t, ".md", func(string) bool { return true }) {
		text := readDoc(t, page)
		pages[page] = nil
		anchors[page] = headings(text)
	}
	for page := range pages {
		for _, link := range links(readDoc(t, page)) {
			u, err := url.Parse(link)
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			if u.Scheme != "" {
				if u.Scheme != "https" {
					t.Errorf("%s: %s is not https", page, link)
				}
				continue
			}
			to := page
			if u.Path != "" {
				to = path.Join(path.Dir(page), u.Path)
			}
			if _, err := os.Stat(filepath.FromSlash(to)); err != nil {
				t.Errorf("%s: %s leads nowhere", page, link)
				continue
			}
			if info, _ := os.Stat(to); info.IsDir() {
				to = path.Join(to, "README.md")
			}
			pages[page] = append(pages[page], to)
			if u.Fragment != "" && !slices.Contains(anchors[to], u.Fragment) {
				t.Errorf("%s: there is no heading for %s", page, link)
			}
		}
	}

	reached := map[string]bool{}
	var walk func(string)
	walk = func(page string) {
		if _, ok := pages[page]; !ok || reached[page] {
			return
		}
		reached[page] = true
		for _, to := range pages[page] {
			walk(to)
		}
	}
	walk("README.md")
	for page := range pages {
		if !reached[page] {
			t.Errorf("no way leads from README.md to %s", page)
		}
	}
}

// links returns where the links and pictures of a Markdown text lead. What is code is none.
func links(text string) (to []string) {
	prose(text, func(line string) {
		line = codeSpan.ReplaceAllString(line, "``")
		for _, re := range []*regexp.Regexp{mdLink, htmlLink} {
			for _, m := range re.FindAllStringSubmatch(line, -1) {
				to = append(to, m[1])
			}
		}
	})
	return to
}

// headings returns the anchors that the headings of a Markdown text get: lower case, spaces as hyphens, without
// punctuation, and a number behind those that come again.
func headings(text string) (anchors []string) {
	seen := map[string]int{}
	prose(text, func(line string) {
		level := strings.TrimLeft(line, "#")
		if len(level) == len(line) || !strings.HasPrefix(level, " ") {
			return
		}
		title := mdLinkText.ReplaceAllString(strings.TrimSpace(level), "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		n := seen[anchor]
		seen[anchor]++
		if n > 0 {
			anchor += "-" + string(rune('0'+n))
		}
		anchors = append(anchors, anchor)
	})
	return anchors
}

var mdLinkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// prose calls f with each line of a Markdown text that is in no fenced block.
func prose(text string, f func(line string)) {
	fence := ""
	for line := range strings.Lines(text) {
		m := fenceLine.FindStringSubmatch(line)
		switch {
		case m != nil && fence == "":
			fence = m[1]
		case m != nil && m[1] == fence:
			fence = ""
		case fence == "":
			f(strings.TrimRight(line, "\n"))
		}
	}
}

func TestLinksAndHeadings(t *testing.T) {
	const text = "# The *first* `Key`, and [more](a.md#b)\n```sh\n# not this [x](y)\n```\n## Twice\n`[no](no)` ![yes](c.svg)\n## Twice\n<img src=\"d.svg\">\n"
	if got, want := links(text), []string{"a.md#b", "c.svg", "d.svg"}; !slices.Equal(got, want) {
		t.Errorf("links %q, want %q", got, want)
	}
	if got, want := headings(text), []string{"the-first-key-and-more", "twice", "twice-1"}; !slices.Equal(got, want) {
		t.Errorf("headings %q, want %q", got, want)
	}
}
