package flight_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hybridlimit/hybrid/internal/flight"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

const timeout = 100 * time.Millisecond

var background = context.Background()

// bucket is a Send that takes a while, admits what it has in order, and notes what it was sent.
type bucket struct {
	deaf bool // goes on when its context has ended
	fail func(call int) error

	mu     sync.Mutex // guards the fields below
	takes  time.Duration
	level  int
	sent   [][]lease.Run
	flying int
	most   int // sends at the same time
}

func (b *bucket) send(ctx context.Context, _ string, costs []lease.Run) ([]lease.Paid, error) {
	b.mu.Lock()
	b.sent = append(b.sent, slices.Clone(costs))
	call, takes := len(b.sent), b.takes
	b.flying++
	b.most = max(b.most, b.flying)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.flying--
	}()

	quit := ctx.Done()
	if b.deaf {
		quit = nil
	}
	select {
	case <-time.After(takes):
	case <-quit:
		return nil, fmt.Errorf("%w: no answer in time", limit.ErrUnavailable)
	}
	if b.fail != nil {
		if err := b.fail(call); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	paid := make([]lease.Paid, len(costs))
	for i, c := range costs {
		p := &paid[i]
		p.Cost = c.Cost
		for range c.Count {
			if c.Cost > b.level {
				break
			}
			if p.Admitted++; p.Admitted == 1 {
				p.Allowed = result(true, b.level-c.Cost)
			}
			b.level -= c.Cost
		}
		p.Denied = result(false, b.level)
	}
	return paid, nil
}

func result(ok bool, remaining int) limit.Result {
	r := limit.Result{Verdict: limit.Verdict{Allowed: ok, Origin: limit.Remote}, Remaining: remaining}
	if !ok {
		r.RetryAfter = time.Second
	}
	return r
}

// call is one caller, and how it went.
type call struct {
	limit.Result
	err  error
	took time.Duration
	done bool
}

// callers calls a group, each in a goroutine of its own.
type callers struct {
	group *flight.Group
	send  flight.Send
	wg    sync.WaitGroup
}

// ask makes a call, which is under way when ask returns.
func (c *callers) ask(ctx context.Context, cost int) *call {
	got := &call{}
	c.wg.Go(func() {
		begin := time.Now()
		got.Result, got.err = c.group.Do(ctx, "k", cost, c.send)
		got.took = time.Since(begin)
		got.done = true
	})
	synctest.Wait()
	return got
}

// each runs a scenario in two bubbles: with callers who cannot leave, and so may see to a call in their own goroutine,
// and with callers who could.
func each(t *testing.T, kind *bucket, scenario func(t *testing.T, c *callers, b *bucket, caller context.Context)) {
	t.Helper()
	for _, name := range []string{"cannot leave", "could leave"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				caller := background
				if name == "could leave" {
					leaving, cancel := context.WithCancel(background)
					defer cancel()
					caller = leaving
				}
				b := &bucket{takes: kind.takes, deaf: kind.deaf, fail: kind.fail, level: kind.level}
				c := &callers{group: flight.New(timeout), send: b.send}
				scenario(t, c, b, caller)
				c.wg.Wait()
			})
		})
	}
}

// sends checks what was sent.
func (b *bucket) sends(t *testing.T, want ...[]lease.Run) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if fmt.Sprint(b.sent) != fmt.Sprint(want) {
		t.Errorf("sent %v, want %v", b.sent, want)
	}
}

func (c *call) want(t *testing.T, ok bool, remaining int, took time.Duration) {
	t.Helper()
	if want := result(ok, remaining); !c.done || c.err != nil || c.Result != want || c.took != took {
		t.Errorf("%+v, want %+v after %v", *c, want, took)
	}
}

func (c *call) wantErr(t *testing.T, want error, took time.Duration) {
	t.Helper()
	if !c.done || !errors.Is(c.err, want) || c.Result != (limit.Result{}) || c.took != took {
		t.Errorf("%+v, want %v after %v", *c, want, took)
	}
}

