package remote_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// answer is what one caller got.
type answer struct {
	limit.Result
	err error
}

// gathering is a rig with a call that is stuck on its way to Redis, and callers who wait behind it.
type gathering struct {
	*rig
	tap     *tap
	open    func() // lets the first call pass
	first   chan answer
	waiting int
	answers []chan answer
}

// gather makes the first call and holds it.
func gather(r *rig, opts remote.Options) *gathering {
	r.t.Helper()
	rdb := r.b.NewClient(r.t)
	g := &gathering{rig: startWith(r.t, r.b, rdb, r.mode, r.LimitOf("k"), opts), tap: attach(rdb), first: make(chan answer, 1)}
	g.key = r.key
	held, gate := make(chan struct{}), make(chan struct{})
	g.open = sync.OnceFunc(func() { close(gate) })
	r.t.Cleanup(g.open)
	g.tap.intercept(func(n int) error {
		if n == 1 {
			close(held)
			<-gate
		}
		return nil
	})
	go func() {
		got, err := g.AllowN(ctx, g.key, 1)
		g.first <- answer{got, err}
	}()
	<-held
	g.waiting = 1
	parked(r.t, g.waiting)
	return g
}

// join adds a caller, who is in the queue when it returns.
func (g *gathering) join(ctx context.Context, n int) {
	g.t.Helper()
	c := make(chan answer, 1)
	g.answers = append(g.answers, c)
	go func() {
		got, err := g.AllowN(ctx, g.key, n)
		c <- answer{got, err}
	}()
	g.waiting++
	parked(g.t, g.waiting)
}

// crowd adds callers for one token each, in any order.
func (g *gathering) crowd(callers int) {
	g.t.Helper()
	for range callers {
		c := make(chan answer, 1)
		g.answers = append(g.answers, c)
		go func() {
			got, err := g.Allow(ctx, g.key)
			c <- answer{got, err}
		}()
	}
	g.waiting += callers
	parked(g.t, g.waiting)
}

// inTurn is each without parallel tests: parked looks at all goroutines.
func inTurn(t *testing.T, modes []mode, lim limit.Limit, scenario func(r *rig)) {
	t.Helper()
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) { scenario(start(t, b, m, lim)) })
		}
	})
}

