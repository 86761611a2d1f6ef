package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/internal/calls"
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
func newProcess(r *Redis, s scenario.Scenario, prefix string, g *gate, sent *calls.Counter) (*process, error) {
	p := &process{wire: newWire(time.Duration(s.Delay), g)}
	opts := r.options()
	opts.Dialer = p.wire.dial
	p.rdb = redis.NewClient(opts)
	p.rdb.AddHook(sent)
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
