package remote_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// passing are replies that say that a script did not run, but that another time it may.
var passing = []string{
	"LOADING Redis is loading the dataset in memory",
	"READONLY You can't write against a read only replica.",
	"READONLY You can't write against a read only replica. script: 3ffa0b1a1d4dd4eb1a2a8b2b8bbb3bb0f1b3b2b1, on @user_script:96.",
	"ERR Error running script (call to f_3ffa0b1a): @user_script:96: @user_script: 96: -READONLY You can't write against a read only slave.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"CLUSTERDOWN The cluster is down",
	"CLUSTERDOWN Hash slot not served",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"NOREPLICAS Not enough good replicas to write.",
	"ERR max number of clients reached",
}

// lasting are replies that waiting does not mend.
var lasting = []string{
	"NOPERM this user has no permissions to run the 'evalsha' command",
	"NOPERM No permissions to access a key",
	"NOAUTH Authentication required.",
	"WRONGPASS invalid username-password pair or user is disabled.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"OOM command not allowed when used memory > 'maxmemory'. script: 3ffa0b1a, on @user_script:96.",
	"WRONGTYPE Operation against a key holding the wrong kind of value",
	"CROSSSLOT Keys in request don't hash to the same slot",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"FOREIGN not a token bucket of this version",
	"ERR unknown command 'evalsha'",
	"ERR bad arguments",
	"NOTBUSY No scripts in execution right now.",
}

func TestNotExecutedIsSentAgain(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		rdb := b.NewClient(t)
		tap := attach(rdb)
		for i, text := range append(slices.Clone(passing), "dial") {
			m := allModes[i%len(allModes)]
			var reply error = replyError(text)
			if text == "dial" {
				reply = dialError()
			}
			r := startWith(t, b, rdb, m, per(10, 60), remote.Options{Timeout: patience}).on("k" + strconv.Itoa(i))
			r.ask(1)
			tap.intercept(func(n int) error {
				if n <= 3 {
					return reply
				}
				return nil
			})
			if got := r.ask(1); !got.Allowed || got.Remaining != 8 {
				t.Errorf("%q: %+v, want allowed, remaining 8", text, got)
			}
			if got := tap.sent(); got != 4 {
				t.Errorf("%q: sent %d times, want 3 in vain and 1", text, got)
			}
			// It is not retried for ever.
			tap.intercept(func(int) error { return reply })
			short := startWith(t, b, rdb, m, per(10, 60), remote.Options{Timeout: 20 * time.Millisecond}).on(r.key)
			_, err := short.Allow(ctx, short.key)
			if !errors.Is(err, limit.ErrUnavailable) || errors.Is(err, remote.ErrRefused) {
				t.Errorf("%q for ever: %v; want ErrUnavailable, but not ErrRefused", text, err)
			}
			tap.intercept(nil)
			if got := r.left(); got != 8 {
				t.Errorf("%q: %d left, want 8", text, got)
			}
		}
	})
}

func TestRefusalIsNotSentAgain(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		rdb := b.NewClient(t)
		tap := attach(rdb)
		for i, text := range lasting {
			m := allModes[i%len(allModes)]
			r := startWith(t, b, rdb, m, per(10, 60), remote.Options{Timeout: patience})
			tap.intercept(func(int) error { return replyError(text) })
			_, err := r.Allow(ctx, "k")
			if !errors.Is(err, limit.ErrUnavailable) || !errors.Is(err, remote.ErrRefused) || !strings.Contains(err.Error(), text) {
				t.Errorf("%q: %v; want ErrUnavailable and ErrRefused with the text", text, err)
			}
			if got := tap.sent(); got != 1 {
				t.Errorf("%q: sent %d times, want once", text, got)
			}
		}
	})
}

// What is not known to have failed is never sent again.
func TestUnknownIsNotSentAgain(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		rdb := b.NewClient(t)
		tap := attach(rdb)
		for _, cause := range []error{io.EOF, io.ErrUnexpectedEOF, errors.New("anything"), redis.ErrClosed, timeoutError{}} {
			tap.intercept(func(int) error { return cause })
			for _, m := range allModes {
				r := startWith(t, b, rdb, m, per(10, 60), remote.Options{Timeout: patience})
				_, err := r.Allow(ctx, "k")
				if !errors.Is(err, limit.ErrUnavailable) || errors.Is(err, remote.ErrRefused) || !errors.Is(err, cause) {
					t.Errorf("%s %v: %v; want it in ErrUnavailable", m.name, cause, err)
				}
				if got := tap.sent(); got != 1 {
					t.Errorf("%s %v: sent %d times, want once", m.name, cause, got)
				}
			}
		}
	})
}

// timeoutError is what a read that ran into its time-out gives.
type timeoutError struct{}

func (timeoutError) Error() string { return "i/o timeout" }
func (timeoutError) Timeout() bool { return true }

