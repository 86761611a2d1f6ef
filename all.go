package hybrid

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// TakeAll takes n tokens from every key, or from none: limits per second and per day, of a user and of a tenant. The keys
// may be of different limiters; one that is there twice pays twice. It returns the index of the key that denied, or -1.
//
// The keys are asked in an order of their own: first those that hold nothing in memory, because they deny most often, then by
// key. When one denies, what was taken from those before it is put back, in memory if it came from there and has not been
// reported, else with the next request to Redis; in between another caller may be denied for its sake. The Result is that
// of the key that denied, with the longest RetryAfter of those that are known to lack tokens; or, if all pay, of the one
// with the least Remaining. Errors: those of AllowN, and ErrInvalid without keys; then what was taken
// from other keys goes back. What Redis takes for a caller whose ctx ends meanwhile is spent, as with AllowN.
func TakeAll(ctx context.Context, n int, keys ...*Key) (limit.Result, int, error) {
	if len(keys) == 0 {
		return limit.Result{}, -1, fmt.Errorf("%w: TakeAll without keys", limit.ErrInvalid)
	}
	entries := make([]*entry, len(keys))
	order := make([]int, len(keys))
	for i, k := range keys {
		if k == nil {
			return limit.Result{}, -1, fmt.Errorf("%w: TakeAll with a nil key", limit.ErrInvalid)
		}
		order[i] = i
		e, err := k.entry.Load().present(k, n > 0)
		if err != nil {
			return limit.Result{}, -1, err
		}
		entries[i] = e
		// Bad input is an error before anything is taken. What is there twice pays twice.
		if err := e.terms.Load().Limit.CheckTokens(n * times(e, entries)); err != nil {
			return limit.Result{}, -1, err
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := entries[i], entries[j]
		return cmp.Or(cmp.Compare(min(a.held(), 1), min(b.held(), 1)), cmp.Compare(a.key, b.key))
	})
	var taken []*Reservation
	least := limit.Result{Remaining: -1}
	for at, i := range order {
		r, res, err := entries[i].reserve(ctx, n, keys[i])
		if err == nil && r != nil {
			taken = append(taken, r)
			if least.Remaining < 0 || res.Remaining < least.Remaining {
				least = res
			}
			continue
		}
		for _, r := range taken {
			_ = r.Cancel(ctx) // fails only when its limiter has been closed, and then it is spent
		}
		if err != nil {
			return limit.Result{}, -1, err
		}
		for _, j := range order[at+1:] {
			res.RetryAfter = max(res.RetryAfter, entries[j].lacks(n))
		}
		res.ResetAfter = max(res.ResetAfter, res.RetryAfter)
		return res, i, nil
	}
	return least, -1, nil
}

// times is how often e is among the entries.
func times(e *entry, entries []*entry) (n int) {
	for _, other := range entries {
		if other == e {
			n++
		}
	}
	return n
}

// held is how many tokens of the key are in memory.
func (e *entry) held() int64 {
	if a := e.account.Load(); a != nil {
		return a.balance.Held(e.limiter.clock.Now())
	}
	return 0
}

// lacks is how long a request of n tokens has to wait as far as memory knows; 0 if it may be admitted.
func (e *entry) lacks(n int) time.Duration {
	r, _ := e.refusal.Load().Denies(e.limiter.clock.Now(), int64(n)-e.held())
	return r.RetryAfter
}

// All is a limiter that admits a request when each of the limiters does, by TakeAll with the same key on each. Without
// limiters, or with a nil one, its calls return ErrInvalid.
func All(limiters ...*Limiter) limit.Limiter { return all(slices.Clone(limiters)) }

type all []*Limiter

// Allow is shorthand for AllowN(ctx, key, 1).
func (a all) Allow(ctx context.Context, key string) (limit.Result, error) {
	return a.AllowN(ctx, key, 1)
}

// AllowN is TakeAll.
func (a all) AllowN(ctx context.Context, key string, n int) (limit.Result, error) {
	keys := make([]*Key, len(a))
	for i, l := range a {
		if l == nil {
			return limit.Result{}, fmt.Errorf("%w: All of a nil limiter", limit.ErrInvalid)
		}
		keys[i] = l.Key(key)
	}
	res, _, err := TakeAll(ctx, n, keys...)
	return res, err
}

// LimitOf returns the limit of the first limiter; see limit.Describer.
func (a all) LimitOf(key string) limit.Limit {
	if len(a) == 0 || a[0] == nil {
		return limit.Limit{}
	}
	return a[0].LimitOf(key)
}