func TestOneCallForAllWhoWait(t *testing.T) {
	each(t, &bucket{takes: 10 * time.Millisecond, level: 10}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		first := c.ask(caller, 1)
		var waiting []*call
		for _, cost := range []int{2, 2, 3, 0, 3, 1, 1} {
			waiting = append(waiting, c.ask(caller, cost))
		}
		time.Sleep(20 * time.Millisecond)
		c.wg.Wait()
		b.sends(t, []lease.Run{{Cost: 1, Count: 1}}, []lease.Run{{Cost: 2, Count: 2}, {Cost: 3, Count: 1}, {Cost: 0, Count: 1}, {Cost: 3, Count: 1}, {Cost: 1, Count: 2}})
		// In the order in which they came, each as if alone.
		first.want(t, true, 9, 10*time.Millisecond)
		for i, w := range []struct {
			ok        bool
			remaining int
		}{{true, 7}, {true, 5}, {true, 2}, {true, 2}, {false, 2}, {true, 1}, {true, 0}} {
			waiting[i].want(t, w.ok, w.remaining, 20*time.Millisecond)
		}
		// Nothing is kept: the next one is alone again.
		late := c.ask(caller, 1)
		time.Sleep(10 * time.Millisecond)
		c.wg.Wait()
		late.want(t, false, 0, 10*time.Millisecond)
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.sent) != 3 || b.most != 1 {
			t.Errorf("%d sends, %d at a time; want 3, one at a time", len(b.sent), b.most)
		}
	})
}

func TestBatchIsCutAtMaxRuns(t *testing.T) {
	each(t, &bucket{takes: 10 * time.Millisecond, level: 5000}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		c.ask(caller, 1)
		var waiting []*call
		for i := range 2*lease.MaxRuns + 2 {
			waiting = append(waiting, c.ask(caller, 1+i%2))
		}
		waiting = append(waiting, c.ask(caller, 2)) // to the last run
		c.wg.Wait()
		var runs []int
		for _, costs := range b.sent {
			runs = append(runs, len(costs))
		}
		if !slices.Equal(runs, []int{1, lease.MaxRuns, lease.MaxRuns, 2}) {
			t.Errorf("runs %v, want 1, %d, %d, 2", runs, lease.MaxRuns, lease.MaxRuns)
		}
		if got := b.sent[3]; !slices.Equal(got, []lease.Run{{Cost: 1, Count: 1}, {Cost: 2, Count: 2}}) {
			t.Errorf("last batch %v", got)
		}
		remaining := 4999
		for i, w := range waiting {
			cost := 1 + min(i, 2*lease.MaxRuns+1)%2
			remaining -= cost
			w.want(t, true, remaining, time.Duration(2+min(i, 2*lease.MaxRuns+1)/lease.MaxRuns)*10*time.Millisecond)
		}
	})
}

// A full batch with equal costs grows without end: it is one run.
func TestOneRunHoldsMany(t *testing.T) {
	each(t, &bucket{takes: 10 * time.Millisecond, level: 5}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		c.ask(caller, 1)
		for range 300 {
			c.ask(caller, 1)
		}
		c.wg.Wait()
		b.sends(t, []lease.Run{{Cost: 1, Count: 1}}, []lease.Run{{Cost: 1, Count: 300}})
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bucket{takes: 10 * time.Millisecond, level: 10}
		g := flight.New(timeout)
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { _, _ = g.Do(background, fmt.Sprint(i), 1, b.send) })
		}
		wg.Wait()
		if took := time.Since(begin); took != 10*time.Millisecond || b.most != 5 {
			t.Errorf("%v, %d at a time; want 10ms, 5", took, b.most)
		}
	})
}

