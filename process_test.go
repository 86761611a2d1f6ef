//go:build unix

package hybrid_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

var (
	processesFor  = flag.Duration("processes.for", 6*time.Second, "how long each test with several processes lasts; half of it with -short")
	processesSeed = flag.Uint64("processes.seed", 0, "replay the faults of the tests with several processes from this seed; 0 is a new one")
)

// workerEnv holds the orders of a worker process, which is this test binary once more.
const workerEnv = "HYBRID_WORKER"

// orders are what a worker shall do until its standard input ends.
type orders struct {
	Addr string
	File string // where its attempts go
	Seed uint64
	Kind string // "leased", "exact" or "token bucket"
	Size int    // of a lease
	Hold bool   // keep leases as long as they live
}

// workerKeys are the keys of all workers: a burst of half a second, of a second, and of a fifth, for all of which there
// is more demand than the rate; and one that is left alone until it is full, but for a lease here and there, and then
// wanted by all at once.
var workerKeys = []struct {
	name   string
	limit  limit.Limit
	pulsed bool
}{
	{"half", limit.Limit{Rate: 1000, Period: time.Second, Burst: 500}, false},
	{"full", limit.Limit{Rate: 300, Period: time.Second, Burst: 300}, false},
	{"fifth", limit.Limit{Rate: 4000, Period: time.Second, Burst: 800}, false},
	{"pulse", limit.Limit{Rate: 1000, Period: time.Second, Burst: 400}, true},
}

// workerPulse is how often the pulsed key is wanted, by the wall clock.
const workerPulse = 350 * time.Millisecond

const workerPrefix = "processes:"

// record is an attempt of a worker in its file: key, from, to, cost, outcome.
type record [5]int64

const recordSize = 40

const (
	outcomeDenied = iota
	outcomeAdmitted
	outcomeFailed
)

