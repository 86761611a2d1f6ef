// Command http is a small API behind a rate limit that all its instances share.
//
// It needs nothing installed: it starts two instances on ports of their own, each with its own limiter, over a Redis that is
// embedded in the program. With -redis they share the limit with all other processes that have the same Redis.
//
// The exit status is 0 after an interrupt (Ctrl-C), which lets requests in flight end and gives leased tokens back; 1 if
// it cannot listen; 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9/logging"
	"golang.org/x/sync/errgroup"

	"github.com/hybridlimit/hybrid/limit"
)

func main() {
	logging.Disable() // the limiter reports outages, once each
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C is not caught
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// config is what the flags say.
type config struct {
	listen []string // an address for each instance
	redis  string
	limit  limit.Limit
}

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "http:", err)
		return 2
	}
	if err := serve(ctx, cfg, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "http:", err)
		return 1
	}
	return 0
}

// parse reads the flags. Help goes to stdout; an error is one line.
func parse(args []string, stdout io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("http", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	listen := fs.String("listen", "localhost:8080,localhost:8081", "`addresses` to serve on, with commas between them, each by an instance of its own")
	fs.StringVar(&c.redis, "redis", "", "`address` of a Redis server, host:port; without it, one is embedded")
	fs.TextVar(&c.limit, "limit", limit.Limit{Rate: 5, Period: 30 * time.Second, Burst: 5}, "`limit` of each client, such as \"100/s burst 200\"")
	err := fs.Parse(args)
	c.listen = strings.Split(*listen, ",")
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, "Usage: http [flags]\n\nServes a small API behind a rate limit.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
	case err != nil:
		err = fmt.Errorf("%w (-help lists the flags)", err)
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q (-help lists the flags)", fs.Arg(0))
	}
	return c, err
}

// serve serves until ctx ends.
func serve(ctx context.Context, cfg config, stdout, stderr io.Writer) error {
	addr := cfg.redis
	if addr == "" {
		m, err := miniredis.Run()
		if err != nil {
			return fmt.Errorf("cannot start the embedded Redis: %w", err)
		}
		defer m.Close()
		m.ClockTTL(true) // else its keys never expire
		addr = m.Addr()
	}
	var instances []*instance
	for _, listen := range cfg.listen {
		i, err := newInstance(listen, addr, cfg.limit, stderr)
		if err != nil {
			return err
		}
		defer i.close()
		instances = append(instances, i)
	}
	fmt.Fprintf(stdout, "One limit of %v for each address; Ctrl-C ends it. Try\n\n", cfg.limit)
	for _, i := range instances {
		fmt.Fprintf(stdout, "    curl -i %s/hello/you\n", i.base())
	}
	fmt.Fprintf(stdout, "    curl -i %s/limit\n    curl %[1]s/limits\n", instances[0].base())
	all, ctx := errgroup.WithContext(ctx) // if one fails, all end
	for _, i := range instances {
		all.Go(func() error { return i.serve(ctx) })
	}
	return all.Wait()
}
