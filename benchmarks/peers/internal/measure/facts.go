package measure

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// Machine says where a run takes place: the processor if the system tells, and what Go makes of it.
func Machine() string {
	return fmt.Sprintf("%s, %s, %s/%s, %d CPUs (GOMAXPROCS %d)",
		processor(), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0))
}

func processor() string {
	const unknown = "processor unknown"
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return unknown
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return unknown
}

// Versions are those of the modules that are compared and of the clients they use.
func Versions() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return []string{"unknown"}
	}
	shown := []string{"redis_rate", "throttled", "ulule/limiter", "sethvargo/go-limiter", "golang-lru/v2", "golang.org/x/time", "rueidis", "go-redis/v9", "miniredis"}
	var vs []string
	for _, m := range info.Deps {
		if slices.ContainsFunc(shown, func(s string) bool { return strings.Contains(m.Path, s) }) {
			vs = append(vs, m.Path+" "+m.Version)
		}
	}
	return vs
}
