// Peers compares the limiters of this module with other Go limiters: the same work in the same run, and beside each
// speed how exactly the limit was kept.
//
//	go run .            # the whole tables, a few minutes
//	go run . -short     # fewer and shorter passes: is everything in order?
//	go test -bench .    # the same as ordinary benchmarks
//
// The figures of one run say nothing about another machine, and little about the same machine an hour later. Every
// limiter therefore gets many short passes in turn with the others, each ratio is of two passes of the same round, and
// the tables show medians over the rounds.
//
// Whether this module reaches the numbers it is meant to reach says the command in yardsticks.
//
// Redis is the server named by HYBRID_REDIS_ADDR, else a redis-server started here on a free port, else a miniredis in
// this process, which the heading then says: its speed is not that of Redis.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
)

// config is how long and how often things are measured.
type config struct {
	rounds   int
	pass     time.Duration
	accuracy time.Duration
	offered  float64
}

func main() {
	var c config
	short := flag.Bool("short", false, "2 rounds of 50 ms and 500 ms for accuracy, unless given")
	flag.IntVar(&c.rounds, "rounds", 5, "rounds; the tables show medians over them")
	flag.DurationVar(&c.pass, "pass", 150*time.Millisecond, "length of one pass; a lead-in of a third comes before it")
	flag.DurationVar(&c.accuracy, "accuracy", 2500*time.Millisecond, "length of the accuracy run of one limiter; not a whole number of seconds, so that no window ends with it")
	flag.Float64Var(&c.offered, "offered", 5, "load of the accuracy run, times the limit")
	flag.Parse()
	if *short {
		given := make(map[string]bool)
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["rounds"] {
			c.rounds = 2
		}
		if !given["pass"] {
			c.pass = 50 * time.Millisecond
		}
		if !given["accuracy"] {
			c.accuracy = 500 * time.Millisecond
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := report(ctx, os.Stdout, c); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// report measures everything and writes the tables.
func report(ctx context.Context, w io.Writer, c config) error {
	b, err := measure.Open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	heading(w, b, c)

	redis := &table{
		peers: slices.Concat(redisPeers(), ourRedisPeers()),
		loads: loads(1, 64, 256),
		redis: true,
	}
	if err := redis.fill(ctx, b, c); err != nil {
		return err
	}
	redis.writeRedis(w, "Over Redis, one hot key", true)
	redis.writeRedis(w, fmt.Sprintf("Over Redis, %d keys, Zipf 1.1", zipfKeys), false)

	memory := &table{
		peers: slices.Concat(memoryPeers(), ourMemoryPeers(), []Peer{loop()}),
		loads: loads(1, 2*runtime.GOMAXPROCS(0)),
	}
	if err := memory.fill(ctx, b, c); err != nil {
		return err
	}
	memory.writeMemory(w)
	notes(w)
	return nil
}

func heading(w io.Writer, b *measure.Backend, c config) {
	fmt.Fprintf(w, "%s, %s, %s\n\n", time.Now().Format("2006-01-02 15:04 MST"), measure.Machine(), b.Kind)
	fmt.Fprintf(w, "Medians of %d interleaved passes of %v. Accuracy: %v per second, %g times that offered for %v by %d goroutines.\n\n",
		c.rounds, c.pass, accuracyLimit.Rate, c.offered, c.accuracy, accuracyGoroutines)
	fmt.Fprintf(w, "Modules: %s.\n\n", strings.Join(measure.Versions(), ", "))
}

func notes(w io.Writer) {
	fmt.Fprintf(w, `Notes

- x over Redis: decisions per second over those of %s in the same round, for one goroutine in turns with it.
  x in memory: time per decision over that of %s (hot key) or of %s (Zipf)
  in the same round.
- The speed runs use a limit that nobody reaches: %s where no other is noted.
- p50 and p99 are of single calls, from asking to being told.
- trips: round trips per decision, counted as writes on the client's connections. commands: what Redis ran per
  decision at the middle load, those inside scripts included. allocs: per decision, at the middle load over Redis and
  at the first in memory, everything in the process counted.
- admitted/ideal: ideal is Burst + Rate*W with W as measured, the most a token bucket may admit. Limiters of windows
  stay below it in the long run, for what one window leaves is not there in the next; a fixed window can exceed it in
  the short run, around its edge. Where offered/ideal is below 1 the limiter was too slow to be offered what it may
  admit.
- Calls that ended in an error are not decisions; remarks give their share, and that of denials in a speed run.
- Leases are cold in the tables over Redis: between two passes of the same limiter they run out, and the lead-in is all
  it has to get new ones. In the table in memory they last.
- hybrid clamps a LeaseSize to a quarter of the burst, in the accuracy run 250.
- Client and Redis share the processors of this machine when the server was started here.
`, redisYardstick, memoryYardstick, mapYardstick, short(vast))
	fmt.Fprintln(w, "\nNot in the tables:")
	for _, m := range missing {
		fmt.Fprintf(w, "- %s\n", m)
	}
}
