package hybrid_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/hybridlimit/hybrid"

const (
	goRedisPath = "github.com/redis/go-redis/v9"
	lruPath     = "github.com/hashicorp/golang-lru/v2"
	xsyncPath   = "golang.org/x/sync"
	mapPath     = "github.com/puzpuzpuz/xsync/v4"
)

// allowedImports says what each package may import besides the standard library: packages of this module by their
// folder, others by the path of their module. Tests may import anything.
var allowedImports = map[string][]string{
	".":                 {"limit", "lease", "remote", "internal/balance", "internal/breaker", "internal/bucket", "internal/flight", "internal/keytable", lruPath},
	"limit":             {"internal/bucket"},
	"local":             {"limit", "internal/bucket", lruPath},
	"httplimit":         {"limit"},
	"lease":             {"limit", "internal/bucket"},
	"lease/leasetest":   {"limit", "lease", "internal/bucket"},
	"remote":            {"limit", "lease", "internal/bucket", "internal/flight", goRedisPath},
	"tally":             {"limit", mapPath},
	"internal/balance":  {},
	"internal/breaker":  {},
	"internal/bucket":   {},
	"internal/figures":  {".", "limit", "tally"},
	"internal/calls":    {goRedisPath},
	"internal/flight":   {"limit", "lease", xsyncPath},
	"internal/keytable": {lruPath, mapPath},
}

// freePackages are programs, benchmarks and helps for tests. They may import anything, but programs not what is for
// tests, and no other package imports them.
var freePackages = []string{"benchmarks", "cmd", "examples", "internal/redistest"}

func isFree(pkg string) bool {
	return slices.ContainsFunc(freePackages, func(f string) bool { return pkg == f || strings.HasPrefix(pkg, f+"/") })
}

// TestImports keeps the layers apart: whoever imports limit does not get Redis, and nobody gets what only tests need.
func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, file := range goFiles(t) {
		pkg := path.Dir(file)
		seen[pkg] = true
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		allowed, ok := allowedImports[pkg]
		if !ok && !isFree(pkg) {
			t.Errorf("package %s has no row in the table of this test", pkg)
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			switch {
			case !isFree(pkg):
				ok = mayImport(name, allowed)
			case strings.HasPrefix(pkg, "examples/"), strings.HasPrefix(pkg, "cmd/"):
				ok = name != "testing" && name != modulePath+"/internal/redistest"
			default:
				ok = true
			}
			if !ok {
				t.Errorf("%s imports %s", file, name)
			}
		}
	}
	for pkg := range allowedImports {
		if !seen[pkg] {
			t.Errorf("package %s of the table does not exist", pkg)
		}
	}
}

func mayImport(name string, allowed []string) bool {
	if first, _, _ := strings.Cut(name, "/"); !strings.Contains(first, ".") {
		return first != "testing" // of the standard library
	}
	if name == modulePath {
		return slices.Contains(allowed, ".")
	}
	if own, ok := strings.CutPrefix(name, modulePath+"/"); ok {
		return slices.Contains(allowed, own)
	}
	return slices.ContainsFunc(allowed, func(a string) bool { return name == a || strings.HasPrefix(name, a+"/") })
}

func TestMayImport(t *testing.T) {
	for name, want := range map[string]bool{
		"sync/atomic":                      true,
		"testing":                          false,
		"testing/synctest":                 false,
		modulePath:                         false,
		modulePath + "/limit":              true,
		modulePath + "/limit/other":        false,
		lruPath:                            true,
		lruPath + "/simplelru":             true,
		lruPath + "x":                      false,
		"github.com/alicebob/miniredis/v2": false,
	} {
		if got := mayImport(name, []string{"limit", lruPath}); got != want {
			t.Errorf("mayImport(%q) = %v", name, got)
		}
	}
}

// goFiles returns the Go files of this module, as slash-separated paths; nested modules are left out.
func goFiles(t *testing.T) []string {
	t.Helper()
	return filesUnder(t, ".go", func(dir string) bool {
		nested, err := filepath.Glob(filepath.Join(dir, "go.mod"))
		return dir == "." || err == nil && len(nested) == 0
	})
}

// filesUnder returns the files whose name ends in suffix, without hidden folders, testdata, and those that enter refuses.
func filesUnder(t *testing.T, suffix string, enter func(dir string) bool) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			if strings.HasSuffix(name, suffix) {
				files = append(files, filepath.ToSlash(name))
			}
		case name != "." && strings.HasPrefix(d.Name(), "."), d.Name() == "testdata", !enter(name):
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