// TestWorkerProcess is the main function of a worker.
func TestWorkerProcess(t *testing.T) {
	text := os.Getenv(workerEnv)
	if text == "" {
		t.Skip("for the processes that other tests start")
	}
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	// One system call for each record: what a kill -9 can lose is the records of the calls it hits.
	file, err := os.OpenFile(o.File, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rdb := redis.NewClient(clientOptions(o.Addr, func(o *redis.Options) { o.PoolSize, o.ReadTimeout = 40, 300*time.Millisecond }))
	defer rdb.Close()
	take, closer, err := o.limiter(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer closer()
	var stopped atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stopped.Store(true)
	}()
	var load sync.WaitGroup
	for i := range 2 * len(workerKeys) {
		rng := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		load.Go(func() {
			key := i % len(workerKeys)
			request := func(cost int) (a attempt, retry time.Duration) {
				a, r, err := try(func() (limit.Result, error) { return take(key, cost) }, cost)
				a.write(file, key)
				if err != nil {
					return a, 10 * time.Millisecond
				}
				return a, r.RetryAfter
			}
			for !stopped.Load() {
				if workerKeys[key].pulsed {
					workInPulses(rng, request)
				} else {
					work(rng, &stopped, request)
				}
			}
		})
	}
	load.Wait()
}

// work makes requests for a while, as fast as a denial or an error lets it, and then pauses.
func work(rng *rand.Rand, stopped *atomic.Bool, request func(cost int) (attempt, time.Duration)) {
	never := time.Now().Add(time.Hour)
	until := time.Now().Add(time.Duration(50+rng.IntN(400)) * time.Millisecond)
	for time.Now().Before(until) && !stopped.Load() {
		a, retry := request(pick(rng, 1, 1, 1, 2, 5, 20))
		if !a.admitted {
			pause(min(retry, 5*time.Millisecond)+time.Duration(rng.IntN(1000))*time.Microsecond, never)
		}
	}
	if !stopped.Load() {
		pause(time.Duration(rng.IntN(200))*time.Millisecond, never)
	}
}

// workInPulses makes a few requests until the next pulse, and then as many as it can.
func workInPulses(rng *rand.Rand, request func(cost int) (attempt, time.Duration)) {
	next := time.Now().Truncate(workerPulse).Add(workerPulse)
	for rng.IntN(3) > 0 && time.Now().Before(next) {
		request(1)
		pause(time.Duration(rng.Int64N(int64(workerPulse/2))), next)
	}
	pause(workerPulse, next)
	refused := 0
	for end := next.Add(workerPulse / 10); refused < 4 && time.Now().Before(end); {
		if a, _ := request(pick(rng, 1, 5, 20)); !a.admitted {
			refused++
			pause(time.Duration(rng.IntN(2000))*time.Microsecond, end)
		}
	}
}

func (o orders) limiter(rdb *redis.Client) (take func(key, cost int) (limit.Result, error), closer func(), err error) {
	ctx := context.Background()
	if o.Kind == "token bucket" {
		var buckets []*remote.TokenBucket
		for _, k := range workerKeys {
			b, err := remote.NewTokenBucket(rdb, k.limit, remote.Options{Prefix: workerPrefix})
			if err != nil {
				return nil, nil, err
			}
			buckets = append(buckets, b)
		}
		return func(key, cost int) (limit.Result, error) {
			return buckets[key].AllowN(ctx, workerKeys[key].name, cost)
		}, func() {}, nil
	}
	var refresh time.Duration
	if o.Hold {
		refresh = time.Second // it is also for how long a lease lies idle before it is given back
	}
	l, err := hybrid.New(rdb, limit.Limit{}, hybrid.Options{
		Prefix:    workerPrefix,
		OnFailure: hybrid.FailClosed,
		LeaseSize: o.Size,
		Refresh:   refresh,
		Exact:     o.Kind == "exact",
		LimitFor: func(key string) limit.Limit {
			for _, k := range workerKeys {
				if k.name == key {
					return k.limit
				}
			}
			return limit.Limit{}
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return func(key, cost int) (limit.Result, error) { return l.AllowN(ctx, workerKeys[key].name, cost) },
		func() { l.Close(ctx) }, nil
}

func (a attempt) write(w io.Writer, key int) {
	rec := record{int64(key), a.from, a.to, a.cost, outcomeDenied}
	switch {
	case a.admitted:
		rec[4] = outcomeAdmitted
	case a.failed:
		rec[4] = outcomeFailed
	}
	var buf [recordSize]byte
	binary.Encode(buf[:], binary.LittleEndian, rec)
	w.Write(buf[:])
}

// readAttempts reads what a worker wrote, by key.
func readAttempts(t *testing.T, name string, into [][]attempt) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // killed before it began
		t.Fatal(err)
	}
	for ; len(data) >= recordSize; data = data[recordSize:] {
		var rec record
		binary.Decode(data, binary.LittleEndian, &rec)
		a := attempt{rec[1], rec[2], rec[3], rec[4] == outcomeAdmitted, rec[4] == outcomeFailed}
		into[rec[0]] = append(into[rec[0]], a)
	}
}

// crew are the worker processes of one test, and the faults they live with. Only the test's goroutine uses it.
type crew struct {
	t       *testing.T
	rng     *rand.Rand
	srv     *redistest.Server
	posts   []*post
	dir     string
	files   []string
	stopped map[*worker]time.Time // when to resume it
	kills   int
	stops   int
	faults  int
}

// post is a place at which one worker after another works.
type post struct {
	kind  func() string
	size  int
	hold  bool
	proxy *redistest.Proxy // nil: straight to Redis
	at    *worker
}

type worker struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output bytes.Buffer
	since  time.Time
}

func newCrew(t *testing.T, seed uint64) *crew {
	srv := redistest.Start(t)
	c := &crew{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), srv: srv, dir: t.TempDir(), stopped: make(map[*worker]time.Time),
	}
	leased := func() string { return "leased" }
	c.posts = []*post{
		{kind: leased},
		{kind: leased, proxy: redistest.NewProxy(t, srv.Addr())},
		{kind: leased, proxy: redistest.NewProxy(t, srv.Addr()), size: 100, hold: true},
		{kind: func() string { return pick(c.rng, "exact", "token bucket") }, proxy: redistest.NewProxy(t, srv.Addr())},
	}
	t.Cleanup(func() {
		for _, p := range c.posts {
			if p.at != nil {
				c.kill(p)
			}
		}
	})
	for _, p := range c.posts {
		c.spawn(p)
	}
	return c
}