// A call that times out takes those along who wait for the next one: they have waited nearly as long. Who comes later is
// sent, with the whole timeout.
func TestTimeout(t *testing.T) {
	each(t, &bucket{takes: time.Hour}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		first := c.ask(caller, 1)
		time.Sleep(30 * time.Millisecond)
		second := c.ask(caller, 2)
		time.Sleep(30 * time.Millisecond)
		third := c.ask(caller, 3) // with the second
		time.Sleep(50 * time.Millisecond)
		fourth := c.ask(caller, 4)
		c.wg.Wait()
		first.wantErr(t, limit.ErrUnavailable, timeout)
		second.wantErr(t, flight.ErrBehind, 70*time.Millisecond)
		third.wantErr(t, flight.ErrBehind, 40*time.Millisecond)
		fourth.wantErr(t, limit.ErrUnavailable, timeout)
		b.sends(t, []lease.Run{{Cost: 1, Count: 1}}, []lease.Run{{Cost: 4, Count: 1}})
	})
}

// Callers come when the call before is sent. If the next call had only what is left of their time, a round trip longer
// than half of the timeout would make every other call fail.
func TestLongRoundTripsSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bucket{takes: 90 * time.Millisecond, level: 10_000}
		g := flight.New(timeout)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if r, err := g.Do(background, "k", 1, b.send); err != nil || !r.Allowed {
						t.Errorf("%+v, %v", r, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestEachCallHasTheWholeTimeout(t *testing.T) {
	each(t, &bucket{}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		var deadlines []time.Duration
		begin := time.Now()
		c.send = func(ctx context.Context, key string, costs []lease.Run) ([]lease.Paid, error) {
			d, ok := ctx.Deadline()
			if !ok || ctx.Err() != nil {
				t.Errorf("deadline %v, %v; %v", d, ok, ctx.Err())
			}
			deadlines = append(deadlines, d.Sub(begin))
			time.Sleep(40 * time.Millisecond)
			return b.send(ctx, key, costs)
		}
		c.ask(caller, 0)
		time.Sleep(25 * time.Millisecond)
		c.ask(caller, 0)
		c.wg.Wait()
		if want := []time.Duration{timeout, timeout + 40*time.Millisecond}; !slices.Equal(deadlines, want) {
			t.Errorf("deadlines %v, want %v", deadlines, want)
		}
	})
}

// The context of a call is good until its callers have an answer, be it that there is none.
func TestContextOfACall(t *testing.T) {
	each(t, &bucket{takes: 40 * time.Millisecond, level: 10}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		var call, derived context.Context
		c.send = func(ctx context.Context, key string, costs []lease.Run) ([]lease.Paid, error) {
			var cancel context.CancelFunc
			call = ctx
			derived, cancel = context.WithTimeout(ctx, time.Hour)
			defer cancel()
			paid, err := b.send(derived, key, costs)
			if want := map[bool]error{true: context.DeadlineExceeded}[err != nil]; ctx.Err() != want || derived.Err() != want {
				t.Errorf("%v, derived %v in a call that ends with %v; want %v", ctx.Err(), derived.Err(), err, want)
			}
			return paid, err
		}
		c.ask(caller, 1)
		c.wg.Wait()
		time.Sleep(timeout) // a context that has ended does not change its mind
		if call.Err() != context.Canceled {
			t.Errorf("%v after the answer, want %v", call.Err(), context.Canceled)
		}
		b.takes = time.Hour
		late := c.ask(caller, 1)
		c.wg.Wait()
		late.wantErr(t, limit.ErrUnavailable, timeout)
		if call.Err() != context.DeadlineExceeded {
			t.Errorf("%v after the time is up, want %v", call.Err(), context.DeadlineExceeded)
		}
	})
}

