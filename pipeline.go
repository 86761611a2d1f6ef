package hybrid

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// pipeline sends the requests of many keys together: what arrives while maxPipelines are out waits and goes with the
// next one.
type pipeline struct {
	source  lease.Source
	timeout time.Duration

	mu    sync.Mutex // guards the fields below
	queue []*call
	out   int // pipelines that are out
}

// Bounds of pipelines. Several are out at once, so that one slow node of a cluster does not hold up the others.
const (
	maxPipelines = 4
	maxPipeline  = 100 // requests in one, so that it does not block Redis for long
)

// call is one request on its way.
type call struct {
	req   lease.Request
	grant lease.Grant
	done  chan struct{} // closed when grant is set
}

func newPipeline(src lease.Source, timeout time.Duration) *pipeline {
	return &pipeline{source: src, timeout: timeout}
}

// do sends a request and waits for its grant, or until ctx ends. While there is room for one more pipeline it is sent at
// once, by the calling goroutine: each hand-over to another one costs time on a busy machine.
func (p *pipeline) do(ctx context.Context, req lease.Request) lease.Grant {
	c := &call{req: req, done: make(chan struct{})}
	p.mu.Lock()
	p.queue = append(p.queue, c)
	calls := p.cutLocked()
	p.mu.Unlock()
	for len(calls) > 0 {
		p.send(calls)
		p.mu.Lock()
		p.out--
		calls = p.cutLocked()
		p.mu.Unlock()
		if len(calls) > 0 && c.answered() {
			go p.run(calls) // our own grant is here: others must not hold it up
			break
		}
	}
	select {
	case <-c.done:
		return c.grant
	case <-ctx.Done():
		return lease.Grant{Err: fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, p.timeout)}
	}
}

// run sends calls and what is queued meanwhile, until nothing is.
func (p *pipeline) run(calls []*call) {
	for len(calls) > 0 {
		p.send(calls)
		p.mu.Lock()
		p.out--
		calls = p.cutLocked()
		p.mu.Unlock()
	}
}

// cutLocked takes the calls of the next pipeline, if one may be sent.
func (p *pipeline) cutLocked() []*call {
	n := min(len(p.queue), maxPipeline)
	if n == 0 || p.out == maxPipelines {
		return nil
	}
	p.out++
	calls := p.queue[:n:n]
	p.queue = p.queue[n:]
	return calls
}

func (c *call) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (p *pipeline) send(calls []*call) {
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	reqs, grants := make([]lease.Request, len(calls)), make([]lease.Grant, len(calls))
	for i, c := range calls {
		reqs[i] = c.req
	}
	// A source that panics must not take the process down with it, nor leave its callers waiting.
	defer func() {
		if r := recover(); r != nil {
			for i := range grants {
				grants[i] = lease.Grant{Err: fmt.Errorf("%w: panic in the source: %v", limit.ErrUnavailable, r)}
			}
		}
		for i, c := range calls {
			c.grant = grants[i]
			close(c.done)
		}
	}()
	p.source.Acquire(ctx, reqs, grants)
}
