// Yardsticks measures whether this module is as fast and as frugal as it is meant to be, and prints each number to reach
// beside what was measured.
//
//	go run ./yardsticks                        # about two minutes
//	go run ./yardsticks -row 'handle|by-key'   # some rows
//	go run ./yardsticks -runs 3                # everything three times, medians
//	go run ./yardsticks -short                 # seconds: is everything in order?
//	go test -bench . ./yardsticks              # the same as benchmarks, for benchstat
//	go test -bench Scale -cpu 1,2,4,8,16 ./yardsticks
//
// Sides that are compared take turns in passes of a few hundredths of a second, and each ratio is of two passes of one
// round: a shared machine drifts by more than what is to be seen, but both sides drift with it. Counts say whether the
// right thing was measured: calls to the source in passes that should have none, denials, errors. Where they say that it
// was not, the verdict is void.
//
// Redis is the server named by HYBRID_REDIS_ADDR, else a redis-server started here, else a miniredis in this process, by
// which the rows over Redis are not judged.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
)

// config is what is measured, how often and for how long.
type config struct {
	runs, rounds int
	pass         time.Duration
	short, long  bool
	row          *regexp.Regexp
}

func main() {
	c := config{row: regexp.MustCompile("")}
	flag.IntVar(&c.runs, "runs", 1, "repeat the whole so often; medians over the runs")
	flag.IntVar(&c.rounds, "rounds", 21, "rounds; of what takes a second or more, a seventh of them")
	flag.DurationVar(&c.pass, "pass", 25*time.Millisecond, "length of a pass; twice that where each decision is a round trip")
	flag.BoolVar(&c.short, "short", false, "3 rounds of 5ms unless given, few keys, everything else a tenth as long: no measure, only a test of the command")
	flag.BoolVar(&c.long, "long", false, "the shortfall over a minute, which is what its goal is about, instead of 10s")
	flag.Func("row", "measure only rows whose name matches this `regexp`", func(s string) (err error) {
		c.row, err = regexp.Compile(s)
		return err
	})
	flag.Parse()
	if c.short {
		given := make(map[string]bool)
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["rounds"] {
			c.rounds = 3
		}
		if !given["pass"] {
			c.pass = 5 * time.Millisecond
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a row is not broken off; a second interrupt ends the program
	if err := report(ctx, os.Stdout, os.Stderr, c); err != nil {
		fmt.Fprintln(os.Stderr, "yardsticks:", err)
		os.Exit(1)
	}
}

// report measures and writes the table to w, and what it is doing to progress.
func report(ctx context.Context, w, progress io.Writer, c config) error {
	l, err := openLab(ctx, c)
	if err != nil {
		return err
	}
	defer l.backend.Close()
	ms, err := l.measure(ctx, progress)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s, %s, %s\n\n", time.Now().Format("2006-01-02 15:04 MST"), measure.Machine(), l.backend.Kind)
	fmt.Fprintf(w, "Modules: %s.\n\n", strings.Join(measure.Versions(), ", "))
	fmt.Fprintf(w, "Medians; runs: %d, rounds in each: %d, passes of %v%s.\n\n", c.runs, c.rounds, c.pass, map[bool]string{true: "; -short: no measure"}[c.short])
	write(w, ms, l.backend.Real)
	fmt.Fprint(w, notes)
	return nil
}

const notes = `
- Measured is the median over the rounds, and over the runs if there are several; spread is the lower and the upper
  quartile of all rounds. Counts are those of the last run.
- The rows down to hit-ratio have a source of leases in this process instead of Redis. In those that are about speed
  leases outlast the run; rounds in which the source was called all the same are left out of the median.
- hot-key sets GOMAXPROCS to 2. Sides that are compared by key walk through the same drawn keys.
- hit-ratio: no lease ends in the run, which is the hardest case for a table that notes a key when it calls for it.
- Redis calls are writes on the connections of the limiter. The server shares the processors with the load.
- bound is a short run with crashes and no other faults. What holds the bound are the tests of the module.
- shortfall: what is missing at the beginning is missed once, so only a run of a minute is judged by its share.
`

// lab is where rows are measured.
type lab struct {
	config
	backend *measure.Backend
	prefix  string // of all keys in Redis: of this run alone
	serial  int    // of the prefixes below it
}

func openLab(ctx context.Context, c config) (*lab, error) {
	b, err := measure.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &lab{config: c, backend: b, prefix: "yardsticks:" + rand.Text() + ":"}, nil
}

// few is the number of rounds of what takes a second or more.
func (l *lab) few() int { return (l.rounds + 6) / 7 }

// scaled is the length of what takes so long in an ordinary run.
func (l *lab) scaled(d time.Duration) time.Duration {
	if l.short {
		return d / 10
	}
	return d
}

// measure runs the rows that are selected.
func (l *lab) measure(ctx context.Context, progress io.Writer) (ms []*measured, err error) {
	for run := range l.runs {
		next := 0
		for _, r := range rows() {
			if !l.row.MatchString(r.name) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			start := time.Now()
			results, err := r.measure(l)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			fmt.Fprintf(progress, "run %d of %d: %s, %.1f s\n", run+1, l.runs, r.name, time.Since(start).Seconds())
			for i, res := range results {
				if run == 0 {
					ms = append(ms, &measured{row: r, line: r.lines[i]})
				}
				ms[next].results = append(ms[next].results, res)
				next++
			}
		}
	}
	if len(ms) == 0 {
		return nil, fmt.Errorf("no row matches %q", l.row)
	}
	return ms, nil
}
