// Command tiers limits customers by their plan, and by several limits at once.
//
// It needs nothing installed: without -redis it runs against a Redis that is embedded in the program. It prints what
// becomes of some requests and ends after about a second.
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
		fmt.Fprintln(stderr, "tiers:", err)
		return 2
	}
	if err := play(ctx, addr, stdout); err != nil {
		fmt.Fprintln(stderr, "tiers:", err)
		return 1
	}
	return 0
}

// parse reads the flags. Help goes to stdout; an error is one line.
func parse(args []string, stdout io.Writer) (redisAddr string, err error) {
	fs := flag.NewFlagSet("tiers", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&redisAddr, "redis", "", "`address` of a Redis server, host:port; without it, one is embedded")
	err = fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, "Usage: tiers [flags]\n\nLimits customers by their plan, and by several limits at once.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
	case err != nil:
		err = fmt.Errorf("%w (-help lists the flags)", err)
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q (-help lists the flags)", fs.Arg(0))
	}
	return redisAddr, err
}

// play makes the limiters, one for each kind of limit, and lets customers ask.
func play(ctx context.Context, addr string, stdout io.Writer) (err error) {
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
	run := "example-tiers:" + rand.Text() + ":" // each run begins with full buckets
	s := &script{out: stdout, plans: plans{of: map[string]plan{"bob": "trial", "eve": "pro", "bigco": "enterprise", "mallory": "blocked"}}}
	for _, l := range []struct {
		to       **hybrid.Limiter
		name     string
		limit    hybrid.Limit
		limitFor func(key string) hybrid.Limit
	}{
		// Limiters need prefixes of their own: with the same key they would share a bucket.
		{&s.perMinute, "minute:", limits["free"].perMinute, s.plans.perMinute},
		{&s.perDay, "day:", limits["free"].perDay, s.plans.perDay},
		{&s.tenants, "tenant:", perTenant, nil},
	} {
		limiter, err := hybrid.New(rdb, l.limit, hybrid.Options{
			Prefix: run + l.name, LimitFor: l.limitFor, OnFailure: hybrid.FailClosed, Timeout: time.Second,
		})
		if err != nil {
			return err
		}
		defer limiter.Close(context.Background())
		*l.to = limiter
	}
	return s.play(ctx)
}