// A call that does not heed its deadline keeps the key's next one from being sent. Whoever has timed out meanwhile is
// not sent any more, and who comes then is not told that he has.
func TestTimedOutUnsentIsNeverSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller, cancel := context.WithCancel(background)
		defer cancel()
		b := &bucket{takes: 2 * timeout, deaf: true, level: 10}
		c := &callers{group: flight.New(timeout), send: b.send}
		first := c.ask(caller, 1)
		time.Sleep(30 * time.Millisecond)
		second := c.ask(caller, 2)
		time.Sleep(timeout + 20*time.Millisecond)
		late := c.ask(caller, 3) // at 150 ms; the first call ends at 200 ms
		if late.done {
			t.Errorf("the late caller was turned away at once: %+v", *late)
		}
		b.mu.Lock()
		b.takes = 10 * time.Millisecond
		b.mu.Unlock()
		c.wg.Wait()
		first.wantErr(t, limit.ErrUnavailable, timeout)
		second.wantErr(t, limit.ErrUnavailable, timeout-30*time.Millisecond)
		late.want(t, true, 6, 60*time.Millisecond)
		b.sends(t, []lease.Run{{Cost: 1, Count: 1}}, []lease.Run{{Cost: 3, Count: 1}})
	})
}

func TestCallerLeaves(t *testing.T) {
	each(t, &bucket{takes: 40 * time.Millisecond, level: 10}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		leaving, cancel := context.WithCancel(background)
		short, stop := context.WithTimeout(background, 20*time.Millisecond)
		defer stop()
		first := c.ask(leaving, 1) // opens the batch, and leaves while it is out
		queued := c.ask(leaving, 2)
		brief := c.ask(short, 2)
		stays := c.ask(caller, 2)
		time.Sleep(10 * time.Millisecond)
		cancel()
		synctest.Wait()
		first.wantErr(t, context.Canceled, 10*time.Millisecond)
		queued.wantErr(t, context.Canceled, 10*time.Millisecond)
		c.wg.Wait()
		brief.wantErr(t, context.DeadlineExceeded, 20*time.Millisecond)
		stays.want(t, true, 3, 80*time.Millisecond)
		// The costs of those who left stay in the batch.
		b.sends(t, []lease.Run{{Cost: 1, Count: 1}}, []lease.Run{{Cost: 2, Count: 3}})
		gone := c.ask(leaving, 1)
		c.wg.Wait()
		gone.wantErr(t, context.Canceled, 0)
		if len(b.sent) != 2 {
			t.Errorf("a caller who had left was sent: %v", b.sent)
		}
	})
}

// All callers of a batch have left: the next one gets a call of its own, or joins what was not sent yet.
func TestAllCallersLeave(t *testing.T) {
	each(t, &bucket{takes: 40 * time.Millisecond, level: 10}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		leaving, cancel := context.WithCancel(background)
		c.ask(leaving, 1)
		c.ask(leaving, 1)
		cancel()
		synctest.Wait()
		late := c.ask(caller, 1)
		c.wg.Wait()
		late.want(t, true, 7, 80*time.Millisecond)
	})
}

// Start makes a call without a caller; whoever comes before it is sent joins it.
func TestStart(t *testing.T) {
	each(t, &bucket{takes: 10 * time.Millisecond, level: 10}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
		c.group.Start("k", c.send, nil)
		synctest.Wait()
		c.group.Start("k", c.send, nil)
		c.group.Start("k", c.send, nil) // one is about to be sent anyway
		first := c.ask(caller, 1)
		second := c.ask(caller, 1)
		c.group.Start("k", c.send, nil)
		c.wg.Wait()
		first.want(t, true, 9, 20*time.Millisecond)
		second.want(t, true, 8, 20*time.Millisecond)
		c.group.Start("k", c.send, nil)
		time.Sleep(20 * time.Millisecond)
		b.sends(t, nil, []lease.Run{{Cost: 1, Count: 2}}, nil)
	})
}

