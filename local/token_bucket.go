package local

import (
	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

// TokenBucket lets Burst through at once and Rate per Period from then on: a bucket of Burst tokens that starts full
// and into which Rate tokens flow evenly every Period. In every window of length W it admits at most
// Burst + Rate*W/Period. It counts in whole numbers and never loses a part of a token, however often it is asked.
// The GCRA of ITU-T I.371 with the same rate and burst decides the same.
//
// Use it unless there is a reason not to. It must be made by NewTokenBucket.
type TokenBucket struct{ *table[tokens] }

// NewTokenBucket returns an error that wraps limit.ErrInvalid if limit.Limit.Validate or opts.MaxKeys is bad.
func NewTokenBucket(lim limit.Limit, opts Options) (*TokenBucket, error) {
	t, err := newTable(lim, opts, limit.Limit.Validate, newTokenBucket)
	if err != nil {
		return nil, err
	}
	return &TokenBucket{t}, nil
}

type tokenBucket struct {
	rate  bucket.Rate
	burst int64
}

func newTokenBucket(lim limit.Limit) algorithm[tokens] {
	return tokenBucket{bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds()), int64(lim.Burst)}
}

// tokens is the level of a bucket at a time.
type tokens struct {
	level bucket.Level
	at    bucket.Clock
}

func (a tokenBucket) fresh(now int64) tokens {
	return tokens{bucket.Full(a.burst), bucket.Clock(now)}
}

func (a tokenBucket) step(s tokens, now, n int64) (tokens, limit.Result) {
	s.level = s.level.After(a.rate, a.burst, s.at.Advance(now))
	r := limit.Result{Verdict: limit.Verdict{Allowed: s.level.N >= n, Origin: limit.Local}}
	if r.Allowed {
		s.level.N -= n
	} else {
		r.RetryAfter = limit.Micros(s.level.Wait(a.rate, n))
		r.ResetAfter = limit.Micros(s.level.Wait(a.rate, a.burst))
	}
	r.Remaining = int(s.level.N)
	return s, r
}

// adopt drops the part of a token, whose unit depends on the rate.
func (a tokenBucket) adopt(s tokens, _ int64) tokens {
	s.level = bucket.Level{N: min(s.level.N, a.burst)}
	return s
}
