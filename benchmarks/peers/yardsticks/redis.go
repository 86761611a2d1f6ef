package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// The subjects that talk to Redis. Calls are counted as writes on their connections, each of which is a round trip.

// timeout is long, because Redis shares the processors with the load.
const timeout = 5 * time.Second

// client is a Redis client that counts its round trips.
func (l *lab) client() (rdb *redis.Client, trips *atomic.Int64) {
	trips = new(atomic.Int64)
	return redis.NewClient(measure.Options(l.backend.Addr, trips)), trips
}

// fresh is a prefix that nobody has used: the server may have been there before.
func (l *lab) fresh() string {
	l.serial++
	return fmt.Sprintf("%s%d:", l.prefix, l.serial)
}

// leased is a limiter with a client and keys of its own, and a handle on one of them. The connection and the script are
// there when it is returned, so that no row counts what they cost.
func (l *lab) leased(lim limit.Limit, opts hybrid.Options) (*hybrid.Limiter, *subject, error) {
	rdb, trips := l.client()
	opts.Prefix, opts.Timeout = l.fresh(), timeout
	opts.OnFailure = hybrid.FailClosed // no decision of Redis is no decision
	h, err := hybrid.New(rdb, lim, opts)
	if err != nil {
		rdb.Close()
		return nil, nil, err
	}
	s := &subject{ask: askHandle(h.Key("key")), calls: trips.Load, close: func() {
		h.Close(context.Background())
		rdb.Close()
	}}
	if _, err := h.Allow(context.Background(), "other"); err != nil {
		s.close()
		return nil, nil, err
	}
	return h, s, nil
}

// vast is a limit that no load here reaches.
var vast = hybrid.PerSecond(1_000_000_000)

// newRedisRate has a lower limit, which it does not reach either: at a billion a second the step of its clock is lost in
// a float64, and with it the write to Redis.
func (l *lab) newRedisRate() (*subject, error) {
	rdb, trips := l.client()
	limiter, key := redis_rate.NewLimiter(rdb), l.fresh()
	per := redis_rate.PerSecond(1_000_000)
	s := &subject{
		ask: func(_, n int) (t tally) {
			ctx := context.Background()
			for range n {
				r, err := limiter.Allow(ctx, key, per)
				t = t.plus(err == nil && r.Allowed > 0, err)
			}
			return t
		},
		calls: trips.Load, close: func() { rdb.Close() },
	}
	return s, warm(s, 1)
}

func (l *lab) newExact() (*subject, error) {
	_, s, err := l.leased(vast, hybrid.Options{Exact: true})
	return s, err
}

func (l *lab) newTokenBucket() (*subject, error) {
	rdb, trips := l.client()
	b, err := remote.NewTokenBucket(rdb, vast, remote.Options{Prefix: l.fresh(), Timeout: timeout})
	if err != nil {
		rdb.Close()
		return nil, err
	}
	s := &subject{ask: askKey(b.Allow, "key"), calls: trips.Load, close: func() { rdb.Close() }}
	return s, warm(s, 1)
}

// newBulk leases a thousand at a time, and is asked by key, as redis_rate is.
func (l *lab) newBulk() (*subject, error) {
	h, s, err := l.leased(vast, hybrid.Options{LeaseSize: 1000})
	if err != nil {
		return nil, err
	}
	s.ask = askKey(h.Allow, "key")
	return s, nil
}

// speeds are how many times faster than the last one the others are, in closed loops of so many goroutines.
func (l *lab) speeds(goroutines int, openers ...opener) ([]result, error) {
	subjects, closer, err := openAll(openers...)
	if err != nil {
		return nil, err
	}
	defer closer()
	d := 2 * l.pass // a round trip takes thousands of times longer than a decision in memory
	passes := takeTurns(l.rounds, subjects, func(s *subject, _ int) pass {
		s.during(goroutines, d/3) // leases have run out since its last turn
		return s.during(goroutines, d)
	})
	var results []result
	yard := passes[len(passes)-1]
	for _, ps := range passes[:len(passes)-1] {
		var r result
		var sum tally
		var calls int64
		for i, p := range ps {
			r.values = append(r.values, p.perSecond()/yard[i].perSecond())
			sum.add(p.tally)
			calls += p.calls
		}
		all := sum.all()
		sum.add(tallyOf(yard))
		if sum.admitted < sum.all() {
			r.void = fmt.Sprintf("%d denied, %d failed", sum.denied, sum.failed)
		}
		r.counts = fmt.Sprintf("%s calls per decision", number(float64(calls)/float64(max(all, 1))))
		results = append(results, r)
	}
	return results, nil
}