// Callers who come while a call is out share the next one, in the order in which they came, and each gets what it
// would have got alone.
func TestGroupDecidesAsIfAlone(t *testing.T) {
	inTurn(t, allModes, per(60, 60), func(r *rig) {
		rnd := rand.New(rand.NewPCG(6, 6))
		for _, warm := range []string{"cold", "warm"} { // the script is not known to the server, and is
			g := gather(r.on(warm), remote.Options{Timeout: patience})
			var costs []int
			for len(costs) < 20 {
				n := rnd.IntN(9)
				for range 1 + rnd.IntN(3) {
					costs = append(costs, n)
					g.join(ctx, n)
				}
			}
			g.open()
			var got, want []string
			got = append(got, fmt.Sprint(1, <-g.first))
			for i, c := range g.answers {
				got = append(got, fmt.Sprint(costs[i], <-c))
			}
			if calls := g.tap.sent(); calls != 2 && (warm == "warm" || calls > 3) {
				r.t.Errorf("%s: %d calls for one caller and %d behind it, want 2", warm, calls, len(costs))
			}
			alone := r.on("alone " + warm)
			for _, n := range append([]int{1}, costs...) {
				a, err := alone.AllowN(ctx, alone.key, n)
				want = append(want, fmt.Sprint(n, answer{a, err}))
			}
			if !slices.Equal(got, want) {
				r.t.Errorf("%s: together\n%s\nalone\n%s", warm, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	})
}

// What TestBatchIsCutAtMaxRuns of package flight cuts is small enough for the script.
func TestMostRunsInOneCall(t *testing.T) {
	each(t, allModes, per(10_000, 60), func(r *rig) {
		var costs []lease.Run
		for i := range lease.MaxRuns {
			costs = append(costs, lease.Run{Cost: 1 + i%2, Count: 1 + i%3})
		}
		left := 10_000
		results := r.decide(costs)
		for i, c := range costs {
			for range c.Count {
				if left -= c.Cost; !results[0].Allowed || results[0].Remaining != left {
					r.t.Fatalf("run %d: %+v, want allowed, remaining %d", i, results[0], left)
				}
				results = results[1:]
			}
		}
	})
}

func TestSF01_CallerWhoLeavesHarmsNobody(t *testing.T) {
	inTurn(t, allModes, per(100, 60), func(r *rig) {
		g := gather(r, remote.Options{Timeout: patience})
		leaving, cancel := context.WithCancel(ctx)
		g.join(leaving, 1)
		g.crowd(19)
		cancel()
		if got := <-g.answers[0]; got.err != context.Canceled || got.Result != (limit.Result{}) {
			r.t.Errorf("the caller who left: %+v, want context.Canceled", got)
		}
		g.open()
		for i, c := range g.answers[1:] {
			if got := <-c; got.err != nil || !got.Allowed {
				r.t.Errorf("caller %d: %+v, want allowed", i+2, got)
			}
		}
		if got := g.tap.sent(); got > 3 {
			r.t.Errorf("%d calls, want at most 3", got)
		}
		// The request of the one who left was on its way: it is charged.
		if got := r.left(); got != 100-21 {
			r.t.Errorf("%d left, want 79", got)
		}
	})
}

// The reply is shared, the tokens are not.
func TestSF01_TokensAreNotShared(t *testing.T) {
	inTurn(t, allModes, limit.Limit{Rate: 10, Period: 10_000 * time.Second, Burst: 10}, func(r *rig) {
		g := gather(r, remote.Options{Timeout: patience})
		g.crowd(100)
		g.open()
		admitted := 0
		for _, c := range append(g.answers, g.first) {
			if got := <-c; got.err != nil {
				r.t.Error(got.err)
			} else if got.Allowed {
				admitted++
			}
		}
		if admitted != 10 {
			r.t.Errorf("%d of 101 admitted, want 10", admitted)
		}
	})
}

// A hook on the client panics, or ends the goroutine: all get an error, and the next call works.
func TestSF02_Panic(t *testing.T) {
	for name, fail := range map[string]func(){
		"text":    func() { panic("secret-key in the text") },
		"runtime": func() { var p *int; *p++ },
		"goexit":  func() { exit() },
	} {
		for _, attentive := range []bool{false, true} {
			redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
				rdb := b.NewClient(t, attend(attentive))
				r := startWith(t, b, rdb, tokenBucket, per(100, 60), remote.Options{Timeout: patience})
				r.ask(1)
				held, gate := make(chan struct{}), make(chan struct{})
				attach(rdb).intercept(func(n int) error {
					switch n {
					case 1:
						close(held)
						<-gate
					case 2:
						fail()
					}
					return nil
				})
				caller := ctx
				if name == "goexit" {
					// Who cannot leave may see to the call in his own goroutine, which would then end.
					leaving, cancel := context.WithCancel(ctx)
					defer cancel()
					caller = leaving
				}
				results := make(chan error, 51)
				ask := func() {
					_, err := r.Allow(caller, "k")
					results <- err
				}
				go ask()
				<-held
				for range 50 {
					go ask()
				}
				parked(t, 51)
				close(gate)
				failed := 0
				for range 51 {
					err := <-results
					if err == nil {
						continue
					}
					failed++
					if !errors.Is(err, limit.ErrUnavailable) || strings.Contains(err.Error(), "secret-key") {
						t.Errorf("%s: %v; want ErrUnavailable", name, err)
					}
				}
				if failed != 50 {
					t.Errorf("%s: %d of the 50 got an error", name, failed)
				}
				if got := r.ask(1); !got.Allowed || got.Remaining != 97 {
					t.Errorf("%s: the next call: %+v, want allowed, remaining 97", name, got)
				}
			})
		}
	}
}

// A caller who comes when all others have given up is not told that it has given up.
func TestSF03_LateCallerIsServed(t *testing.T) {
	inTurn(t, allModes, per(100, 60), func(r *rig) {
		g := gather(r, remote.Options{Timeout: patience})
		leaving, cancel := context.WithCancel(ctx)
		for range 4 {
			g.join(leaving, 1)
		}
		cancel()
		for _, c := range g.answers {
			if got := <-c; got.err != context.Canceled {
				r.t.Errorf("%+v, want context.Canceled", got)
			}
		}
		g.waiting, g.answers = 1, nil
		g.join(ctx, 1)
		g.open()
		if got := <-g.answers[0]; got.err != nil || !got.Allowed {
			r.t.Errorf("the late caller: %+v, want allowed", got)
		}
	})
}

// Redis does not answer: everybody is back after Timeout, and nothing is left behind when the client has given up too.
func TestTIME01_Hanging(t *testing.T) {
	for _, attentive := range []bool{false, true} {
		redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
			ignore := []goleak.Option{goleak.IgnoreCurrent()}
			proxy := redistest.NewProxy(t, b.Addr())
			rdb := b.NewClient(t, through(proxy), attend(attentive))
			for _, m := range allModes {
				const timeout = 50 * time.Millisecond
				r := startWith(t, b, rdb, m, per(1000, 60), remote.Options{Timeout: timeout})
				if _, err := r.Allow(ctx, "k"); err != nil {
					t.Logf("%s: the first call: %v", m.name, err) // a busy machine
				}
				proxy.BlackHole(true)
				begin := time.Now()
				var wg sync.WaitGroup
				for i := range 100 {
					wg.Go(func() {
						got, err := r.AllowN(ctx, "k", 1+i%3)
						if !errors.Is(err, limit.ErrUnavailable) || got != (limit.Result{}) {
							t.Errorf("%s: %+v, %v; want ErrUnavailable", m.name, got, err)
						}
						if errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("%s: %v is context.DeadlineExceeded, which is for the caller's own", m.name, err)
						}
					})
				}
				wg.Wait()
				// The client would wait for 5 s, which is its default.
				if took := time.Since(begin); took > 50*timeout {
					t.Errorf("%s: back after %v, want about %v", m.name, took, timeout)
				}
				// A caller with a deadline of its own does not wait for Timeout.
				calm := startWith(t, b, rdb, m, per(1000, 60), remote.Options{Timeout: patience})
				for range 10 {
					wg.Go(func() {
						short, cancel := context.WithTimeout(ctx, timeout/5)
						defer cancel()
						if got, err := calm.Allow(short, "k"); err != context.DeadlineExceeded || got != (limit.Result{}) {
							t.Errorf("%s: %+v, %v; want the caller's deadline", m.name, got, err)
						}
					})
				}
				wg.Wait()
				proxy.BlackHole(false)
				proxy.Cut()
			}
			rdb.Close()
			proxy.Close()
			if err := goleak.Find(ignore...); err != nil {
				t.Error(err)
			}
		})
	}
}

// The reply is only late: the next call works, and finds that the lost one was charged.
func TestTIME01_SlowReply(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		proxy := redistest.NewProxy(t, b.Addr())
		rdb := b.NewClient(t, through(proxy))
		for _, m := range allModes {
			slow := startWith(t, b, rdb, m, per(10, 60), remote.Options{Timeout: 30 * time.Millisecond})
			calm := startWith(t, b, rdb, m, per(10, 60), remote.Options{Timeout: patience})
			calm.ask(1)
			proxy.Delay(150 * time.Millisecond)
			slow.fails(1, limit.ErrUnavailable)
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			if _, err := calm.AllowN(short, "k", 1); err != context.DeadlineExceeded {
				t.Errorf("%s: %v, want the caller's deadline", m.name, err)
			}
			cancel()
			proxy.Delay(0)
			if got := calm.ask(1); !got.Allowed || got.Remaining != 6 {
				t.Errorf("%s: %+v, want allowed, remaining 6 of 10 after four charges", m.name, got)
			}
		}
	})
}
