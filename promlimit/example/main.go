// Command example puts load on a limiter and prints what Prometheus would scrape from it meanwhile and at the end.
//
// It needs nothing installed: Redis is embedded in the program.
//
// The exit status is 0, 1 if something fails, and 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/promlimit"
	"github.com/hybridlimit/hybrid/remote"
	"github.com/hybridlimit/hybrid/tally"
)

func main() {
	logging.Disable() // an outage is in the metrics
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("example", flag.ContinueOnError)
	flags.SetOutput(stderr)
	length := flags.Duration("for", 3*time.Second, "how long the load lasts")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := scrapeUnderLoad(ctx, *length, stdout); err != nil {
		fmt.Fprintln(stderr, "example:", err)
		return 1
	}
	return 0
}

// scrapeUnderLoad has a few hundred customers ask, some of them for more than their limit, and takes Redis away for a
// while.
func scrapeUnderLoad(ctx context.Context, length time.Duration, out io.Writer) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: server.Addr()}))
	defer rdb.Close()
	reg := prometheus.NewRegistry()
	lim, counted, err := newLimiter(rdb, reg)
	if err != nil {
		return err
	}
	defer lim.Close(context.Background())
	endpoint := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	defer endpoint.Close()
	defer http.DefaultClient.CloseIdleConnections()

	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var load sync.WaitGroup
	for worker := range 4 {
		load.Go(func() { ask(ctx, counted, worker) })
	}
	if sleep(ctx, length/3) {
		fmt.Fprintln(out, "# A third of the time is over, under load:")
		if err := scrape(out, endpoint.URL, "hybrid_decisions_total", "hybrid_held_tokens"); err != nil {
			return err
		}
	}
	server.SetError("LOADING Redis is loading the dataset in memory")
	sleep(ctx, length/3)
	server.SetError("")
	load.Wait()
	fmt.Fprintln(out, "\n# At the end, with an outage in between:")
	return scrape(out, endpoint.URL, "hybrid_")
}

// newLimiter is how a program is wired up.
func newLimiter(rdb remote.Client, reg prometheus.Registerer) (*hybrid.Limiter, limit.Limiter, error) {
	m, err := promlimit.New(promlimit.Options{Name: "api"})
	if err != nil {
		return nil, nil, err
	}
	if err := reg.Register(m); err != nil {
		return nil, nil, err
	}
	lim, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{Observer: m})
	if err != nil {
		return nil, nil, err
	}
	if err := m.Watch(lim); err != nil {
		return nil, nil, err
	}
	counted, err := m.Count(lim, tally.Options{
		Class: func(key string) string { // "free:customer-42" is of class "free"
			plan, _, _ := strings.Cut(key, ":")
			return plan
		},
	})
	return lim, counted, err
}

// ask is one worker: a busy customer, and many who come now and then.
func ask(ctx context.Context, counted limit.Limiter, worker int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		for range 2 {
			_, _ = counted.Allow(ctx, "paid:customer-1") // an error counts as failed
		}
		if i%10 == 0 {
			_, _ = counted.Allow(ctx, fmt.Sprintf("free:customer-%d", (worker*75+i/10)%300))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// sleep reports whether the time was over before ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// scrape prints the lines of an endpoint about metrics whose names begin so, without the help texts.
func scrape(out io.Writer, url string, names ...string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(page)) {
		for _, name := range names {
			if strings.HasPrefix(strings.TrimPrefix(line, "# TYPE "), name) {
				fmt.Fprint(out, line)
			}
		}
	}
	return nil
}
