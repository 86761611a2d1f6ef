package hybrid

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
)

const cacheLine = 64

// What a decision in memory looks at is in two cache lines: one that nobody writes, and that of the tokens. And a key that
// is only remembered costs no more than the first.
func TestLayout(t *testing.T) {
	var e entry
	if size := unsafe.Sizeof(e); size > cacheLine {
		t.Errorf("an entry has %d bytes, want at most %d", size, cacheLine)
	}
	var a account
	if end := unsafe.Offsetof(a.level) + unsafe.Sizeof(a.level); end > cacheLine {
		t.Errorf("what requests look at in an account ends at %d, want at most %d", end, cacheLine)
	}
	// The clock is read by every request, of all keys: what is written often must be elsewhere.
	var l Limiter
	clock := unsafe.Offsetof(l.clock) + unsafe.Offsetof(l.clock.latest)
	for name, at := range map[string]uintptr{
		"janitor": unsafe.Offsetof(l.janitor), "counts": unsafe.Offsetof(l.counts), "ids": unsafe.Offsetof(l.ids), "mu": unsafe.Offsetof(l.mu),
	} {
		if at < clock+cacheLine && clock < at+cacheLine {
			t.Errorf("%s at %d and the clock at %d may be on one cache line", name, at, clock)
		}
	}
}

