package fleet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// process is an instance from its start to its end: a limiter with a client of its own. After a kill the instance is
// another process.
type process struct {
	wire *wire
	rdb  *redis.Client
	lim  limit.Limiter
	own  *hybrid.Limiter // lim, in modes of package hybrid
}

// newProcess makes the limiter of the scenario. It does no I/O.
func newProcess(r *Redis, s scenario.Scenario, prefix string, g *gate, calls *atomic.Int64) (*process, error) {
	p := &process{wire: newWire(time.Duration(s.Delay), g)}
	opts := r.options()
	opts.Dialer = p.wire.dial
	p.rdb = redis.NewClient(opts)
	p.rdb.AddHook(counter{calls})
	var err error
	ropts := remote.Options{Prefix: prefix, Timeout: s.Timeout()}
	switch s.Mode {
	case scenario.TokenBucket:
		p.lim, err = remote.NewTokenBucket(p.rdb, s.Limit, ropts)
	case scenario.GCRA:
		p.lim, err = remote.NewGCRA(p.rdb, s.Limit, ropts)
	case scenario.FixedWindow:
		p.lim, err = remote.NewFixedWindow(p.rdb, s.Limit, ropts)
	case scenario.SlidingLog:
		p.lim, err = remote.NewSlidingLog(p.rdb, s.Limit, ropts)
	case scenario.SlidingCounter:
		p.lim, err = remote.NewSlidingCounter(p.rdb, s.Limit, ropts)
	default:
		p.own, err = hybrid.New(p.rdb, s.Limit, options(s, prefix))
		p.lim = p.own
	}
	if err != nil {
		p.rdb.Close()
		return nil, err
	}
	return p, nil
}

// options are those that scenario.Scenario.Code shows, and the prefix.
func options(s scenario.Scenario, prefix string) hybrid.Options {
	o := hybrid.Options{Prefix: prefix, Timeout: s.Timeout(), Exact: s.Mode == scenario.Exact, Instances: s.Instances}
	if s.Mode == scenario.Leased {
		o.LeaseSize, o.LeaseTTL, o.Refresh = s.LeaseSize, time.Duration(s.LeaseTTL), time.Duration(s.Refresh)
		o.MaxLeased, o.Slack = s.MaxLeased, s.Slack
	}
	switch s.OnFailure {
	case "closed":
		o.OnFailure = hybrid.FailClosed
	case "open":
		o.OnFailure = hybrid.FailOpen
	}
	return o
}

// terms says what is in force.
func (p *process) terms(s scenario.Scenario) string {
	text := fmt.Sprintf("%s: %v, each decision from Redis", s.Mode, s.Limit)
	if p.own != nil {
		text = p.own.String()
	}
	if s.Timeout() != remote.DefaultTimeout {
		text += fmt.Sprintf(", timeout %v", s.Timeout())
	}
	return text
}

// held is how many tokens it has on lease.
func (p *process) held() int64 {
	if p.own == nil {
		return 0
	}
	return p.own.Stats().Held
}

// close ends the process; what it holds is given back if its wire is not cut and ctx has not ended.
func (p *process) close(ctx context.Context) {
	if p.own != nil {
		_ = p.own.Close(ctx) // an error says that tokens come back later
	}
	_ = p.rdb.Close()
}

// counter is a hook that counts the scripts that a client sends, in all modes alike: several callers may share one. A
// script that Redis does not know yet is sent twice.
type counter struct{ calls *atomic.Int64 }

func (counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}

func (c counter) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if name := cmd.Name(); name == "evalsha" || name == "eval" {
			c.calls.Add(1)
		}
	}
}
