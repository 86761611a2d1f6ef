package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
)

// admission is one request that was admitted, as its caller saw it: its token was taken at some instant of the call, in
// nanoseconds.
type admission struct{ from, to int64 }

// excess is the most by which admissions surely broke the bound: the largest A - Rate*W - Burst over all windows, where A
// are those that lie in the window with the whole of their call. It looks at every window.
func excess(all []admission, lim limit.Limit) float64 {
	slices.SortFunc(all, func(a, b admission) int { return cmp.Compare(a.to, b.to) })
	perNano := float64(lim.Rate) / float64(lim.Period)
	worst := math.Inf(-1)
	for _, first := range all {
		n := 0
		for _, a := range all { // by their ends
			if a.from >= first.from {
				n++
				worst = max(worst, float64(n)-perNano*float64(a.to-first.from)-float64(lim.Burst))
			}
		}
	}
	return worst
}

// overAdmission floods one key from several limiters that know nothing of each other. In the middle of the run all of
// them crash and others take their place.
func (l *lab) overAdmission() ([]result, error) {
	const instances, workers = 4, 4
	lim := hybrid.Limit{Rate: 1000, Period: time.Second, Burst: 500}
	prefix := l.fresh()
	d := l.scaled(3 * time.Second)
	var mu sync.Mutex // guards the next two
	var all []admission
	failed := 0
	start := time.Now()
	for life := range 2 {
		end := d * time.Duration(life+1) / 2
		var crashes []func() error
		var wg sync.WaitGroup
		for range instances {
			rdb, _ := l.client()
			h, err := hybrid.New(rdb, lim, hybrid.Options{Prefix: prefix, Timeout: timeout, OnFailure: hybrid.FailClosed})
			if err != nil {
				return nil, err
			}
			// Without its connections a limiter cannot give anything back, and nobody closes it: what it holds is
			// lost as in a crash.
			crashes = append(crashes, rdb.Close)
			for range workers {
				wg.Go(func() {
					mine, errs := insist(h, start, end)
					mu.Lock()
					defer mu.Unlock()
					all, failed = append(all, mine...), failed+errs
				})
			}
		}
		wg.Wait()
		for _, crash := range crashes {
			crash()
		}
	}
	worst := excess(all, lim)
	most := float64(lim.Burst) + float64(lim.Rate)*time.Since(start).Seconds()
	return []result{{
		values: []float64{max(0, worst)},
		counts: fmt.Sprintf("worst window %+.1f tokens; %d of at most %.0f admitted, %d failed", worst, len(all), most, failed),
	}}, nil
}

// insist asks until end, at once after an admission and a millisecond after a denial. Times are those since start.
func insist(h *hybrid.Limiter, start time.Time, end time.Duration) (all []admission, failed int) {
	for time.Since(start) < end {
		from := time.Since(start)
		r, err := h.Allow(context.Background(), "key")
		to := time.Since(start)
		switch {
		case err != nil:
			failed++
		case r.Allowed:
			all = append(all, admission{int64(from), int64(to)})
		default:
			time.Sleep(time.Millisecond)
		}
	}
	return all, failed
}

// traffic is a load over several processes, in multiples of the rate.
type traffic struct {
	name string
	load func(at time.Duration) float64
	pick func(at time.Duration, processes int) int // the process that a request comes to
}

func even(x float64) func(time.Duration) float64 { return func(time.Duration) float64 { return x } }

func anyOf(_ time.Duration, processes int) int { return rand.IntN(processes) }

var traffics = []traffic{
	{"even 2x", even(2), anyOf},
	{"even 0.8x", even(0.8), anyOf},
	{"skewed 2x", even(2), func(_ time.Duration, processes int) int {
		if rand.IntN(10) > 0 {
			return 0
		}
		return rand.IntN(processes)
	}},
	{"bursts", func(at time.Duration) float64 {
		if at%time.Second < 100*time.Millisecond {
			return 9
		}
		return 0
	}, anyOf},
	{"roaming 2x", even(2), func(at time.Duration, processes int) int { return int(at/(200*time.Millisecond)) % processes }},
}