// The script ran and its reply was lost: whatever the client's own settings, it ran once.
func TestTIME02_LostReply(t *testing.T) {
	losses := map[string]func(p *redistest.Proxy){
		"cut":     func(p *redistest.Proxy) { p.DropReplies(1) },
		"silent":  func(p *redistest.Proxy) { p.HangReplies(1) },
		"late":    func(p *redistest.Proxy) { p.LateRequests(1, 10*time.Millisecond) },
		"nothing": func(p *redistest.Proxy) {},
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
				t.Parallel()
				proxy := redistest.NewProxy(t, b.Addr())
				rdb := b.NewClient(t, through(proxy), func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond })
				lossy := remote.NewSource(rdb, remote.Options{Prefix: "source:", Timeout: patience})
				source := remote.NewSource(b.Client, remote.Options{Prefix: "source:", Timeout: patience})
				lim := limit.Limit{Rate: 10, Period: 10_000 * time.Second, Burst: 10}
				for _, m := range allModes {
					r := start(t, b, m, lim)
					r.ask(0)
					lose(proxy)
					_, err := startWith(t, b, rdb, m, lim, remote.Options{Timeout: patience}).Allow(ctx, "k")
					if name != "nothing" && (!errors.Is(err, limit.ErrUnavailable) || errors.Is(err, remote.ErrRefused)) {
						t.Errorf("%s: %v, want ErrUnavailable", m.name, err)
					}
					eventually(t, m.name+" has run", func() bool { return r.left() < 10 })
					if got := r.admitted(12); got != 9 {
						t.Errorf("%s: %d admitted after a lost reply, want 9", m.name, got)
					}
				}
				for _, keys := range []int{1, 5} {
					reqs := requests(lim, keys, 0)
					grants := make([]lease.Grant, keys)
					source.Acquire(ctx, reqs, grants)
					reqs = requests(lim, keys, 2)
					lose(proxy)
					lossy.Acquire(ctx, reqs, grants)
					for i, g := range grants {
						if name != "nothing" && !errors.Is(g.Err, limit.ErrUnavailable) {
							t.Errorf("grant %d of %d: %+v, want ErrUnavailable", i, keys, g)
						}
					}
					eventually(t, "all have run", func() bool {
						for i := range reqs {
							reqs[i].Costs = nil
						}
						source.Acquire(ctx, reqs, grants)
						return !slices.ContainsFunc(grants, func(g lease.Grant) bool { return g.Level == 10 })
					})
					for i, g := range grants {
						if g.Err != nil || g.Level != 8 {
							t.Errorf("bucket %d of %d after a lost reply: %+v, want level 8", i, keys, g)
						}
					}
				}
			})
		})
	}
}

// requests are for different keys, n tokens each.
func requests(lim limit.Limit, keys, n int) []lease.Request {
	reqs := make([]lease.Request, keys)
	for i := range reqs {
		reqs[i] = lease.Request{Key: fmt.Sprint(keys, "-", i), Limit: lim, Costs: []lease.Run{{Cost: n, Count: 1}}}
	}
	return reqs
}

