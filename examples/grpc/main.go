// Command grpc is a gRPC service behind a rate limit that all its processes share, and a client that runs into it.
//
// The client prints what it sees and the program ends; with -serve there is no client, and it serves until an interrupt
// (Ctrl-C). It needs nothing installed: without -redis it runs against a Redis that is embedded in the program. Start it
// several times with the same -redis and -serve and different -listen to see them share the limit.
//
// The exit status is 0 if all went as it should; 1 if it cannot listen, or a call of the client fails otherwise than by
// the limit; 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"google.golang.org/grpc"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

func main() {
	logging.Disable() // the limiter reports outages, once each
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C is not caught
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// config is what the flags say.
type config struct {
	listen, redis string
	limit         limit.Limit
	serve         bool
}

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "grpc:", err)
		return 2
	}
	if err := serve(ctx, cfg, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "grpc:", err)
		return 1
	}
	return 0
}

// parse reads the flags. Help goes to stdout; an error is one line.
func parse(args []string, stdout io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("grpc", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&c.listen, "listen", "", "`address` to serve on (default localhost:50051 with -serve, else any free port)")
	fs.StringVar(&c.redis, "redis", "", "`address` of a Redis server, host:port; without it, one is embedded")
	fs.TextVar(&c.limit, "limit", limit.Limit{Rate: 2, Period: 6 * time.Second, Burst: 2}, "`limit` of each client, such as \"100/s burst 200\"")
	fs.BoolVar(&c.serve, "serve", false, "serve until an interrupt, without a client")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, "Usage: grpc [flags]\n\nServes a gRPC service behind a rate limit, calls it and prints what the client sees.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
	case err != nil:
		err = fmt.Errorf("%w (-help lists the flags)", err)
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q (-help lists the flags)", fs.Arg(0))
	}
	if c.listen == "" {
		c.listen = "127.0.0.1:0"
		if c.serve {
			c.listen = "localhost:50051"
		}
	}
	return c, err
}

// serve serves until the client has ended, or ctx.
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
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()
	lim, err := hybrid.New(rdb, cfg.limit, hybrid.Options{Prefix: "example-grpc:", Logger: slog.New(slog.NewTextHandler(stderr, nil))})
	if err != nil {
		return err
	}
	defer lim.Close(context.Background()) // gives unspent tokens back

	srv, err := newServer(lim)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }() // ends with stop
	fmt.Fprintf(stdout, "Serving on %s with a limit of %v for each address\n\n", ln.Addr(), cfg.limit)

	if !cfg.serve {
		err = talk(ctx, ln.Addr().String(), stdout)
		stop(srv)
		return errors.Join(err, <-failed)
	}
	fmt.Fprintf(stdout, "Ctrl-C ends it. With grpcurl, try\n\n    grpcurl -v -plaintext %s grpc.testing.TestService/UnaryCall\n", ln.Addr())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop(srv)
	return <-failed
}

// stop lets calls in flight end, for a while.
func stop(srv *grpc.Server) {
	late := time.AfterFunc(5*time.Second, srv.Stop)
	defer late.Stop()
	srv.GracefulStop()
}
