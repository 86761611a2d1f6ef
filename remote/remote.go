// Package remote keeps limits in Redis: five algorithms that decide every request there, and the [Source] from which
// package hybrid leases tokens.
//
// Each algorithm is one Lua script and one round trip. All of them decide by the clock of the Redis server, in
// integers, all or nothing for a cost of n tokens; a denied request changes nothing; every key has a time to live.
//
//	TokenBucket     Burst at once, then Rate; HGETALL shows its state
//	GCRA            the same decisions, kept as one number
//	FixedWindow     Rate per window aligned to the clock; up to twice that around a window's edge
//	SlidingLog      at most Rate in any window, exactly; one sorted set member per admitted token
//	SlidingCounter  the log estimated from two counters
//
// # Grouping
//
// While a call for a key is in flight, further callers of that key in this process wait together and share the next
// one. The script decides each of them in order as if it had come alone, so this costs no accuracy; with 64 goroutines
// on one key it saves nine of ten calls or more.
//
// # Failure
//
// A call that Redis did not answer within Options.Timeout returns an error that wraps limit.ErrUnavailable. Scripts
// that may have run are never sent twice, so a lost reply loses at most the tokens of its requests, and these come
// back by refill. Errors that certainly kept the script from running (no connection, a node that is loading, a
// failover) are retried within Timeout. What waiting does not mend, such as missing rights or a full memory, wraps
// [ErrRefused] too.
package remote

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/limit"
)

// Client is what this package needs of a Redis client. *redis.Client, *redis.ClusterClient, *redis.Ring and
// redis.UniversalClient satisfy it.
//
// Set ContextTimeoutEnabled in its options. Without it go-redis goes on waiting for a reply after the deadline of a
// call; the limiters then leave each call to a goroutine of its own in order to answer in time, which costs about half a
// round trip on loopback.
//
// Clients that route reads to replicas may be used: scripts count as writes and go to the master.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// Options are common to all types of this package. The zero value is ready to use.
type Options struct {
	// Prefix is put before every key. Limiters with different prefixes never meet. No braces, because a brace would
	// choose the cluster slot. Default "hybrid:".
	Prefix string
	// Timeout bounds one call to Redis, whatever the contexts of the callers say; a caller may wait as long again for
	// a call of the same key that is out already. Default 100ms.
	Timeout time.Duration
}

// DefaultPrefix and DefaultTimeout are used where Options leaves a field zero.
const (
	DefaultPrefix  = "hybrid:"
	DefaultTimeout = 100 * time.Millisecond
)

// complete returns the options with defaults filled in, or an error that wraps limit.ErrInvalid.
func (o Options) complete(rdb Client) (Options, error) {
	if isNil(rdb) {
		return o, fmt.Errorf("%w: the Redis client is nil", limit.ErrInvalid)
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		return o, fmt.Errorf("%w: Options.Prefix must not contain braces", limit.ErrInvalid)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Timeout < 0 {
		return o, fmt.Errorf("%w: Options.Timeout %v is negative", limit.ErrInvalid, o.Timeout)
	}
	return o, nil
}

// isNil also finds a nil inside the interface, such as a *redis.Client that was never set.
func isNil(rdb Client) bool {
	if rdb == nil {
		return true
	}
	switch v := reflect.ValueOf(rdb); v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.Slice:
		return v.IsNil()
	}
	return false
}

// redisKey is where the state of a key lies: prefix{key}suffix. The prefix holds no brace, so that the first "{" and
// the last "}" split it uniquely and no two pairs of prefix and key meet, whatever bytes the key holds. In a cluster
// the key alone chooses the slot.
func redisKey(prefix, key, suffix string) string {
	return prefix + "{" + key + "}" + suffix
}