// ideal is one exact bucket that meets the same requests.
type ideal struct {
	limit limit.Limit
	level float64
	last  time.Duration
}

func (b *ideal) take(at time.Duration) bool {
	b.level = min(float64(b.limit.Burst), b.level+float64(b.limit.Rate)*float64(at-b.last)/float64(b.limit.Period))
	b.last = at
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

// verdict is what became of a load.
type verdict struct{ offered, admitted, ideal, failed int }

// serve runs a load on the limiters, each request in a goroutine of its own.
func (t traffic) serve(limiters []*hybrid.Limiter, lim limit.Limit, d time.Duration) (v verdict) {
	twin := ideal{limit: lim, level: float64(lim.Burst)}
	var admitted, failed atomic.Int64
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	owed, last := 0.0, time.Duration(0)
	for last < d {
		<-tick.C
		now := time.Since(start)
		owed += float64(lim.Rate) * t.load(now) * float64(now-last) / float64(lim.Period)
		last = now
		for ; owed >= 1; owed-- {
			v.offered++
			if twin.take(now) {
				v.ideal++
			}
			h := limiters[t.pick(now, len(limiters))]
			wg.Go(func() {
				switch r, err := h.Allow(context.Background(), "key"); {
				case err != nil:
					failed.Add(1)
				case r.Allowed:
					admitted.Add(1)
				}
			})
		}
	}
	wg.Wait()
	v.admitted, v.failed = int(admitted.Load()), int(failed.Load())
	return v
}

// shortfall serves all loads at once, each on a key of its own. What is missing at the beginning is missed only once. In a
// run of less than a minute its share is larger than the goal is about, and only the other line is judged.
func (l *lab) shortfall() ([]result, error) {
	const processes = 10
	lim := hybrid.PerSecond(2000)
	var mu sync.Mutex
	least, most := math.Inf(1), 0.0
	var shares []string
	void := ""
	var wg sync.WaitGroup
	for _, t := range traffics {
		rdb, _ := l.client()
		defer rdb.Close()
		prefix := l.fresh()
		var limiters []*hybrid.Limiter
		for range processes {
			h, err := hybrid.New(rdb, lim, hybrid.Options{Prefix: prefix, Timeout: timeout, OnFailure: hybrid.FailClosed})
			if err != nil {
				return nil, err
			}
			defer h.Close(context.Background())
			limiters = append(limiters, h)
		}
		tau := limiters[0].Stats().Terms.Tau
		unit := float64(lim.Rate) * max(tau, 50*time.Millisecond).Seconds() / lim.Period.Seconds()
		wg.Go(func() {
			v := t.serve(limiters, lim, l.shortfallTime())
			share := float64(v.admitted) / float64(max(v.ideal, 1))
			mu.Lock()
			defer mu.Unlock()
			least = min(least, share)
			most = max(most, (float64(v.ideal-v.admitted)-0.001*float64(v.ideal))/unit)
			shares = append(shares, fmt.Sprintf("%s %.4f", t.name, share))
			if v.failed > 0 {
				void = fmt.Sprintf("%d of %d failed", v.failed, v.offered)
			}
		})
	}
	wg.Wait()
	slices.Sort(shares)
	unjudged := ""
	if !l.long {
		unjudged = fmt.Sprintf("%v, see -long", l.shortfallTime())
	}
	return []result{
		{values: []float64{least}, counts: "over " + l.shortfallTime().String() + ": " + strings.Join(shares, ", "), void: void, unjudged: unjudged},
		{values: []float64{most}, counts: "of the load that is furthest behind", void: void},
	}, nil
}

func (l *lab) shortfallTime() time.Duration {
	if l.long {
		return time.Minute
	}
	return l.scaled(10 * time.Second)
}
