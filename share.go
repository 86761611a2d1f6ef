package hybrid

import (
	"math"
	"sync"
	"time"

	"github.com/hybridlimit/hybrid/internal/bucket"
	"github.com/hybridlimit/hybrid/limit"
)

// share is the bucket of one key by which this process decides while Redis does not answer: what the limit allows, divided
// by the number of processes.
type share struct {
	limit limit.Limit // that it is a share of
	rate  bucket.Rate
	burst int64
	level bucket.Level
	at    int64        // when level was brought up to date
	ideal bucket.Level // the level if nothing had been spent: the difference is owed to Redis
}

// newShare makes the share of one of n processes, when the bucket of all had so many tokens.
func newShare(lim limit.Limit, n int, level, now int64) *share {
	period := lim.Period.Microseconds()
	of := min(int64(n), math.MaxInt64/2/period)
	s := &share{
		limit: lim, at: now,
		rate: bucket.NewRate(int64(lim.Rate), period*of),
		// At least one token, or the process would never admit anything.
		burst: max(1, int64(lim.Burst)/of),
	}
	s.level = bucket.Level{N: min(max(0, level)/of, s.burst)}
	if level >= int64(lim.Burst) {
		s.level.N = s.burst
	}
	s.ideal = s.level
	return s
}

// under is the share under another limit: what was spent stays spent, as in a bucket.
func (s *share) under(lim limit.Limit, n int, now int64) *share {
	spent := s.spent(now)
	other := newShare(lim, n, 0, now)
	other.level.N = min(s.level.N, other.burst)
	other.ideal.N = min(other.level.N+spent, other.burst)
	return other
}

// refill brings the share to the time now.
func (s *share) refill(now int64) {
	micros := (now - s.at) / 1000
	if micros <= 0 {
		return
	}
	s.level, s.ideal = s.level.After(s.rate, s.burst, micros), s.ideal.After(s.rate, s.burst, micros)
	s.at += micros * 1000
}

// take decides a request of n tokens.
func (s *share) take(now, n int64) limit.Result {
	s.refill(now)
	if n <= s.level.N {
		s.level.N -= n
		return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Fallback}, Remaining: int(s.level.N)}
	}
	retry := maxWait // a request that is larger than the share has to wait for Redis
	if n <= s.burst {
		retry = limit.Micros(s.level.Wait(s.rate, n))
	}
	return limit.Result{
		Verdict: limit.Verdict{Origin: limit.Fallback}, Remaining: int(s.level.N),
		RetryAfter: retry, ResetAfter: max(retry, limit.Micros(s.level.Wait(s.rate, s.burst))),
	}
}

// maxWait is when a request that only Redis can decide should be tried again: by then it has been probed.
const maxWait = time.Second

// giveBack puts tokens back that were spent here, or charges more if n is negative, and returns what is left of n: tokens
// that were not spent here.
func (s *share) giveBack(now, n int64) (rest int64) {
	s.refill(now)
	back := min(n, s.ideal.N-s.level.N)
	s.level.N = max(s.level.N+back, -s.burst)
	return max(0, n-back)
}

// spent is how many tokens are missing because they were spent here: what the bucket in Redis has too many.
func (s *share) spent(now int64) int64 {
	s.refill(now)
	return s.ideal.N - s.level.N
}

// full reports whether dropping the share would change nothing.
func (s *share) full(now int64) bool {
	s.refill(now)
	return s.level.N >= s.burst
}

// knownLevel is how many tokens the bucket in Redis has, as far as this process knows: what it had at the last reply and
// what has come since. Of a key that was never seen nothing is known, and it counts as full; but not while keys are being
// forgotten, or whoever makes up new ones would get a burst for each.
func (a *account) knownLevel(lim limit.Limit, forgotten bool, now int64) int64 {
	switch {
	case a.replied == 0 && forgotten:
		return 0
	case a.replied == 0:
		return int64(lim.Burst)
	}
	rate := bucket.NewRate(int64(lim.Rate), lim.Period.Microseconds())
	level := bucket.Level{N: min(a.level.Load(), int64(lim.Burst))}
	return level.After(rate, int64(lim.Burst), (now-a.replied)/1000).N
}

// holders is how many processes lately shared a key.
type holders struct {
	mu           sync.Mutex
	most, before int   // in this period and in the one before
	since        int64 // when this one began
}

const holdersPeriod = 5 * time.Minute

// see notes that n processes were seen now. Time counts only where something is seen: in a long outage the number must not
// be forgotten.
func (h *holders) see(now int64, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if periods := (now - h.since) / int64(holdersPeriod); periods > 0 {
		h.before, h.most, h.since = h.most, 0, now
		if periods > 1 {
			h.before = 0
		}
	}
	h.most = max(h.most, n)
}

// instances is how many processes share the limits: as many as Options say, or as were lately seen.
func (l *Limiter) instances() int {
	l.holders.mu.Lock()
	defer l.holders.mu.Unlock()
	return max(l.opts.Instances, l.holders.most, l.holders.before)
}
