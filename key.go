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
	if e == nil || e.gone.Load() {
		var err error
		if err = limit.CheckKey(k.key); err != nil {
			return limit.Result{}, err
		}
		if e, err = k.limiter.entry(k.key, n > 0); err != nil {
			return limit.Result{}, err
		}
		if n > 0 {
			k.entry.Store(e)
		}
	}
	return e.allow(ctx, n)
}

// LimitOf returns the limit of this key.
func (k *Key) LimitOf() limit.Limit { return k.limiter.LimitOf(k.key) }

// String says what is in force for this key; it does not tell the key.
func (k *Key) String() string { return k.limiter.describe(k.limiter.newTerms(k.LimitOf(), nil)) }
