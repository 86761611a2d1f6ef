package hybrid

import (
	"context"
	"sync/atomic"

	"github.com/hybridlimit/hybrid/limit"
)

// Key is a handle on one key of a Limiter: the same calls without the look-up. It stays good when the limiter forgets
// the key; it is safe for concurrent use and needs no Close.
type Key struct {
	limiter *Limiter
	key     string
	entry   atomic.Pointer[entry]
}

// Key returns a handle on key. A bad key is reported by its calls.
func (l *Limiter) Key(key string) *Key { return &Key{limiter: l, key: key} }

// Allow is shorthand for AllowN(ctx, 1).
func (k *Key) Allow(ctx context.Context) (limit.Result, error) { return k.AllowN(ctx, 1) }

// AllowN is Limiter.AllowN for this key.
func (k *Key) AllowN(ctx context.Context, n int) (limit.Result, error) {
	e := k.entry.Load()
	if e == nil || e.evicted.Load() {
		if err := k.limiter.limit.Admit(k.key, n); err != nil {
			return limit.Result{}, err
		}
		e = k.limiter.entry(k.key)
		k.entry.Store(e)
	}
	return k.limiter.allow(ctx, k.key, n, e)
}

// LimitOf returns the limit of this key.
func (k *Key) LimitOf() limit.Limit { return k.limiter.LimitOf(k.key) }
