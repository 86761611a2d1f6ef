package hybrid_test

import (
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
)

// TestPackageComments requires one package comment in each folder, in the usual form, so that the documentation of a
// package has one home.
func TestPackageComments(t *testing.T) {
	names := map[string]string{}
	comments := map[string][]string{} // the files that have one
	for _, file := range filesUnder(t, ".go", func(string) bool { return true }) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			if f.Doc != nil {
				t.Errorf("%s: a package comment in a test", file)
			}
			continue
		}
		dir := path.Dir(file)
		names[dir] = f.Name.Name
		if f.Doc == nil {
			continue
		}
		comments[dir] = append(comments[dir], file)
		want := "Package " + f.Name.Name + " "
		text := f.Doc.Text()
		if f.Name.Name == "main" { // "Command name does" or "Name does"
			want = path.Base(dir) + " "
			text = strings.ToLower(strings.TrimPrefix(text, "Command "))
		}
		if !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package comment does not begin with %q", file, want)
		}
	}
	for dir, name := range names {
		if n := len(comments[dir]); n != 1 {
			t.Errorf("package %s in %s has %d package comments: %v", name, dir, n, comments[dir])
		}
	}
}