func TestErrorsGoToTheWholeBatch(t *testing.T) {
	broken := errors.New("broken")
	for name, fail := range map[string]struct {
		f    func() error
		want error
		text string
	}{
		"error":   {func() error { return broken }, broken, "broken"},
		"panic":   {func() error { panic("with secrets") }, limit.ErrUnavailable, "panic in the call: a string"},
		"runtime": {func() error { var p *int; *p = 1; return nil }, limit.ErrUnavailable, "nil pointer dereference"},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, &bucket{takes: 10 * time.Millisecond, level: 10, fail: func(call int) error {
				if call == 2 {
					return fail.f()
				}
				return nil
			}}, func(t *testing.T, c *callers, b *bucket, caller context.Context) {
				first := c.ask(caller, 1)
				var batch []*call
				for i := range 50 {
					batch = append(batch, c.ask(caller, i/10))
				}
				time.Sleep(15 * time.Millisecond)
				next := c.ask(caller, 1)
				c.wg.Wait()
				first.want(t, true, 9, 10*time.Millisecond)
				for _, got := range batch {
					got.wantErr(t, fail.want, 20*time.Millisecond)
					if text := fmt.Sprint(got.err); !strings.Contains(text, fail.text) || strings.Contains(text, "secret") {
						t.Errorf("%q, want %q", text, fail.text)
					}
				}
				next.want(t, true, 8, 15*time.Millisecond)
			})
		})
	}
}

// A send that ends its goroutine, as t.FailNow does, leaves nobody waiting.
func TestGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller, cancel := context.WithCancel(background)
		defer cancel()
		b := &bucket{takes: 10 * time.Millisecond, level: 10, fail: func(call int) error {
			if call == 1 {
				runtime.Goexit()
			}
			return nil
		}}
		c := &callers{group: flight.New(timeout), send: b.send}
		first := c.ask(caller, 1)
		second := c.ask(caller, 1)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		first.wantErr(t, limit.ErrUnavailable, 10*time.Millisecond)
		// It waited in the goroutine that singleflight ended with the first.
		second.wantErr(t, limit.ErrUnavailable, 10*time.Millisecond)
		third := c.ask(caller, 1)
		c.wg.Wait()
		third.want(t, true, 9, 10*time.Millisecond)
	})
}

// Whatever the interleaving, each call is sent once, in the order of its batch, one send at a time for each key, and
// all goroutines end.
func TestRandomCallers(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, seed))
			b := &bucket{takes: time.Millisecond, level: 1 << 30}
			g := flight.New(time.Hour)
			var wg sync.WaitGroup
			total := 0
			for range 300 {
				cost := rnd.IntN(4)
				total += cost
				caller, cancel := background, context.CancelFunc(func() {})
				if rnd.IntN(2) == 0 {
					caller, cancel = context.WithCancel(background)
				}
				wait := time.Duration(rnd.IntN(20_000)) * time.Microsecond
				wg.Go(func() {
					defer cancel()
					time.Sleep(wait)
					if got, err := g.Do(caller, "k", cost, b.send); err != nil || !got.Allowed {
						t.Errorf("%+v, %v", got, err)
					}
				})
			}
			wg.Wait()
			count, sum := 0, 0
			for _, costs := range b.sent {
				for _, c := range costs {
					count += c.Count
					sum += c.Count * c.Cost
				}
			}
			if count != 300 || sum != total || b.most != 1 {
				t.Errorf("seed %d: %d calls for %d tokens sent, %d at a time; want 300 for %d, one at a time", seed, count, sum, b.most, total)
			}
		})
	}
}

func TestGuard(t *testing.T) {
	broken := errors.New("broken")
	if err := flight.Guard(func() error { return broken }); err != broken {
		t.Errorf("%v, want the error as it is", err)
	}
	if err := flight.Guard(func() error { return nil }); err != nil {
		t.Error(err)
	}
	for _, v := range []any{"text", broken, 1} {
		if err := flight.Guard(func() error { panic(v) }); !errors.Is(err, limit.ErrUnavailable) {
			t.Errorf("panic(%v): %v, want ErrUnavailable", v, err)
		}
	}
}
