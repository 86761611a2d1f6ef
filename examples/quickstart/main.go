// Command quickstart puts one limit under load in every mode of hybrid and shows what each mode costs and how well it
// keeps the limit.
//
// It needs nothing installed: without -redis it runs against a Redis that is embedded in the program. Several
// instances share the limit, each with a client and a limiter of its own, as so many processes would.
//
// The exit status is 0; 1 if Redis cannot be used; 2 for wrong flags; 130 after an interrupt (Ctrl-C), which ends the
// run at once and prints what was measured until then.
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
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// mode is one way to keep the limit.
type mode struct {
	name   string
	window bool // counts in windows, see config.limitOf
	alone  bool // every worker has a limiter of its own, so that none shares a call with another
	open   opener
}

// opener makes the limiter of one instance.
type opener func(rdb *redis.Client, lim limit.Limit, prefix string, cfg config) (limit.Limiter, error)

var modes = []mode{
	{name: "leased (hybrid)", open: leased},
	{name: "token bucket", open: inRedis(remote.NewTokenBucket)},
	{name: "GCRA", open: inRedis(remote.NewGCRA)},
	{name: "fixed window", window: true, open: inRedis(remote.NewFixedWindow)},
	{name: "sliding log", window: true, open: inRedis(remote.NewSlidingLog)},
	{name: "sliding counter", window: true, open: inRedis(remote.NewSlidingCounter)},
	{name: "one call per request", alone: true, open: inRedis(remote.NewTokenBucket)},
}

// timeout is generous, because the load and perhaps Redis too share the processors of one machine.
const timeout = 2 * time.Second

// leased decides from tokens that it fetches from Redis a batch at a time.
func leased(rdb *redis.Client, lim limit.Limit, prefix string, cfg config) (limit.Limiter, error) {
	return hybrid.New(rdb, lim, hybrid.Options{Prefix: prefix, LeaseSize: cfg.lease, Timeout: timeout, OnFailure: hybrid.FailClosed})
}

// inRedis decides every request in Redis.
func inRedis[L limit.Limiter](open func(remote.Client, limit.Limit, remote.Options) (L, error)) opener {
	return func(rdb *redis.Client, lim limit.Limit, prefix string, _ config) (limit.Limiter, error) {
		return open(rdb, lim, remote.Options{Prefix: prefix, Timeout: timeout})
	}
}

func main() {
	logging.Disable() // go-redis would report failed connections once more
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C is not caught
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 2
	}
	err = compare(ctx, cfg, stdout, newProgress(stderr))
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "quickstart: interrupted")
		return 130
	case err != nil:
		fmt.Fprintln(stderr, "quickstart:", oneLine(err))
		return 1
	}
	return 0
}

// compare runs the modes one after another and prints a row for each.
func compare(ctx context.Context, cfg config, out io.Writer, bar *progress) error {
	srv, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer srv.close()

	fmt.Fprintf(out, "One key with a limit of %v, %d instances with %d workers each asking as fast as they can,\n%v for each mode, on %s.\n\n",
		cfg.limit, cfg.instances, cfg.workers, cfg.length, srv.name)
	printHead(out)
	// Keys of this run only: on a real server they vanish by their time to live, and nothing else is touched.
	id := rand.Text()
	var terms lease.Terms
	for i, m := range modes {
		bar.show(fmt.Sprintf("%d/%d %s", i+1, len(modes), m.name))
		t, err := m.run(ctx, cfg, srv, fmt.Sprintf("quickstart:%s:%d:", id, i))
		bar.clear()
		switch {
		case errors.Is(err, limit.ErrInvalid):
			fmt.Fprintf(out, "%-22s %v\n", m.name, err)
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if t.terms.TTL > 0 {
			terms = t.terms
		}
		if t.decided > 0 {
			printRow(out, m.name, t, cfg.limit)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	printLegend(out, cfg, terms)
	return nil
}

// run puts the mode under load.
func (m mode) run(ctx context.Context, cfg config, srv *server, prefix string) (tally, error) {
	var limiters []limit.Limiter // one entry for each worker
	for _, rdb := range srv.clients {
		var l limit.Limiter
		for i := range cfg.workers {
			if i == 0 || m.alone {
				var err error
				if l, err = m.open(rdb, cfg.limitOf(m), prefix, cfg); err != nil {
					return tally{}, err
				}
				defer closeLimiter(l)
			}
			limiters = append(limiters, l)
		}
	}
	// Connections and scripts are there before the clock runs.
	if err := warm(ctx, limiters); err != nil {
		return tally{}, err
	}
	before := srv.calls.Scripts()
	t := load(ctx, limiters, cfg.length)
	t.calls = srv.calls.Scripts() - before
	if l, ok := limiters[0].(*hybrid.Limiter); ok {
		t.terms = l.Stats().Terms
	}
	if t.decided == 0 && t.err != nil {
		return t, t.err
	}
	return t, nil
}

// closeLimiter gives leased tokens back, also after an interrupt; the other limiters hold nothing.
func closeLimiter(l limit.Limiter) {
	if l, ok := l.(*hybrid.Limiter); ok {
		_ = l.Close(context.Background()) // what could not be given back comes back by refill
	}
}