func (c *crew) spawn(p *post) {
	c.t.Helper()
	o := orders{Addr: c.srv.Addr(), Kind: p.kind(), Size: p.size, Hold: p.hold, Seed: c.rng.Uint64()}
	if p.proxy != nil {
		o.Addr = p.proxy.Addr()
	}
	o.File = filepath.Join(c.dir, strconv.Itoa(len(c.files)))
	c.files = append(c.files, o.File)
	text, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	w := &worker{cmd: exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$", "-test.v"), since: time.Now()}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	w.cmd.Stdout, w.cmd.Stderr = &w.output, &w.output
	// In a group of its own: if this process dies while a worker is stopped, the kernel wakes it and ends it.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	p.at = w
}

func (c *crew) kill(p *post) {
	p.at.cmd.Process.Kill()
	p.at.cmd.Wait()
	delete(c.stopped, p.at)
	p.at = nil
}

// resume wakes the stopped workers whose time has come, or all.
func (c *crew) resume(all bool) {
	for w, at := range c.stopped {
		if all || !time.Now().Before(at) {
			w.cmd.Process.Signal(syscall.SIGCONT)
			delete(c.stopped, w)
		}
	}
}

// disturb does something to somebody every now and then, until the time is over.
func (c *crew) disturb(until time.Time) {
	for time.Now().Before(until) {
		pause(time.Duration(20+c.rng.IntN(100))*time.Millisecond, until)
		c.resume(false)
		p := pick(c.rng, c.posts...)
		switch c.rng.IntN(10) {
		case 0:
			if time.Since(p.at.since) > 700*time.Millisecond {
				c.kill(p)
				c.kills++
				c.spawn(p)
			}
			continue
		case 1:
			if _, ok := c.stopped[p.at]; !ok && len(c.stopped) < 2 && time.Since(p.at.since) > 300*time.Millisecond {
				p.at.cmd.Process.Signal(syscall.SIGSTOP)
				c.stopped[p.at] = time.Now().Add(time.Duration(300+c.rng.IntN(1200)) * time.Millisecond)
				c.stops++
			}
			continue
		}
		if p.proxy == nil {
			continue
		}
		c.faults++
		switch c.rng.IntN(8) {
		case 0:
			p.proxy.DropReplies(1 + c.rng.IntN(2))
		case 1:
			p.proxy.HangReplies(1)
		case 2:
			p.proxy.Duplicate(1 + c.rng.IntN(4))
		case 3:
			p.proxy.LateRequests(1, time.Duration(c.rng.IntN(500))*time.Millisecond)
		case 4:
			p.proxy.Delay(time.Duration(c.rng.IntN(8)) * time.Millisecond)
		case 5, 6:
			p.proxy.Delay(0)
		case 7:
			p.proxy.Cut()
		}
	}
}

// calm ends all faults.
func (c *crew) calm() {
	c.resume(true)
	for _, p := range c.posts {
		if p.proxy != nil {
			p.proxy.DropReplies(0)
			p.proxy.HangReplies(0)
			p.proxy.Duplicate(0)
			p.proxy.LateRequests(0, 0)
			p.proxy.Delay(0)
		}
	}
}

// dismiss ends all workers and returns what they did, by key.
func (c *crew) dismiss() [][]attempt {
	c.t.Helper()
	c.calm()
	for _, p := range c.posts {
		p.at.stdin.Close()
	}
	for _, p := range c.posts {
		late := time.AfterFunc(20*time.Second, func() { p.at.cmd.Process.Kill() })
		if err := p.at.cmd.Wait(); err != nil {
			c.t.Errorf("a worker ended with %v:\n%s", err, p.at.output.Bytes())
		}
		late.Stop()
		p.at = nil
	}
	all := make([][]attempt, len(workerKeys))
	for _, name := range c.files {
		readAttempts(c.t, name, all)
	}
	return all
}

func seedOfProcesses() uint64 {
	if *processesSeed != 0 {
		return *processesSeed
	}
	return rand.Uint64()
}

func timeOfProcesses() time.Duration {
	if testing.Short() {
		return *processesFor / 2
	}
	return *processesFor
}

// between are the attempts that lie within a time with the whole of their call.
func between(all []attempt, from, to int64) (in []attempt) {
	for _, a := range all {
		if from <= a.from && a.to <= to {
			in = append(in, a)
		}
	}
	return in
}

// Processes are killed, stopped in the middle of what they do and started again, and what they say to Redis is lost,
// late, or said twice; leased and exact ones use the same keys. All of them together stay below the bound, and above
// nine tenths of it.
func TestProcesses(t *testing.T) {
	seed := seedOfProcesses()
	t.Logf("-processes.seed=%d", seed)
	c := newCrew(t, seed)
	rdb := c.srv.Client(t)
	started := time.Now()
	pause(time.Second, started.Add(500*time.Millisecond)) // until all work
	c.disturb(started.Add(timeOfProcesses()))
	all := c.dismiss()

	var admitted, possible, asked, worst float64
	admissionCount := 0
	worst = math.Inf(-1)
	for i, k := range workerKeys {
		in := admissions(all[i])
		over := excess(in, k.limit)
		if over > 1e-6 {
			t.Errorf("key %s: %.3f tokens above the bound; -processes.seed=%d", k.name, over, seed)
		}
		worst = max(worst, over)
		first, last := int64(math.MaxInt64), int64(0)
		for _, a := range all[i] {
			first, last = min(first, a.from), max(last, a.to)
		}
		most := float64(k.limit.Burst) + float64(k.limit.Rate)*float64(last-first)/1e6
		got := float64(tokens(in))
		rate := float64(k.limit.Rate)
		t.Logf("key %s: %d of %d requests admitted, %.0f tokens, admitted/ideal %.3f (of the same requests %.3f), worst excess %.2f tokens; "+
			"counted at the ends of calls %.1f, allowance for the longest call %.1f (%v)",
			k.name, len(in), len(all[i]), got, got/most, got/ideal(all[i], k.limit), over, excessAtEnds(in, k.limit), rate*longest(in).Seconds(), longest(in))
		if !k.pulsed {
			admitted, possible, asked = admitted+got, possible+most, asked+ideal(all[i], k.limit)
		}
		admissionCount += len(in)
	}
	t.Logf("%d kills, %d stops, %d faults of the network in %v: admitted/ideal %.3f (of the same requests %.3f), worst excess %.2f tokens (allowance 0: a call counts with its whole length), %.3f calls per admission",
		c.kills, c.stops, c.faults, time.Since(started).Round(time.Millisecond), admitted/possible, admitted/asked, worst, float64(scripts(t, rdb))/float64(admissionCount))
	// Of the same requests: on a busy machine the workers may not even ask for as much as the rate.
	if ratio := admitted / asked; ratio < 0.9 {
		t.Errorf("admitted/ideal %.3f, want at least 0.9; -processes.seed=%d", ratio, seed)
	}
}

// loss is a time in which Redis forgot a key: it knew it before from and not after to.
type loss struct {
	from, to int64
	what     string
}

// Redis also loses what it knows: keys are evicted or expire too early, and it crashes and comes back empty. Each time
// at most a burst and what was out is admitted once more, and everything goes on.
func TestProcessesWithLosses(t *testing.T) {
	seed := seedOfProcesses()
	t.Logf("-processes.seed=%d", seed)
	c := newCrew(t, seed)
	ctx := context.Background()
	rdb := c.srv.Client(t)
	started := time.Now()
	losses := make([][]loss, len(workerKeys))
	lose := func(what string, i int, f func() error) {
		t.Helper()
		l := loss{from: time.Now().UnixMicro(), what: what}
		if err := f(); err != nil {
			t.Fatal(err)
		}
		l.to = time.Now().UnixMicro()
		losses[i] = append(losses[i], l)
	}
	pause(time.Second, started.Add(500*time.Millisecond))
	step := (timeOfProcesses() - 500*time.Millisecond) / 5
	next := func(n int) time.Time { return started.Add(500*time.Millisecond + time.Duration(n)*step) }
	name := func(i int) string { return workerPrefix + "{" + workerKeys[i].name + "}tb1" }

	c.disturb(next(1))
	lose("eviction", 0, func() error { return rdb.Del(ctx, name(0)).Err() })
	lose("expiry", 1, func() error { return rdb.PExpire(ctx, name(1), time.Millisecond).Err() })
	losses[1][0].to += 2000 // it is gone a moment after
	c.disturb(next(2))
	crash := loss{from: time.Now().UnixMicro(), what: "crash"}
	c.srv.Kill()
	pause(time.Duration(100+c.rng.IntN(200))*time.Millisecond, next(3))
	c.srv.Restart(t)
	crash.to = time.Now().UnixMicro()
	for i := range losses {
		losses[i] = append(losses[i], crash)
	}
	c.disturb(next(4))
	lose("eviction", 2, func() error { return rdb.Del(ctx, name(2)).Err() })
	c.calm()
	c.disturb(next(5))
	end := time.Now().UnixMicro()
	all := c.dismiss()

	for i, k := range workerKeys {
		in := admissions(all[i])
		lim := k.limit
		rate := float64(lim.Rate)
		again := float64(lim.Burst) * 1.25 // the burst, and MaxLeased of it that was out
		longestLease := int64(float64(lim.Burst) / (2 * rate) * 1e6)
		// Between the losses, once the leases of the time before have ended, the bound is strict; over one loss it
		// grows by what can be had again; over two by twice that, and so on.
		edges := append([]loss{{}}, losses[i]...)
		for from := range edges {
			for to := from; to < len(edges); to++ {
				until := int64(math.MaxInt64)
				if to+1 < len(edges) {
					until = edges[to+1].from
				}
				over := excess(between(in, edges[from].to+longestLease, until), lim)
				allowed := float64(to-from) * again
				if over > allowed+1e-6 {
					t.Errorf("key %s, from loss %d to loss %d %v: %.3f tokens above the bound, of which the losses allow %.0f; -processes.seed=%d",
						k.name, from, to+1, edges[from:to+1], over, allowed, seed)
				}
			}
		}
		t.Logf("key %s: worst excess over %d losses %.1f tokens, allowance %.0f", k.name, len(losses[i]), excess(in, lim), float64(len(losses[i]))*again)

		// Service is back: what comes in after each loss and a while is admitted.
		for _, l := range losses[i] {
			from := l.to + 700_000
			to := min(end, from+1_000_000)
			for _, other := range losses[i] {
				if other.from > l.to {
					to = min(to, other.from)
				}
			}
			if to-from < 200_000 {
				continue
			}
			// No more than was asked for, less the burst that ideal starts with.
			got, want := float64(tokens(between(in, from, to))), rate*float64(to-from)/1e6
			want = min(want, ideal(between(all[i], from, to), lim)-float64(lim.Burst))
			if got < 0.5*want {
				t.Errorf("key %s: in %v, from 0.7 s after the %s, %.0f tokens were admitted, want about %.0f; -processes.seed=%d",
					k.name, time.Duration(to-from)*time.Microsecond, l.what, got, want, seed)
				for at := l.from - 300_000; at < to; at += 100_000 {
					var admitted, denied, failed int
					for _, a := range all[i] {
						switch {
						case a.to < at || a.to >= at+100_000:
						case a.admitted:
							admitted++
						case a.failed:
							failed++
						default:
							denied++
						}
					}
					t.Logf("%v after it: %d admitted, %d denied, %d failed", time.Duration(at-l.from)*time.Microsecond, admitted, denied, failed)
				}
			}
		}
	}
	t.Logf("%d kills, %d stops, %d faults of the network", c.kills, c.stops, c.faults)
}