// A server that comes up late is waited for, within Timeout.
func TestServerComesUpLate(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	srv.Kill()
	rdb := srv.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	quick, err := tokenBucket.make(rdb, per(10, 60), remote.Options{Timeout: 30 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := quick.Allow(ctx, "k"); !errors.Is(err, limit.ErrUnavailable) || errors.Is(err, remote.ErrRefused) {
		t.Errorf("no server: %v, want ErrUnavailable", err)
	}
	grants := make([]lease.Grant, 3)
	remote.NewSource(rdb, remote.Options{Timeout: 30 * time.Millisecond}).Acquire(ctx, requests(per(10, 60), 3, 1), grants)
	for _, g := range grants {
		if !errors.Is(g.Err, limit.ErrUnavailable) || errors.Is(g.Err, remote.ErrRefused) {
			t.Errorf("no server: grant %+v, want ErrUnavailable", g)
		}
	}
	patient, err := tokenBucket.make(rdb, per(10, 60), remote.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan answer, 1)
	go func() {
		got, err := patient.Allow(ctx, "k")
		result <- answer{got, err}
	}()
	source := make(chan struct{})
	go func() {
		defer close(source)
		remote.NewSource(rdb, remote.Options{Timeout: patience}).Acquire(ctx, requests(per(10, 60), 3, 1), grants)
	}()
	srv.Restart(t)
	if got := <-result; got.err != nil || !got.Allowed || got.Remaining != 9 {
		t.Errorf("a server that came up late: %+v, want allowed, remaining 9", got)
	}
	<-source
	for _, g := range grants {
		if g.Err != nil || g.Level != 9 {
			t.Errorf("a server that came up late: grant %+v, want level 9", g)
		}
	}
}

// The conditions themselves, on a real server: a call in the middle of each is served when it is over.
func TestNotExecutedOnRealRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	admin := srv.Client(t)
	tap := attach(rdb)
	set := func(args ...any) {
		t.Helper()
		if err := admin.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	const spin = `local s = redis.call('TIME') local t repeat t = redis.call('TIME') until (t[1] - s[1]) * 1e6 + t[2] - s[2] > 200000`
	for _, tt := range []struct {
		name       string
		begin, end func()
	}{
		{"READONLY", func() { set("replicaof", "127.0.0.1", "1") }, func() { set("replicaof", "no", "one") }},
		{"MASTERDOWN", func() {
			set("config", "set", "replica-serve-stale-data", "no")
			set("replicaof", "127.0.0.1", "1")
		}, func() { set("replicaof", "no", "one") }},
		{"NOREPLICAS", func() { set("config", "set", "min-replicas-to-write", "1") }, func() { set("config", "set", "min-replicas-to-write", "0") }},
		{"BUSY", func() {
			set("config", "set", "busy-reply-threshold", "10")
			spinner := srv.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
			go spinner.Eval(ctx, spin, nil)
			eventually(t, "the server is busy", func() bool {
				err := admin.Process(ctx, noRetry{redis.NewCmd(ctx, "get", "x")})
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
		}, func() {}},
	} {
		r := &rig{t: t, mode: tokenBucket, key: tt.name}
		var err error
		if r.limiter, err = tokenBucket.make(rdb, limit.PerHour(10), remote.Options{Timeout: patience}); err != nil {
			t.Fatal(err)
		}
		r.ask(1)
		tt.begin()
		tap.sent()
		result := make(chan answer, 1)
		go func() {
			got, err := r.Allow(ctx, r.key)
			result <- answer{got, err}
		}()
		attempts := 0
		eventually(t, tt.name+" is tried again", func() bool {
			attempts += tap.sent()
			return attempts >= 2
		})
		tt.end()
		if got := <-result; got.err != nil || !got.Allowed || got.Remaining != 8 {
			t.Errorf("%s: %+v, want allowed, remaining 8", tt.name, got)
		}
	}
}

// noRetry is a command that go-redis sends once.
type noRetry struct{ *redis.Cmd }

func (noRetry) NoRetry() bool { return true }

func TestREDIS01_ScriptsAreForgotten(t *testing.T) {
	each(t, allModes, limit.Limit{Rate: 10, Period: 10_000 * time.Second, Burst: 10}, func(r *rig) {
		rdb := r.b.NewClient(r.t)
		tap := attach(rdb)
		s := startWith(r.t, r.b, rdb, r.mode, r.LimitOf("k"), remote.Options{Timeout: patience})
		r.b.FlushScripts()
		s.run([]step{{0, 1, true, 9, 0}})
		if got := tap.sent(); got != 2 {
			r.t.Errorf("%d scripts sent to a server that knows none, want EVALSHA and EVAL", got)
		}
		r.b.FlushScripts()
		s.run([]step{{0, 1, true, 8, 0}})
		tap.sent()
		s.ask(0)
		if got := tap.sent(); got != 1 {
			r.t.Errorf("%d scripts sent to a server that knows it, want EVALSHA", got)
		}
		r.b.FlushScripts()
		if got := crowd(r.t, 50, 1, func(int) (limit.Result, error) { return s.Allow(ctx, "k") }); got != 8 {
			r.t.Errorf("%d of 50 admitted, want 8", got)
		}
	})
}

func TestREDIS02_ScriptsAreForgottenInAPipeline(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		rdb := b.NewClient(t)
		tap := attach(rdb)
		source := remote.NewSource(rdb, remote.Options{Timeout: patience})
		grants := make([]lease.Grant, 5)
		for want := int64(9); want >= 7; want-- {
			b.FlushScripts()
			source.Acquire(ctx, requests(per(10, 1000), 5, 1), grants)
			for i, g := range grants {
				if g.Err != nil || g.Level != want || !slices.Equal(g.Admitted, []int{1}) {
					t.Errorf("grant %d: %+v, want 1 admitted, level %d", i, g, want)
				}
			}
		}
		tap.sent()
		tap.pipes = 0
		source.Acquire(ctx, requests(per(10, 1000), 5, 1), grants)
		if got := tap.sent(); got != 5 || tap.pipes != 1 {
			t.Errorf("%d scripts in %d pipelines, want 5 in 1", got, tap.pipes)
		}
	})
}

// Some of a pipeline did not run: only they are sent again.
func TestPartOfAPipelineIsSentAgain(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		rdb := b.NewClient(t)
		var on atomic.Bool
		rdb.AddHook(spoil{&on})
		source := remote.NewSource(rdb, remote.Options{Timeout: patience})
		grants := make([]lease.Grant, 5)
		source.Acquire(ctx, requests(per(10, 1000), 5, 0), grants)
		on.Store(true)
		source.Acquire(ctx, requests(per(10, 1000), 5, 1), grants)
		on.Store(false)
		for i, g := range grants {
			switch {
			case i == 3: // the reply was lost
				if !errors.Is(g.Err, limit.ErrUnavailable) {
					t.Errorf("grant %d: %+v, want ErrUnavailable", i, g)
				}
			case g.Err != nil || g.Level != 9:
				t.Errorf("grant %d: %+v, want level 9", i, g)
			}
		}
		source.Acquire(ctx, requests(per(10, 1000), 5, 0), grants)
		for i, g := range grants {
			if g.Level != 9 {
				t.Errorf("bucket %d: %+v, want level 9", i, g)
			}
		}
	})
}
