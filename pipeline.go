package hybrid

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/internal/flight"
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

// Bounds of pipelines. Several are out at once: one that is slow does not hold up the others.
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

// do sends a request and waits for its grant, or until ctx ends. While there is room for one more pipeline it is sent at
// once, by the calling goroutine: each hand-over to another one costs time on a busy machine.
func (p *pipeline) do(ctx context.Context, req lease.Request) lease.Grant {
	c := p.enter(&req)
	if c == nil {
		reqs, grants := []lease.Request{req}, make([]lease.Grant, 1)
		defer p.leave() // whatever the source does to this goroutine
		p.acquire(ctx, reqs, grants)
		return grants[0]
	}
	select {
	case <-c.done:
		return c.grant
	case <-ctx.Done():
		// Nobody waits for it any more. If it was not sent yet it never is: it would charge tokens for callers who
		// were told that there is no answer, and while Redis is away there would be ever more like it.
		p.mu.Lock()
		if i := slices.Index(p.queue, c); i >= 0 {
			p.queue = slices.Delete(p.queue, i, i+1)
		}
		p.mu.Unlock()
		return lease.Grant{Err: fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, p.timeout)}
	}
}

// enter takes a place for one more pipeline, which leave gives back; if there is none it puts the request into the queue.
func (p *pipeline) enter(req *lease.Request) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out < maxPipelines {
		p.out++
		return nil
	}
	c := &call{req: *req, done: make(chan struct{})}
	p.queue = append(p.queue, c)
	return c
}

// leave gives the place of a pipeline to the requests that wait for one.
func (p *pipeline) leave() {
	if calls := p.cut(); len(calls) > 0 {
		go func() { // ends with its pipeline
			defer p.leave()
			p.send(calls)
		}()
	}
}

// cut takes the calls of the next pipeline for one that has ended, or gives its place up if there are none.
func (p *pipeline) cut() []*call {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.queue), maxPipeline)
	if n == 0 {
		p.out--
		return nil
	}
	calls := slices.Clone(p.queue[:n])
	p.queue = slices.Delete(p.queue, 0, n)
	return calls
}

func (p *pipeline) send(calls []*call) {
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	reqs, grants := make([]lease.Request, len(calls)), make([]lease.Grant, len(calls))
	for i, c := range calls {
		reqs[i] = c.req
	}
	defer func() { // whatever the source does to this goroutine
		for i, c := range calls {
			c.grant = grants[i]
			close(c.done)
		}
	}()
	p.acquire(ctx, reqs, grants)
}

// acquire asks the source. One that panics must not take the process down with it, nor leave its callers waiting; nor
// is it an answer if it ends the goroutine, or forgets a grant.
func (p *pipeline) acquire(ctx context.Context, reqs []lease.Request, grants []lease.Grant) {
	fail := func(err error) {
		for i := range grants {
			grants[i] = lease.Grant{Err: err}
		}
	}
	fail(errEnded)
	err := flight.Guard(func() error {
		p.source.Acquire(ctx, reqs, grants)
		return nil
	})
	if err != nil {
		fail(err)
	}
	for i := range grants {
		if err := grants[i].Err; err != nil && !errors.Is(err, limit.ErrUnavailable) && !errors.Is(err, limit.ErrInvalid) {
			grants[i].Err = fmt.Errorf("%w: %w", limit.ErrUnavailable, err) // one of another source's own
		}
		if !grants[i].Answers(&reqs[i]) {
			grants[i] = lease.Grant{Err: errNoAnswer}
		}
	}
}

var (
	errEnded    = fmt.Errorf("%w: the source ended without an answer", limit.ErrUnavailable)
	errNoAnswer = fmt.Errorf("%w: the source gave a grant that does not answer the request", limit.ErrUnavailable)
)

// once sends requests apart from all others and waits for the grants, or until ctx ends.
func (p *pipeline) once(ctx context.Context, reqs []lease.Request) []lease.Grant {
	done := make(chan []lease.Grant, 1)
	go func() {
		grants := make([]lease.Grant, len(reqs))
		p.acquire(ctx, reqs, grants)
		done <- grants
	}()
	select {
	case grants := <-done:
		return grants
	case <-ctx.Done():
		grants := make([]lease.Grant, len(reqs))
		for i := range grants {
			grants[i].Err = fmt.Errorf("%w: %w", limit.ErrUnavailable, ctx.Err())
		}
		return grants
	}
}