// While the janitor does not come to run, takes go by an old time. No more than 63 tokens of a lease that has ended are
// taken, however long that lasts.
func TestStarvedJanitorLetsFewTokensBeLate(t *testing.T) {
	const ttl = 100 * time.Millisecond
	src := leasetest.NewSource()
	l, err := NewFrom(src, PerSecond(10_000).WithBurst(100_000), Options{LeaseSize: 5000, LeaseTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	k := l.Key("k")
	for range 100 { // the first call brings the lease
		if r, err := k.Allow(t.Context()); err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	l.janitor.mu.Lock()
	time.Sleep(ttl)
	calls, late := l.counts.calls.Load(), 0
	for l.counts.calls.Load() == calls {
		r, err := k.Allow(t.Context())
		if err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
		if l.counts.calls.Load() == calls {
			late++
		}
	}
	l.janitor.mu.Unlock()
	if late > 63 {
		t.Errorf("%d tokens of a lease that had ended were spent, want at most 63", late)
	}
}

// Takes from many goroutines, leases that end in the middle, real time: the reading of the clock that others have left,
// stripes, and refills all meet here. At no time more was admitted than the bound allows.
func TestEnvelopeInRealTime(t *testing.T) {
	const (
		takers = 4 // of each process
		run    = 1500 * time.Millisecond
	)
	for _, tt := range []struct {
		name string
		lim  limit.Limit
		opts Options
	}{
		{"leases that end", PerSecond(100_000).WithBurst(30_000), Options{LeaseSize: 3000, LeaseTTL: 8 * time.Millisecond}},
		{"large leases", PerSecond(400_000).WithBurst(200_000), Options{LeaseSize: 40_000}},
		{"adaptive", PerSecond(200_000).WithBurst(50_000), Options{MaxLeased: 0.5}},
		{"small leases", PerSecond(5_000).WithBurst(5_000), Options{LeaseSize: 50, LeaseTTL: 10 * time.Millisecond}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := leasetest.NewSource()
			src.Timeout = 5 * time.Second // the machine may be busy
			var counts [2 * takers]struct {
				atomic.Int64
				_ [cacheLine]byte
			}
			total := func() (n int64) {
				for i := range counts {
					n += counts[i].Load()
				}
				return n
			}
			start := time.Now()
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for p := range 2 {
				opts := tt.opts
				opts.Timeout = 5 * time.Second // the machine may be busy
				l, err := NewFrom(src, tt.lim, opts)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(context.Background())
				for g := range takers {
					n := &counts[p*takers+g]
					wg.Go(func() {
						k := l.Key("k")
						for i := 1; ; i++ {
							select {
							case <-stop:
								return
							default:
							}
							r, err := k.Allow(context.Background())
							if err != nil {
								t.Error(err)
								return
							}
							if r.Allowed {
								n.Add(1)
							}
							if i%20_000 == 0 { // now and then longer than a lease lives
								time.Sleep(time.Duration(i/20_000%4) * 5 * time.Millisecond)
							}
						}
					})
				}
			}
			// A take counts before it is counted, by one for each taker; else the count was between both readings.
			type sample struct {
				before, after time.Duration
				admitted      int64
			}
			var samples []sample
			for time.Since(start) < run {
				s := sample{before: time.Since(start)}
				s.admitted = total()
				s.after = time.Since(start)
				samples = append(samples, s)
				time.Sleep(time.Millisecond)
			}
			close(stop)
			wg.Wait()
			worst := int64(-1 << 62)
			for i := range samples {
				for j := i + 1; j < len(samples); j++ {
					from, to := samples[i], samples[j]
					window := (to.after - from.before).Microseconds() + 1
					bound := int64(tt.lim.Burst) + int64(float64(tt.lim.Rate)*float64(window)/float64(tt.lim.Period.Microseconds())) + 1
					worst = max(worst, to.admitted-from.admitted-bound-int64(len(counts)))
				}
			}
			last := samples[len(samples)-1]
			ideal := float64(tt.lim.Burst) + float64(tt.lim.Rate)*last.after.Seconds()/tt.lim.Period.Seconds()
			t.Logf("%d admitted of %.0f, worst excess %d", last.admitted, ideal, worst)
			if worst > 0 {
				t.Errorf("%d tokens more than the bound", worst)
			}
			if float64(last.admitted) < 0.5*ideal {
				t.Errorf("only %d of %.0f admitted: too little load for this test", last.admitted, ideal)
			}
		})
	}
}

// A lease that lies in stripes is renewed ahead of need like any other.
func TestStripedLeasesAreRenewedInTime(t *testing.T) {
	for _, size := range []int{5000, 20_000, 100_000} {
		synctest.Test(t, func(t *testing.T) {
			src := leasetest.NewSource()
			l, err := NewFrom(src, PerSecond(10_000_000), Options{LeaseSize: size})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(context.Background())
			k := l.Key("k")
			split, waited := 0, 0
			for i := range 8 * size {
				r, err := k.Allow(t.Context())
				if err != nil || !r.Allowed {
					t.Fatalf("%+v, %v", r, err)
				}
				if i > 0 && r.Origin == Remote {
					waited++
				}
				if i%50 == 0 {
					e := k.entry.Load()
					a := e.account.Load()
					e.mu.Lock()
					a.balance.Split()
					e.mu.Unlock()
					if a.balance.Stripes() != nil {
						split++
					}
					synctest.Wait() // for a lease that was asked for
				}
			}
			if split == 0 || waited > 0 {
				t.Errorf("leases of %d: split %d times, %d requests waited for the next one", size, split, waited)
			}
		})
	}
}

// Nothing that is decided in memory allocates, and a refill does little more than the source.
func TestAllocations(t *testing.T) {
	src := leasetest.NewSource()
	opts := Options{LeaseSize: 1 << 20, LeaseTTL: time.Hour}
	l, err := NewFrom(src, PerHour(1<<30), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	dry, err := NewFrom(src, Every(time.Hour), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dry.Close(context.Background())
	ctx := context.Background()
	k, d := l.Key("k"), dry.Key("d")
	for range 3 {
		k.Allow(ctx)
		d.Allow(ctx)
	}
	for name, f := range map[string]func(){
		"handle":              func() { k.Allow(ctx) },
		"by key":              func() { l.Allow(ctx, "k") },
		"several tokens":      func() { k.AllowN(ctx, 3) },
		"denied":              func() { d.Allow(ctx) },
		"denied, by key":      func() { dry.Allow(ctx, "d") },
		"more than the burst": func() { d.AllowN(ctx, 2) },
		"a bad key":           func() { l.Allow(ctx, "") },
		"peek":                func() { k.AllowN(ctx, 0) },
	} {
		calls := l.Stats().Calls + dry.Stats().Calls
		if n := testing.AllocsPerRun(1000, f); n != 0 || l.Stats().Calls+dry.Stats().Calls > calls+1 {
			t.Errorf("%s: %v allocations in each, and %d calls", name, n, l.Stats().Calls+dry.Stats().Calls-calls)
		}
	}
}

// The clock runs while somebody goes by it and stops soon after.
func TestClockStopsWhenNobodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := leasetest.NewSource()
		l, err := NewFrom(src, Every(time.Hour), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(context.Background())
		k := l.Key("k")
		if r, _ := k.Allow(t.Context()); !r.Allowed {
			t.Fatal("the first one is denied")
		}
		if r, _ := k.Allow(t.Context()); r.Allowed || r.Origin != Remote {
			t.Fatalf("%+v, want a denial by the bucket", r)
		}
		running := func() bool { return l.clock.About() != stopped }
		for range 200 { // more than the account lives by itself
			r, err := k.Allow(t.Context())
			if err != nil || r.Allowed {
				t.Fatalf("%+v, %v", r, err)
			}
			if wait := time.Until(l.clock.start.Add(time.Hour)); r.RetryAfter < wait || r.RetryAfter > wait+2*sweepEvery {
				t.Fatalf("told to wait %v, want %v and no more than two rounds longer", r.RetryAfter, wait)
			}
			time.Sleep(sweepEvery / 2)
		}
		if !running() {
			t.Error("the clock stands still while requests go by it")
		}
		time.Sleep(2 * keepAccount)
		if running() {
			t.Error("the clock runs though nobody asks")
		}
		time.Sleep(2 * keepLevel)
		if a := l.keysAccounts(); a != 0 {
			t.Errorf("%d accounts are left of keys that are not in use", a)
		}
	})
}

// keysAccounts is how many keys have an account.
func (l *Limiter) keysAccounts() (n int) {
	for e := range l.keys.All() {
		if e.account.Load() != nil {
			n++
		}
	}
	return n
}

// An account is dropped when nothing is left in it, and not before; the next request opens another.
func TestAccountsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := leasetest.NewSource()
		l, err := NewFrom(src, PerMinute(6000), Options{LeaseSize: 100, LeaseTTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(context.Background())
		for round := range 3 {
			if r, err := l.Allow(t.Context(), "k"); err != nil || !r.Allowed {
				t.Fatalf("%+v, %v", r, err)
			}
			time.Sleep(keepAccount / 2)
			if l.keysAccounts() != 1 {
				t.Fatalf("round %d: the account of a key that is in use is gone", round)
			}
			// The lease is given back when it has been idle, its name is forgotten when the bucket has forgotten it.
			time.Sleep(20*time.Second + keepLevel)
			if n := l.keysAccounts(); n != 0 {
				t.Fatalf("round %d: %d accounts are left", round, n)
			}
			if s := l.Stats(); s.Keys != 1 || s.Held != 0 || s.Leased == 0 || s.Leased != s.Returned+s.Expired {
				t.Errorf("round %d: %+v, want all that was leased returned", round, s)
			}
		}
	})
}
