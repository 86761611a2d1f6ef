package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/calls"
	"github.com/hybridlimit/hybrid/limit"
)

// config is what the flags say.
type config struct {
	redis     string
	limit     limit.Limit
	instances int
	workers   int
	lease     int
	length    time.Duration // of the load on each mode
}

// limitOf is the limit in the form that the mode understands. A window has no burst beside its rate, so the same rate
// and the same most at once are Burst tokens in each time in which Burst tokens flow.
func (c config) limitOf(m mode) limit.Limit {
	if !m.window {
		return c.limit
	}
	ms := math.Ceil(1000 * float64(c.limit.Burst) / float64(c.limit.Rate))
	return limit.Limit{Rate: c.limit.Burst, Period: time.Duration(ms) * time.Millisecond, Burst: c.limit.Burst}
}

// parse reads the flags. Help goes to stdout; an error is one line.
func parse(args []string, stdout io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&c.redis, "redis", "", "`address` of a Redis server, host:port or redis:// URL; without it, one is embedded")
	rate := fs.Int("rate", 1000, "tokens per second that all instances share")
	burst := fs.Int("burst", 250, "most tokens at one instant")
	fs.IntVar(&c.instances, "instances", 4, "limiters that share the limit, each with its own client")
	fs.IntVar(&c.workers, "workers", 16, "goroutines that ask each instance")
	fs.IntVar(&c.lease, "lease", 0, "tokens that the leased mode fetches at a time; 0 lets demand decide")
	fs.DurationVar(&c.length, "for", 800*time.Millisecond, "length of the load on each of the modes")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stdout, "Usage: quickstart [flags]\n\nPuts one limit under load in every mode of hybrid and compares them.")
			fs.SetOutput(stdout)
			fs.PrintDefaults()
			return c, err
		}
		return c, fmt.Errorf("%w (-help lists the flags)", err)
	}
	c.limit = hybrid.PerSecond(*rate).WithBurst(*burst)
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q (-help lists the flags)", fs.Arg(0))
	case *rate < 1 || *rate > 1e9:
		return c, fmt.Errorf("-rate %d must be 1 to 1000000000", *rate)
	case *burst < 1 || *burst > 1e9:
		return c, fmt.Errorf("-burst %d must be 1 to 1000000000", *burst)
	case c.instances < 1 || c.instances > 100:
		return c, fmt.Errorf("-instances %d must be 1 to 100", c.instances)
	case c.workers < 1 || c.workers > 1000:
		return c, fmt.Errorf("-workers %d must be 1 to 1000", c.workers)
	case c.lease < 0:
		return c, fmt.Errorf("-lease %d must not be negative", c.lease)
	case c.length <= 0:
		return c, fmt.Errorf("-for %v must be positive", c.length)
	}
	return c, c.limit.Validate()
}

// server is the Redis of a run as the instances see it.
type server struct {
	name    string
	clients []*redis.Client // one for each instance
	calls   calls.Counter   // scripts that were sent to it
	close   func()
}

// connect starts the embedded Redis, or makes sure that the given one answers.
func connect(ctx context.Context, cfg config) (*server, error) {
	s := &server{name: "an embedded Redis (miniredis)"}
	opts := &redis.Options{Addr: cfg.redis, ContextTimeoutEnabled: true}
	stop := func() {}
	switch {
	case cfg.redis == "":
		m, err := miniredis.Run()
		if err != nil {
			return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
		}
		m.ClockTTL(true) // else its keys never expire
		opts.Addr, stop = m.Addr(), m.Close
	case strings.Contains(cfg.redis, "://"):
		var err error
		if opts, err = redis.ParseURL(cfg.redis); err != nil {
			return nil, errors.New("-redis is no URL of the form redis://user:password@host:port/db") // err may hold the password
		}
		opts.ContextTimeoutEnabled = true
		s.name = "Redis at " + opts.Addr
	default:
		s.name = "Redis at " + opts.Addr
	}
	opts.ContextTimeoutEnabled = true // go-redis heeds deadlines only then
	opts.PoolSize = max(10, min(cfg.workers, 100))
	opts.DialerRetries = 1
	opts.DialTimeout = timeout
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	for range cfg.instances {
		rdb := redis.NewClient(opts)
		rdb.AddHook(&s.calls)
		s.clients = append(s.clients, rdb)
	}
	s.close = func() {
		for _, rdb := range s.clients {
			_ = rdb.Close()
		}
		stop()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	if err := s.clients[0].Ping(ctx).Err(); err != nil {
		s.close()
		return nil, fmt.Errorf("no Redis at %s: %w", opts.Addr, err)
	}
	return s, nil
}
