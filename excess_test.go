package hybrid_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// attempt is one request as its caller saw it. Its tokens were taken at an instant between from and to, in
// microseconds of the wall clock, which is also that of the Redis on this machine.
type attempt struct {
	from, to int64
	cost     int64
	admitted bool
	failed   bool // with an error, so that it may have been charged all the same
}

// try makes a request and says when it was made. An error admits nothing.
func try(take func() (limit.Result, error), cost int) (attempt, limit.Result, error) {
	from := time.Now().UnixMicro()
	r, err := take()
	to := time.Now().UnixMicro() + 1 // rounded up
	return attempt{from, to, int64(cost), err == nil && r.Allowed, err != nil}, r, err
}

func admissions(all []attempt) []attempt {
	return slices.DeleteFunc(slices.Clone(all), func(a attempt) bool { return !a.admitted })
}

func tokens(all []attempt) (n int64) {
	for _, a := range all {
		n += a.cost
	}
	return n
}

// excess is the most by which the admissions surely broke the bound: the largest A - Rate*W - Burst over all windows,
// where A are the tokens of those admissions that lie in the window with the whole of their call. Each was taken at
// some instant of its call, so the bound holds for them exactly and without any allowance, however long a call took
// and for however long a process was stopped in the middle of one.
func excess(admitted []attempt, lim limit.Limit) float64 { return excessBeyond(admitted, lim, nil) }

// leeway is what docs/guarantees.md allows above the bound for one thing that happened: so many tokens in each window
// that ends at from or later and begins at until or earlier, in microseconds of the wall clock.
type leeway struct {
	from, until int64
	tokens      float64
}

// excessBeyond is excess, less in each window what is allowed there: the largest A - Rate*W - Burst - leeways over all
// windows. Above 0 something was admitted that nothing accounts for.
func excessBeyond(admitted []attempt, lim limit.Limit, allowed []leeway) float64 {
	if len(admitted) == 0 {
		return -float64(lim.Burst)
	}
	r, p := int64(lim.Rate), lim.Period.Microseconds() // amounts are in units of 1/p token
	all := slices.SortedFunc(slices.Values(admitted), func(a, b attempt) int { return cmp.Compare(a.to, b.to) })
	allowed = slices.SortedFunc(slices.Values(allowed), func(a, b leeway) int { return cmp.Compare(a.from, b.from) })
	starts := make([]int64, len(all))
	for i, a := range all {
		starts[i] = a.from
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	origin := starts[0]
	// The ends of windows in order, and for each the best start. A start counts once an admission that began there or
	// later has ended.
	best := newSums(len(starts))
	for i, s := range starts {
		best.add(i, i+1, r*(s-origin)-unborn)
	}
	born := 0
	worst := int64(math.MinInt64)
	for _, a := range all {
		i, _ := slices.BinarySearch(starts, a.from)
		if i+1 > born {
			best.add(born, i+1, unborn)
			born = i + 1
		}
		for len(allowed) > 0 && allowed[0].from <= a.to {
			n, _ := slices.BinarySearch(starts, allowed[0].until+1)
			best.add(0, n, -int64(math.Ceil(allowed[0].tokens*float64(p))))
			allowed = allowed[1:]
		}
		best.add(0, i+1, p*a.cost)
		worst = max(worst, best.max()-r*(a.to-origin))
	}
	return float64(worst)/float64(p) - float64(lim.Burst)
}

const unborn = 1 << 60

// sums are numbers, at first 0, to which the same can be added in a whole range: a segment tree.
type sums struct {
	size       int
	top, extra []int64 // of each node: the largest below it, and what all below it have on top
}

func newSums(n int) *sums {
	size := 1
	for size < n {
		size *= 2
	}
	s := &sums{size, make([]int64, 2*size), make([]int64, 2*size)}
	s.add(n, size, -2*unborn)
	return s
}

func (s *sums) max() int64 { return s.top[1] }

func (s *sums) add(from, to int, x int64) { s.addBelow(1, 0, s.size, from, to, x) }

func (s *sums) addBelow(node, lo, hi, from, to int, x int64) {
	switch {
	case to <= lo || hi <= from:
	case from <= lo && hi <= to:
		s.top[node] += x
		s.extra[node] += x
	default:
		mid := (lo + hi) / 2
		s.addBelow(2*node, lo, mid, from, to, x)
		s.addBelow(2*node+1, mid, hi, from, to, x)
		s.top[node] = max(s.top[2*node], s.top[2*node+1]) + s.extra[node]
	}
}

// excessAtEnds is the largest A - Rate*W - Burst when every admission counts where its call ended. It may be above 0 by
// as much as Rate times the longest call.
func excessAtEnds(admitted []attempt, lim limit.Limit) float64 {
	rate := float64(lim.Rate) / float64(lim.Period.Microseconds())
	all := slices.SortedFunc(slices.Values(admitted), func(a, b attempt) int { return cmp.Compare(a.to, b.to) })
	level, last, worst := float64(lim.Burst), int64(0), math.Inf(-1)
	for _, a := range all { // a bucket that may go into debt: the debt is the excess
		if last != 0 {
			level = min(float64(lim.Burst), level+rate*float64(a.to-last))
		}
		last = a.to
		level -= float64(a.cost)
		worst = max(worst, -level)
	}
	return worst
}

func longest(all []attempt) (d time.Duration) {
	for _, a := range all {
		d = max(d, time.Duration(a.to-a.from)*time.Microsecond)
	}
	return d
}

// ideal is how many tokens one exact bucket would have admitted of the same requests.
func ideal(all []attempt, lim limit.Limit) (n float64) {
	rate := float64(lim.Rate) / float64(lim.Period.Microseconds())
	all = slices.SortedFunc(slices.Values(all), func(a, b attempt) int { return cmp.Compare(a.from, b.from) })
	level, last := float64(lim.Burst), int64(0)
	for _, a := range all {
		if last != 0 {
			level = min(float64(lim.Burst), level+rate*float64(a.from-last))
		}
		last = a.from
		if level >= float64(a.cost) {
			level -= float64(a.cost)
			n += float64(a.cost)
		}
	}
	return n
}

// The check must find what a naive one finds.
func TestExcessAgainstAllWindows(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		lim := limit.Limit{Rate: 1 + rng.IntN(50), Period: time.Duration(1+rng.IntN(20)) * time.Microsecond, Burst: 1 + rng.IntN(30)}
		all := make([]attempt, 1+rng.IntN(40))
		for i := range all {
			from := 1e15 + rng.Int64N(100)
			all[i] = attempt{from, from + 1 + rng.Int64N(10), 1 + rng.Int64N(10), true, false}
		}
		rate := float64(lim.Rate) / float64(lim.Period.Microseconds())
		want := math.Inf(-1)
		for _, a := range all {
			for _, b := range all {
				var in []attempt
				for _, c := range all {
					if a.from <= c.from && c.to <= b.to {
						in = append(in, c)
					}
				}
				if len(in) > 0 {
					want = max(want, float64(tokens(in))-rate*float64(b.to-a.from)-float64(lim.Burst))
				}
			}
		}
		if got := excess(all, lim); math.Abs(got-want) > 1e-6 {
			t.Fatalf("seed %d: excess %v, by trying all windows %v", seed, got, want)
		}
	}
}
