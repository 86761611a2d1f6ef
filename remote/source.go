package remote

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// Source leases tokens from the buckets of NewTokenBucket; both may share a key. It is a lease.Source, safe for
// concurrent use.
type Source struct {
	opts Options
	conn conn
	err  error
}

// NewSource returns a Source. With a nil client or bad options every grant has an error that wraps limit.ErrInvalid;
// hybrid.New reports it at once.
func NewSource(rdb Client, opts Options) *Source {
	opts, err := opts.complete(rdb)
	if err != nil {
		return &Source{err: err}
	}
	return &Source{opts: opts, conn: newConn(rdb)}
}

// Err says why the source cannot be used, if it cannot: a nil client or bad options.
func (s *Source) Err() error { return s.err }

// Acquire sends the requests, several in one pipeline, and fills the grants. It waits at most Options.Timeout and not
// longer than ctx. No request is executed twice.
func (s *Source) Acquire(ctx context.Context, reqs []lease.Request, grants []lease.Grant) {
	if s.err != nil {
		for i := range grants {
			grants[i] = lease.Grant{Err: s.err}
		}
		return
	}
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > s.opts.Timeout { // else it needs no second timer
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
	}
	var send []int // of the requests that can be sent
	for i := range reqs {
		if err := check(&reqs[i]); err != nil {
			grants[i] = lease.Grant{Err: err}
			continue
		}
		send = append(send, i)
	}
	switch len(send) {
	case 0:
	case 1:
		grants[send[0]] = s.acquire(ctx, &reqs[send[0]])
	default:
		s.acquireAll(ctx, send, reqs, grants)
	}
}

// check says why no bucket could answer the request.
func check(req *lease.Request) error {
	if err := req.Limit.Validate(); err != nil {
		return err
	}
	if req.Limit.Rate < 1 {
		return fmt.Errorf("%w: %v has no bucket to lease from", limit.ErrInvalid, req.Limit)
	}
	for _, c := range req.Costs {
		if c.Cost < 0 || c.Count < 0 {
			return fmt.Errorf("%w: a run is negative", limit.ErrInvalidTokens)
		}
	}
	return req.Limit.Admit(req.Key, 0)
}

func (s *Source) key(key string) string { return redisKey(s.opts.Prefix, key, tokenBucketSuffix) }

// acquire sends one request.
func (s *Source) acquire(ctx context.Context, req *lease.Request) lease.Grant {
	reply, err := s.conn.run(ctx, tokenBucketScript, s.key(req.Key), bucketArgs(req), req.Costs)
	if err != nil {
		return s.grant(lease.Grant{}, err)
	}
	return s.grant(readGrant(reply, req))
}

// grant is g, or says why there is none.
func (s *Source) grant(g lease.Grant, err error) lease.Grant {
	if err != nil {
		return lease.Grant{Err: unavailable(s.opts.Prefix, err)}
	}
	return g
}

// Reset makes the bucket of key full; see TokenBucket.Reset.
func (s *Source) Reset(ctx context.Context, key string, lim limit.Limit) error {
	if s.err != nil {
		return s.err
	}
	if err := check(&lease.Request{Key: key, Limit: lim}); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	err := resetBucket(bounded, s.conn, s.key(key), lim)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return unavailable(s.opts.Prefix, err)
}

// acquireAll sends the requests of the given indices in one pipeline. Those whose node did not know the script were not
// executed: they are sent once more, on their own, because in a pipeline there is no falling back to EVAL.
func (s *Source) acquireAll(ctx context.Context, send []int, reqs []lease.Request, grants []lease.Grant) {
	pipe := s.conn.rdb.Pipeline()
	cmds := make([]command, len(reqs))
	for _, i := range send {
		cmds[i] = call(ctx, tokenBucketScript.byName, s.key(reqs[i].Key), bucketArgs(&reqs[i]), reqs[i].Costs)
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	failed := s.conn.await(ctx, func() error {
		_, err := pipe.Exec(ctx)
		return err
	})
	if s.conn.patient && ctx.Err() != nil && failed == ctx.Err() { // given up while the pipeline may still be filling the commands
		for _, i := range send {
			grants[i] = lease.Grant{Err: fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, s.opts.Timeout)}
		}
		return
	}
	// The others wait for these, so they are tried for a part of the time only: one node that refuses connections must
	// not make the keys of all others late.
	again, stop := context.WithTimeout(ctx, s.opts.Timeout/4)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, i := range send {
		reply, err := cmds[i].Slice()
		if answer, ok := cmds[i].Val().([]any); ok {
			// Answered, whatever else the client says: of a cluster in which one node is lost it gives the error of that
			// one to all commands of the pipeline. The script ran, and has charged.
			reply, err = answer, nil
		}
		if failed != nil && cmds[i].Err() == nil && cmds[i].Val() == nil {
			err = failed // the pipeline never came to this one
		}
		if err != nil && (classify(err) == noScript || classify(err) == notExecuted) {
			wg.Go(func() { grants[i] = s.acquire(again, &reqs[i]) })
			continue
		}
		if err != nil {
			grants[i] = s.grant(lease.Grant{}, err)
			continue
		}
		grants[i] = s.grant(readGrant(reply, &reqs[i]))
	}
}

var _ redis.Cmder = command{}
