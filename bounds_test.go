package hybrid_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

// A bound from above is kept by whoever denies everything. These tests hold the limiter to both: to what the limit
// allows and to what one ideal bucket in the memory of one process would have admitted of the same requests.

// twin is the ideal bucket.
type twin struct {
	lim   limit.Limit
	level float64
	last  time.Time
}

func (w *twin) take(n int) bool {
	now := time.Now()
	rate := float64(w.lim.Rate) / w.lim.Period.Seconds()
	w.level = min(float64(w.lim.Burst), w.level+rate*now.Sub(w.last).Seconds())
	w.last = now
	if w.level < float64(n)-1e-9 {
		return false
	}
	w.level -= float64(n)
	return true
}

// traffic is requests per second at a time, as a multiple of the rate.
type traffic struct {
	name string
	load func(at time.Duration) float64
}

var traffics = []traffic{
	{"0.8x", func(time.Duration) float64 { return 0.8 }},
	{"2x", func(time.Duration) float64 { return 2 }},
	{"bursts", func(at time.Duration) float64 {
		if at%time.Second < 100*time.Millisecond {
			return 9
		}
		return 0
	}},
}

// judged is what a run came to.
type judged struct {
	offered, ideal, admitted int
	worst                    int // tokens by which it was behind the ideal at some time
	calls                    int
	excess                   int64
}

func (j judged) String() string {
	return fmt.Sprintf("%d offered, %d of ideally %d admitted (%.4f), at most %d behind, %+d of the bound, %.1f calls/s",
		j.offered, j.admitted, j.ideal, float64(j.admitted)/float64(max(1, j.ideal)), j.worst, j.excess, float64(j.calls)/60)
}

// judge runs a minute of traffic, spread over the processes, each request from a caller of its own.
func judge(t *testing.T, lim limit.Limit, tr traffic, processes []hybrid.Options, rtt time.Duration) (j judged) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.always(leasetest.Fault{Delay: rtt / 2, Reply: rtt - rtt/2})
		var all []*hybrid.Limiter
		for _, opts := range processes {
			all = append(all, newLimiter(t, b, lim, opts))
		}
		ideal := twin{lim, float64(lim.Burst), time.Now()}
		rng := rand.New(rand.NewPCG(1, 2))
		rate := float64(lim.Rate) / lim.Period.Seconds()
		var mu sync.Mutex
		var e leasetest.Envelope
		start, owed := time.Now(), 0.0
		var wg sync.WaitGroup
		one := func(l *hybrid.Limiter) {
			r, err := l.Allow(t.Context(), "k")
			if err != nil {
				t.Error(err)
			} else if r.Allowed {
				mu.Lock()
				j.admitted++
				mu.Unlock()
				if r.Origin == hybrid.Local {
					e.Add(b.Now(), 1)
				}
			}
		}
		tick := time.Millisecond
		for at := time.Duration(0); at < time.Minute; at += tick {
			sleepUntil(start, at)
			for owed += rate * tr.load(at) * tick.Seconds(); owed >= 1; owed-- {
				l := all[rng.IntN(len(all))]
				j.offered++
				if ideal.take(1) {
					j.ideal++
				}
				if rtt == 0 {
					one(l)
				} else {
					wg.Go(func() { one(l) })
				}
			}
			mu.Lock()
			j.worst = max(j.worst, j.ideal-j.admitted)
			mu.Unlock()
		}
		wg.Wait()
		for _, l := range all {
			closeLimiter(t, l)
		}
		j.calls = b.Calls()
		j.excess = e.Worst(lim).Excess
	})
	return j
}

// allowance is how far behind the ideal it may be at any time: what lies in leases and hold-offs, once.
func allowance(lim limit.Limit, tau time.Duration, ideal int, rtt time.Duration) int {
	rate := float64(lim.Rate) / lim.Period.Seconds()
	return int(math.Ceil(3*rate*max(tau, 50*time.Millisecond).Seconds()+0.001*float64(ideal)+2*rate*rtt.Seconds())) + 1
}

func TestBothBoundsOfOneProcess(t *testing.T) {
	limits := []limit.Limit{hybrid.PerSecond(100), hybrid.PerSecond(1000).WithBurst(300), hybrid.PerSecond(50).WithBurst(500)}
	delays := []time.Duration{0, time.Millisecond, 5 * time.Millisecond}
	if underRace || testing.Short() {
		limits, delays = limits[:1], delays[:2]
	}
	for i, lim := range limits {
		for _, tr := range traffics {
			if tr.name == "bursts" && time.Duration(float64(lim.Burst)/float64(lim.Rate)*float64(lim.Period)) < time.Second {
				continue // more than the bucket holds: what comes in while a denial is remembered is lost with each burst
			}
			for name, opts := range map[string]hybrid.Options{"adaptive": {}, "lease 10": {LeaseSize: 10}, "exact": {Exact: true}} {
				for _, rtt := range delays {
					if i > 0 && rtt == time.Millisecond {
						continue
					}
					t.Run(fmt.Sprintf("%v %s %s %v", lim, tr.name, name, rtt), func(t *testing.T) {
						t.Parallel()
						j := judge(t, lim, tr, []hybrid.Options{opts}, rtt)
						t.Log(j)
						terms := newLimiter(t, newBank(), lim, opts).Stats().Terms
						if may := allowance(lim, terms.Tau, j.ideal, rtt); j.worst > may {
							t.Errorf("behind the ideal by %d, %d may be: %v", j.worst, may, j)
						}
						if float64(j.admitted) < 0.99*float64(j.ideal) {
							t.Errorf("too little: %v", j)
						}
						if j.excess > 0 || j.admitted > lim.Burst+int(60.1*float64(lim.Rate)/lim.Period.Seconds())+1 {
							t.Errorf("too much: %v", j)
						}
						if tr.name == "0.8x" && j.admitted != j.offered {
							t.Errorf("denied though the tokens were there: %v", j)
						}
					})
				}
			}
		}
	}
}

func TestBothBoundsOfManyProcesses(t *testing.T) {
	lim := hybrid.PerSecond(2000)
	n := 10
	rtt := time.Millisecond
	if underRace || testing.Short() {
		lim, n = hybrid.PerSecond(200), 4
	}
	for _, tr := range traffics {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			j := judge(t, lim, tr, make([]hybrid.Options, n), rtt)
			t.Log(j)
			if float64(j.admitted) < 0.99*float64(j.ideal) {
				t.Errorf("too little: %v", j)
			}
			if j.excess > 0 || j.admitted > lim.Burst+int(60.1*float64(lim.Rate))+1 {
				t.Errorf("too much: %v", j)
			}
		})
	}
}
