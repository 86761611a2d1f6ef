// Command http is a small API behind a rate limit that all its processes share.
//
// It needs nothing installed: without -redis it runs against a Redis that is embedded in the program. Start it several
// times with the same -redis and different -listen to see them share the limit.
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
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/httplimit"
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
	fs.StringVar(&c.listen, "listen", "localhost:8080", "`address` to serve on")
	fs.StringVar(&c.redis, "redis", "", "`address` of a Redis server, host:port; without it, one is embedded")
	fs.TextVar(&c.limit, "limit", limit.Limit{Rate: 5, Period: 30 * time.Second, Burst: 5}, "`limit` of each client, such as \"100/s burst 200\"")
	err := fs.Parse(args)
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
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
	defer rdb.Close()
	lim, err := hybrid.New(rdb, cfg.limit, hybrid.Options{Prefix: "example-http:", Logger: slog.New(slog.NewTextHandler(stderr, nil))})
	if err != nil {
		return err
	}
	defer lim.Close(context.Background()) // gives unspent tokens back

	api, err := newAPI(lim)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: api, ReadHeaderTimeout: 5 * time.Second}
	ln, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return err
	}
	base := "http://" + strings.Replace(ln.Addr().String(), "127.0.0.1", "localhost", 1)
	fmt.Fprintf(stdout, "Serving with a limit of %v for each address; Ctrl-C ends it. Try\n\n    curl -i %s/hello/you\n    curl -i %s/limit\n", cfg.limit, base, base)

	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }() // ends with Shutdown
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = srv.Shutdown(ending)
	<-failed
	return err
}

// newAPI returns the handlers behind the limit.
func newAPI(lim limit.Limiter) (http.Handler, error) {
	mw, err := httplimit.New(lim, httplimit.Options{
		// Behind a proxy: httplimit.ByAddr(netip.MustParsePrefix("10.0.0.0/8")).
		Key:       httplimit.ByAddr(),
		Cost:      cost,
		SkipPaths: []string{"/healthz"},
		Dialect:   httplimit.Draft11,
		Policy:    "api",
		Contact:   "https://example.com/limits",
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Hello, %q.\n", r.PathValue("name"))
	})
	mux.HandleFunc("GET /limit", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mw.Handler(mux), nil
}

// cost lets clients look at their limit for nothing.
func cost(r *http.Request) int {
	if r.URL.Path == "/limit" {
		return 0
	}
	return 1
}
