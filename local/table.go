package local

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hybridlimit/hybrid/limit"
)

// algorithm is the arithmetic of one kind of limiter under one limit, on the state S of a key: no lock and no clock.
// Times are microseconds of the clock.
type algorithm[S any] interface {
	// fresh is the state of a key that was never seen.
	fresh(now int64) S
	// step decides a request of n tokens, 0 <= n <= Burst, and returns the state after it. After a denial or n = 0
	// that is s brought to now, with nothing taken. The caller gives s up for the state it gets.
	step(s S, now, n int64) (S, limit.Result)
	// adopt makes a state of this limit from one that another limit has brought to now.
	adopt(s S, now int64) S
}

// table is a limiter: the state of the keys used last, and the algorithm that moves it.
//
// One mutex is enough. Each look-up reorders the list of recent keys and so excludes all others anyway, and a step is
// arithmetic that takes less time than a second lock would. It also leaves no moment between look-up and step in which
// an eviction could give one key two states.
type table[S any] struct {
	now      func() time.Time
	start    time.Time
	validate func(limit.Limit) error
	build    func(limit.Limit) algorithm[S]

	mu   sync.Mutex // guards the fields below
	lim  limit.Limit
	alg  algorithm[S] // of the last lim that counts; nil if there was none yet
	keys *simplelru.LRU[string, *S]
}

func newTable[S any](lim limit.Limit, opts Options, validate func(limit.Limit) error, build func(limit.Limit) algorithm[S]) (*table[S], error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	keys, err := simplelru.NewLRU[string, *S](opts.MaxKeys, nil)
	if err != nil {
		return nil, err
	}
	t := &table[S]{now: opts.Now, start: opts.Now(), validate: validate, build: build, keys: keys}
	return t, t.SetLimit(lim)
}

// micros reads the clock: microseconds since 1970, counted from the start of the limiter by the monotonic clock where
// there is one. It is read under the lock, or else a goroutine that waits between reading and locking brings a time
// that is older than the state it finds.
func (t *table[S]) micros() int64 {
	now := t.now()
	if now == now.Round(0) { // an injected clock without a monotonic reading
		return now.UnixMicro()
	}
	return t.start.UnixMicro() + now.Sub(t.start).Microseconds()
}

// Allow is shorthand for AllowN(ctx, key, 1).
func (t *table[S]) Allow(ctx context.Context, key string) (limit.Result, error) {
	return t.AllowN(ctx, key, 1)
}

// AllowN decides a request that costs n tokens: all of them or none. A denial takes nothing; n = 0 looks without
// changing anything. It never blocks, so the context is not looked at. An error wraps limit.ErrInvalidKey,
// limit.ErrInvalidTokens or limit.ErrExceedsBurst and leaves everything unchanged.
func (t *table[S]) AllowN(_ context.Context, key string, n int) (limit.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.lim.Admit(key, n); err != nil {
		return limit.Result{}, err
	}
	if r, ok := t.lim.Constant(n, limit.Local); ok {
		return r, nil
	}
	find := t.keys.Get
	if n == 0 {
		find = t.keys.Peek
	}
	now := t.micros()
	held, ok := find(key)
	if !ok {
		fresh := t.alg.fresh(now)
		held = &fresh
	}
	state, r := t.alg.step(*held, now, int64(n))
	if n > 0 {
		*held = state
		if !ok {
			t.keys.Add(key, held)
		}
	}
	return r, nil
}

// LimitOf returns the limit, which is the same for every key.
func (t *table[S]) LimitOf(string) limit.Limit {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lim
}

// Reset forgets what key has used. An unknown key is no error; the error for an invalid one wraps limit.ErrInvalidKey.
func (t *table[S]) Reset(_ context.Context, key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.lim.Admit(key, 0); err != nil {
		return err
	}
	t.keys.Remove(key)
	return nil
}

// SetLimit replaces the limit for all keys, at once. What they have used stays used: a token bucket keeps its whole
// tokens, at most the new Burst; windows keep their counts. Unlimited and Blocked count nothing, and what was counted
// before them is there again after them. An error wraps limit.ErrInvalid and leaves the limit as it was. It takes time
// in proportion to Len.
func (t *table[S]) SetLimit(lim limit.Limit) error {
	if err := t.validate(lim); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if lim == t.lim {
		return nil
	}
	t.lim = lim
	if lim == limit.Unlimited() || lim == limit.Blocked() {
		return nil
	}
	before := t.alg
	t.alg = t.build(lim)
	now := t.micros()
	for _, s := range t.keys.Values() {
		state, _ := before.step(*s, now, 0)
		*s = t.alg.adopt(state, now)
	}
	return nil
}

// Len returns how many keys are remembered.
func (t *table[S]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys.Len()
}
