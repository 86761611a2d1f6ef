package remote

import (
	"context"
	"fmt"

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
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	if len(reqs) == 1 {
		grants[0] = askBucket(ctx, s.conn, s.key(&reqs[0]), &reqs[0])
		return
	}
	s.acquireAll(ctx, reqs, grants)
}

func (s *Source) key(req *lease.Request) string {
	return redisKey(s.opts.Prefix, req.Key, tokenBucketSuffix)
}

// Reset makes the bucket of key full; see TokenBucket.Reset.
func (s *Source) Reset(ctx context.Context, key string, lim limit.Limit) error {
	if s.err != nil {
		return s.err
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	if err := resetBucket(ctx, s.conn, redisKey(s.opts.Prefix, key, tokenBucketSuffix), lim); err != nil {
		return unavailable(err)
	}
	return nil
}

// acquireAll sends the requests in one pipeline. Those whose node did not know the script were not executed: they are
// sent once more, on their own, because in a pipeline there is no falling back to EVAL.
func (s *Source) acquireAll(ctx context.Context, reqs []lease.Request, grants []lease.Grant) {
	pipe := s.conn.rdb.Pipeline()
	cmds := make([]command, len(reqs))
	for i := range reqs {
		cmds[i] = tokenBucketScript.call(ctx, "evalsha", s.key(&reqs[i]), bucketArgs(&reqs[i]))
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	err := s.conn.await(ctx, func() error {
		_, err := pipe.Exec(ctx)
		return err
	})
	if ctx.Err() != nil && err == ctx.Err() { // given up while the pipeline may still be filling the commands
		for i := range grants {
			grants[i] = lease.Grant{Err: fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, s.opts.Timeout)}
		}
		return
	}
	for i := range reqs {
		reply, err := cmds[i].Slice()
		if err != nil && (classify(err) == noScript || classify(err) == notExecuted) {
			reply, err = s.conn.run(ctx, tokenBucketScript, s.key(&reqs[i]), bucketArgs(&reqs[i]))
		}
		grants[i] = readGrant(reply, err, &reqs[i])
	}
}

var _ redis.Cmder = command{}
