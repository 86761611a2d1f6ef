// Command llm limits the tokens of a language model: what a request costs is known only when it has been answered, so an
// estimate is reserved and the real cost is settled.
//
// It needs nothing installed: without -redis it runs against a Redis that is embedded in the program. The model is a
// pretence. It prints what becomes of some requests and ends.
//
// The exit status is 0; 1 if something fails, such as a Redis that does not answer; 2 for wrong flags.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/remote"
)

func main() {
	logging.Disable() // an error of the limiter says it all
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	addr, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "llm:", err)
		return 2
	}
	if err := play(ctx, addr, stdout); err != nil {
		fmt.Fprintln(stderr, "llm:", err)
		return 1
	}
	return 0
}

// parse reads the flags. Help goes to stdout; an error is one line.
func parse(args []string, stdout io.Writer) (redisAddr string, err error) {
	fs := flag.NewFlagSet("llm", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&redisAddr, "redis", "", "`address` of a Redis server, host:port; without it, one is embedded")
	err = fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, "Usage: llm [flags]\n\nReserves the estimated cost of requests to a pretended model and settles the real one.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
	case err != nil:
		err = fmt.Errorf("%w (-help lists the flags)", err)
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q (-help lists the flags)", fs.Arg(0))
	}
	return redisAddr, err
}

// newLimiter returns the limiter of one process.
func newLimiter(rdb *redis.Client, prefix string) (*hybrid.Limiter, error) {
	return hybrid.New(rdb, tokensPerMinute, hybrid.Options{
		Prefix: prefix,
		// Requests are few and each is a large part of the burst, so none of it may lie idle in another process.
		Exact: true,
		// Without Redis nobody knows what was spent. FailLocal would go on with a share of the limit.
		OnFailure: hybrid.FailClosed,
		Timeout:   time.Second,
	})
}

// play lets two customers ask.
func play(ctx context.Context, addr string, stdout io.Writer) error {
	if addr == "" {
		m, err := miniredis.Run()
		if err != nil {
			return fmt.Errorf("cannot start the embedded Redis: %w", err)
		}
		defer m.Close()
		m.ClockTTL(true) // else its keys never expire
		addr = m.Addr()
	}
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()
	prefix := "example-llm:" + rand.Text() + ":" // each run begins with full buckets
	s := &script{out: stdout, start: time.Now(), spent: map[string]int{}}
	for _, p := range []**gateway{&s.here, &s.there} {
		limiter, err := newLimiter(rdb, prefix)
		if err != nil {
			return err
		}
		defer limiter.Close(context.Background())
		*p = &gateway{limiter: limiter}
	}
	return s.play(ctx)
}
