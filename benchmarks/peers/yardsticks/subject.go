package main

import (
	"sync"
	"sync/atomic"
	"time"
)

// subject is one side of a ratio: something that decides requests.
type subject struct {
	// ask makes n requests, one after the other. The loop is the subject's own, so that no call of a function value
	// comes between decisions that take a few nanoseconds; each subject counts what came of them, so that no decision
	// is dead code. first is where to begin among the keys that were drawn.
	ask func(first, n int) tally
	// calls is how many calls its limiter has made to its source; nil if it has none.
	calls func() int64
	close func()
}

func nothing() {}

// tally is what came of some requests.
type tally struct{ admitted, denied, failed int }

// plus counts one more. It works on values, so that the counts of a loop stay in registers.
func (t tally) plus(allowed bool, err error) tally {
	switch {
	case err != nil:
		t.failed++
	case allowed:
		t.admitted++
	default:
		t.denied++
	}
	return t
}

func (t *tally) add(o tally) {
	t.admitted += o.admitted
	t.denied += o.denied
	t.failed += o.failed
}

func (t tally) all() int { return t.admitted + t.denied + t.failed }

// pass is what a subject did without a break.
type pass struct {
	tally
	elapsed time.Duration
	calls   int64 // to the source, meanwhile
}

func (p pass) nanos() float64     { return float64(p.elapsed.Nanoseconds()) / float64(p.all()) }
func (p pass) perSecond() float64 { return float64(p.all()) / p.elapsed.Seconds() }

func (s *subject) callsSoFar() int64 {
	if s.calls == nil {
		return 0
	}
	return s.calls()
}

// run is a pass of n requests, or as near to it as a multiple of goroutines comes, which start together. The clock is
// read twice in all.
func (s *subject) run(goroutines, first, n int) (p pass) {
	calls := s.callsSoFar()
	if goroutines == 1 {
		start := time.Now()
		p.tally = s.ask(first, n)
		p.elapsed = time.Since(start)
	} else {
		var ready, done sync.WaitGroup
		begin := make(chan struct{})
		tallies := make([]tally, goroutines)
		ready.Add(goroutines)
		for g := range goroutines {
			done.Go(func() {
				ready.Done()
				<-begin
				tallies[g] = s.ask(first+7919*g, (n+goroutines-1)/goroutines) // written once, so sharing a cache line is no matter
			})
		}
		ready.Wait()
		start := time.Now()
		close(begin)
		done.Wait()
		p.elapsed = time.Since(start)
		for _, t := range tallies {
			p.add(t)
		}
	}
	p.calls = s.callsSoFar() - calls
	return p
}

// during is a pass of a length. It is for round trips: a number of requests would end with few that are still under
// way, which is not the load that was meant. Requests that are answered after the end do not count.
func (s *subject) during(goroutines int, d time.Duration) (p pass) {
	calls := s.callsSoFar()
	var stop atomic.Bool
	var wg sync.WaitGroup
	tallies := make([]tally, goroutines)
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			var sum tally
			for i := 7919 * g; ; i++ {
				t := s.ask(i, 1)
				if stop.Load() {
					break
				}
				sum.add(t)
			}
			tallies[g] = sum
		})
	}
	time.Sleep(d)
	stop.Store(true)
	p.elapsed = time.Since(start)
	wg.Wait()
	for _, t := range tallies {
		p.add(t)
	}
	p.calls = s.callsSoFar() - calls
	return p
}

// takeTurns makes each subject do a pass in each round; who begins changes, so that a machine that becomes slower or
// faster favours nobody. It returns the passes by subject and round.
func takeTurns(rounds int, subjects []*subject, do func(s *subject, round int) pass) [][]pass {
	passes := make([][]pass, len(subjects))
	for round := range rounds {
		for k := range subjects {
			i := (k + round) % len(subjects)
			passes[i] = append(passes[i], do(subjects[i], round))
		}
	}
	return passes
}

// race takes turns with passes of run that take about d each, after one that does not count.
func race(rounds int, d time.Duration, goroutines int, subjects ...*subject) [][]pass {
	size := make(map[*subject]int)
	for _, s := range subjects {
		size[s] = 64 * goroutines
		for p := (pass{}); p.elapsed < d/4; size[s] *= 2 {
			p = s.run(goroutines, 0, size[s])
		}
	}
	return takeTurns(rounds+1, subjects, func(s *subject, round int) pass {
		p := s.run(goroutines, 10007*round, size[s])
		size[s] = max(goroutines, int(float64(p.all())*float64(d)/float64(max(p.elapsed, 1))))
		return p
	})
}
