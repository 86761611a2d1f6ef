package hybrid

import (
	"context"
	"errors"
	"fmt"

	"github.com/hybridlimit/hybrid/limit"
)

// resetter is a lease.Source that can reset a key, as that of package remote can.
type resetter interface {
	Reset(ctx context.Context, key string, lim limit.Limit) error
}

// forget drops what is known of the level of the bucket, and what was spent without it.
func (e *entry) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.account.Load(); a != nil {
		a.share, a.replied, a.known, a.credit = nil, 0, 0, 0
	}
}

// Reset makes the bucket of key full and forgets what this process knows of it. Tokens that other processes hold are
// void as soon as they ask again, at the latest when their leases end; until then they may be used once more, and a
// denial that another process remembers lasts up to a second. It waits at most Options.Timeout. An unknown key is no
// error.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := limit.CheckKey(key); err != nil {
		return err
	}
	lim, err := l.limitFor(key)
	if err != nil {
		return err
	}
	if lim.Rate == 0 && !l.closed.Load() {
		return nil
	}
	r, ok := l.source.(resetter)
	if !ok {
		return fmt.Errorf("hybrid: the source of leases cannot reset: %w", errors.ErrUnsupported)
	}
	if !l.begin() {
		return limit.ErrClosed
	}
	defer l.end()
	err = r.Reset(ctx, key, lim)
	if e, ok := l.keys.Get(key); ok {
		e.forfeit() // after the bucket: a lease that came in between would be of its old life
		e.forget()
	}
	return err
}
