// Command hybridlab is a lab for limits: it runs limiters of package hybrid, real ones with a Redis of their own, under a
// load of your choice, and shows what they admit, what it costs and what goes wrong when something does.
//
// Without -run it serves a page on localhost where all this can be set and watched. With -run it runs the scenarios of a
// file, one after the other so that they do not share the processors, prints a line about each, and with -out writes a
// report.
//
// It needs nothing installed: without -redis it runs against a Redis that is embedded in the program. On a server it uses
// keys with a prefix of their own, which expire, and flushes nothing.
//
// The exit status is 0 when all is done, or after an interrupt (Ctrl-C) of the page; 1 if something failed, or a run was
// interrupted, which then writes nothing; 2 for wrong flags and scenarios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/page"
)

func main() {
	logging.Disable() // go-redis would report the connections that faults break
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C is not caught
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// config is what the flags say.
type config struct {
	listen, redis, run, out string
}

// errUsage is wrapped by errors about flags and scenarios.
var errUsage = errors.New("wrong usage")

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stdout)
	if err == nil {
		if cfg.run != "" {
			err = headless(ctx, cfg, stdout)
		} else {
			err = serve(ctx, cfg, stdout, stderr)
		}
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintln(stderr, "hybridlab:", strings.TrimPrefix(err.Error(), errUsage.Error()+": "))
		return 2
	}
	fmt.Fprintln(stderr, "hybridlab:", err)
	return 1
}

// parse reads the flags. Help goes to stdout; an error is one line.
func parse(args []string, stdout io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("hybridlab", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&c.listen, "listen", "localhost:8090", "`address` to serve the page on")
	fs.StringVar(&c.redis, "redis", "", "`address` of a Redis server, host:port or redis:// URL; without it, one is embedded")
	fs.StringVar(&c.run, "run", "", "`file` with a scenario, or a list of them, as JSON: run it and serve no page")
	fs.StringVar(&c.out, "out", "", "`file` for what -run saw: .html for a report, .json for the recordings; or a folder, with a / at\nthe end, for report.html and each chart as a file of its own")
	err := fs.Parse(args)
	switch ext := filepath.Ext(c.out); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, "Usage: hybridlab [flags]\n\nServes a lab for limits, or runs one scenario after the other.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
	case err != nil:
		err = fmt.Errorf("%w: %w (-help lists the flags)", errUsage, err)
	case fs.NArg() > 0:
		err = fmt.Errorf("%w: unexpected argument %q (-help lists the flags)", errUsage, fs.Arg(0))
	case c.out != "" && c.run == "":
		err = fmt.Errorf("%w: -out needs -run", errUsage)
	case c.out != "" && ext != ".html" && ext != ".json" && !isFolder(c.out):
		err = fmt.Errorf("%w: -out %s must end in .html, .json or /", errUsage, c.out)
	}
	return c, err
}

// connect is the Redis that the flags name.
func connect(cfg config) (*fleet.Redis, error) {
	if cfg.redis == "" {
		return fleet.Embedded()
	}
	return fleet.At(cfg.redis)
}

// serve serves the page until ctx ends.
func serve(ctx context.Context, cfg config, stdout, stderr io.Writer) error {
	ln, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("cannot serve on %s; choose another address with -listen: %w", cfg.listen, err)
	}
	defer ln.Close()
	r, err := connect(cfg)
	if err != nil {
		return err
	}
	defer r.Close()
	fmt.Fprintf(stdout, "The lab is at http://%s, with %v; Ctrl-C ends it.\n", visible(ln.Addr()), r)
	return page.Serve(ctx, ln, r, stderr)
}

// visible is addr as a browser on this machine calls it. An address that stands for all is no name of any.
func visible(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if ok && (tcp.IP.IsUnspecified() || tcp.IP.Equal(net.IPv4(127, 0, 0, 1))) {
		return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}