func tallyOf(ps []pass) (sum tally) {
	for _, p := range ps {
		sum.add(p.tally)
	}
	return sum
}

func (l *lab) throughput() ([]result, error) { return l.speeds(64, l.newBulk, l.newRedisRate) }

var groups = []int{1, 64, 256}

func (l *lab) exact() (results []result, err error) {
	for _, g := range groups {
		rs, err := l.speeds(g, l.newExact, l.newTokenBucket, l.newRedisRate)
		if err != nil {
			return nil, err
		}
		results = append(results, rs...)
	}
	return results, nil
}

var leaseSizes = []int{10, 100, 1000}

// perLease is calls per lease of a fixed size used up, on a fresh key.
func (l *lab) perLease(size, goroutines, decisions int) (float64, tally, error) {
	lim := hybrid.Limit{Rate: 100_000, Period: time.Second, Burst: 1_000_000}
	_, s, err := l.leased(lim, hybrid.Options{LeaseSize: size})
	if err != nil {
		return 0, tally{}, err
	}
	defer s.close()
	p := s.run(goroutines, 0, decisions)
	return float64(p.calls) * float64(size) / float64(p.all()), p.tally, nil
}

func (l *lab) fixedLeases() (results []result, err error) {
	for _, size := range leaseSizes {
		var r result
		var alone, together []float64
		var sum tally
		for range l.few() {
			decisions := min(300*size, 100_000)
			if l.short {
				decisions /= 10
			}
			one, t, err := l.perLease(size, 1, decisions)
			if err != nil {
				return nil, err
			}
			sum.add(t)
			many, t, err := l.perLease(size, 64, decisions)
			if err != nil {
				return nil, err
			}
			sum.add(t)
			alone, together = append(alone, one), append(together, many)
			r.values = append(r.values, max(one, many))
		}
		r.counts = fmt.Sprintf("%s by 1 goroutine, %s by 64", number(measure.Median(alone)), number(measure.Median(together)))
		if sum.admitted < sum.all() {
			r.void = fmt.Sprintf("%d denied, %d failed", sum.denied, sum.failed)
		}
		results = append(results, r)
	}
	return results, nil
}

// offer asks at an even rate, from goroutines that make up every millisecond for what is due.
func offer(s *subject, rate float64, d time.Duration) (sum tally) {
	const generators = 4
	return ticking(generators, d, func(elapsed time.Duration, sent int) tally {
		return s.ask(0, max(0, int(rate/generators*elapsed.Seconds())-sent))
	})
}

// flood asks as fast as it can, but lets others run.
func flood(s *subject, d time.Duration) tally {
	return ticking(8, d, func(time.Duration, int) tally { return s.ask(0, 200) })
}

// ticking calls f every millisecond in each of so many goroutines, with what that one has asked so far.
func ticking(goroutines int, d time.Duration, f func(elapsed time.Duration, sent int) tally) (sum tally) {
	var mu sync.Mutex // guards sum
	var wg sync.WaitGroup
	start := time.Now()
	for range goroutines {
		wg.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			var mine tally
			for elapsed := time.Duration(0); elapsed < d; elapsed = time.Since(start) {
				<-tick.C
				mine.add(f(time.Since(start), mine.all()))
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(mine)
		})
	}
	wg.Wait()
	return sum
}

var busyRates = []int{1000, 10_000, 100_000, 1_000_000}

// busy is calls a second for a key that is asked for four fifths of its rate, once its demand is known.
func (l *lab) busy(rate int, lead, d time.Duration) (perSecond float64, t tally, err error) {
	_, s, err := l.leased(hybrid.Limit{Rate: rate, Period: time.Second, Burst: 35 * rate / 100}, hybrid.Options{})
	if err != nil {
		return 0, tally{}, err
	}
	defer s.close()
	offer(s, 0.8*float64(rate), lead)
	calls, start := s.calls(), time.Now()
	t = offer(s, 0.8*float64(rate), d)
	return float64(s.calls()-calls) / time.Since(start).Seconds(), t, nil
}

func (l *lab) busyKeys() (results []result, err error) {
	for _, rate := range busyRates {
		var r result
		var sum tally
		for range l.few() {
			x, t, err := l.busy(rate, l.scaled(300*time.Millisecond), l.scaled(700*time.Millisecond))
			if err != nil {
				return nil, err
			}
			r.values = append(r.values, x)
			sum.add(t)
		}
		r.counts = fmt.Sprintf("%s requests, %d denied, %d failed", measure.Thousands(float64(sum.all())), sum.denied, sum.failed)
		results = append(results, r)
	}
	return results, nil
}

