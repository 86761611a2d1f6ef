package hybrid

import (
	"context"
	"sync/atomic"

	"github.com/hybridlimit/hybrid/limit"
)

// Key is a handle on one key of a Limiter: the same calls without the look-up. It stays good when the limiter forgets
// the key; it is safe for concurrent use and needs no Close.
type Key struct {
	entry atomic.Pointer[entry] // when it is gone, decide looks for the next one
}

// Key returns a handle on key. A bad key is reported by its calls.
func (l *Limiter) Key(key string) *Key {
	e := &entry{limiter: l, key: key}
	e.gone.Store(true)
	k := &Key{}
	k.entry.Store(e)
	return k
}

// Allow is shorthand for AllowN(ctx, 1).
func (k *Key) Allow(ctx context.Context) (limit.Result, error) { return k.AllowN(ctx, 1) }

// AllowN is Limiter.AllowN for this key.
func (k *Key) AllowN(ctx context.Context, n int) (limit.Result, error) {
	return k.entry.Load().allow(ctx, n, k)
}

// LimitOf returns the limit of this key.
func (k *Key) LimitOf() limit.Limit {
	e := k.entry.Load()
	return e.limiter.LimitOf(e.key)
}

// String says what is in force for this key; it does not tell the key.
func (k *Key) String() string {
	l := k.entry.Load().limiter
	return l.describe(l.newTerms(k.LimitOf(), nil))
}