var dryRates = []int{100, 1000, 10_000, 100_000}

// dry is calls a second for a key that is flooded, once it is dry.
func (l *lab) dry(rate int, d time.Duration) (perSecond float64, t tally, err error) {
	burst := rate / 2
	_, s, err := l.leased(hybrid.Limit{Rate: rate, Period: time.Second, Burst: burst}, hybrid.Options{})
	if err != nil {
		return 0, tally{}, err
	}
	defer s.close()
	for spent := 0; spent < burst; {
		t := flood(s, 50*time.Millisecond)
		if t.failed > 0 {
			return 0, t, nil
		}
		spent += t.admitted
	}
	calls, start := s.calls(), time.Now()
	t = flood(s, d)
	return float64(s.calls()-calls) / time.Since(start).Seconds(), t, nil
}

func (l *lab) dryKeys() (results []result, err error) {
	for _, rate := range dryRates {
		var r result
		var sum tally
		for range l.few() {
			x, t, err := l.dry(rate, l.scaled(800*time.Millisecond))
			if err != nil {
				return nil, err
			}
			r.values = append(r.values, x)
			sum.add(t)
		}
		r.counts = fmt.Sprintf("%s admitted, %s denied, %d failed",
			measure.Thousands(float64(sum.admitted)), measure.Thousands(float64(sum.denied)), sum.failed)
		if sum.failed > 0 {
			r.void = fmt.Sprintf("%d failed", sum.failed)
		}
		results = append(results, r)
	}
	return results, nil
}

const openRate = 10_000

// latencies are those of requests that come at a rate whatever becomes of those before: each in a goroutine of its own,
// timed from where that runs to its answer, so that neither a late timer nor a slow request before it counts.
func latencies(s *subject, rate float64, d time.Duration) (all []time.Duration, sum tally) {
	all = make([]time.Duration, int(rate*d.Seconds()))
	tallies := make([]tally, len(all))
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	for sent := 0; sent < len(all); {
		<-tick.C
		for due := min(len(all), int(rate*time.Since(start).Seconds())); sent < due; sent++ {
			i := sent
			wg.Go(func() {
				begin := time.Now()
				tallies[i] = s.ask(0, 1)
				all[i] = time.Since(begin)
			})
		}
	}
	wg.Wait()
	for _, t := range tallies {
		sum.add(t)
	}
	return all, sum
}

// quantile sorts the latencies.
func quantile(all []time.Duration, q float64) time.Duration {
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// newPrefetched leases what the load uses in four round trips, and at least 100.
func (l *lab) newPrefetched(roundTrip time.Duration) (h *hybrid.Limiter, s *subject, size int, err error) {
	size = max(100, int(4*openRate*roundTrip.Seconds()))
	h, s, err = l.leased(hybrid.PerSecond(1_000_000), hybrid.Options{LeaseSize: size})
	return h, s, size, err
}

// tail measures the round trip anew in each round, for what is a large enough lease follows from it.
func (l *lab) tail() ([]result, error) {
	theirs, err := l.newRedisRate()
	if err != nil {
		return nil, err
	}
	defer theirs.close()
	var r result
	var sum tally
	var p999, yard, sizes []float64
	var roundTrip time.Duration
	for round := range 2*l.few() + 1 {
		h, ours, size, err := l.newPrefetched(roundTrip)
		if err != nil {
			return nil, err
		}
		passes := takeTurns(1, []*subject{ours, theirs}, func(s *subject, _ int) pass {
			latencies(s, openRate, l.scaled(100*time.Millisecond)) // so that connections and leases are there
			all, t := latencies(s, openRate, l.scaled(600*time.Millisecond))
			return pass{tally: t, elapsed: quantile(all, 0.999)}
		})
		roundTrip = h.Stats().RoundTrip
		ours.close()
		if round == 0 {
			continue // it only measured the round trip
		}
		p999, yard = append(p999, float64(passes[0][0].elapsed)), append(yard, float64(passes[1][0].elapsed))
		r.values = append(r.values, p999[round-1]/yard[round-1])
		sizes = append(sizes, float64(size))
		sum.add(passes[0][0].tally)
		sum.add(passes[1][0].tally)
	}
	r.counts = fmt.Sprintf("p999 %s, redis_rate %s; leases of %.0f",
		measure.Duration(measure.Median(p999)), measure.Duration(measure.Median(yard)), measure.Median(sizes))
	if sum.admitted < sum.all() {
		r.void = fmt.Sprintf("%d denied, %d failed", sum.denied, sum.failed)
	}
	return []result{r}, nil
}
