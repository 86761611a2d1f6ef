package remote_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// Clients of users' own, that can be nil in other ways than a pointer.
type (
	funcClient  func()
	mapClient   map[string]int
	chanClient  chan int
	sliceClient []int
)

func (funcClient) Process(context.Context, redis.Cmder) error  { return nil }
func (funcClient) Pipeline() redis.Pipeliner                   { return nil }
func (mapClient) Process(context.Context, redis.Cmder) error   { return nil }
func (mapClient) Pipeline() redis.Pipeliner                    { return nil }
func (chanClient) Process(context.Context, redis.Cmder) error  { return nil }
func (chanClient) Pipeline() redis.Pipeliner                   { return nil }
func (sliceClient) Process(context.Context, redis.Cmder) error { return nil }
func (sliceClient) Pipeline() redis.Pipeliner                  { return nil }

func TestNilClients(t *testing.T) {
	for _, rdb := range []remote.Client{
		nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil), (*recorder)(nil),
		redis.UniversalClient(nil), redis.UniversalClient((*redis.Client)(nil)),
		funcClient(nil), mapClient(nil), chanClient(nil), sliceClient(nil),
	} {
		for _, m := range allModes {
			if l, err := m.make(rdb, per(1, 1), remote.Options{}); !errors.Is(err, limit.ErrInvalid) || l != nil || !strings.Contains(err.Error(), "nil") {
				t.Errorf("%s with a nil %T: %v, %v; want nil, ErrInvalid", m.name, rdb, l, err)
			}
		}
		source := remote.NewSource(rdb, remote.Options{})
		if err := source.Err(); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("source with a nil %T: %v, want ErrInvalid", rdb, err)
		}
		grants := make([]lease.Grant, 2)
		source.Acquire(ctx, requests(per(1, 1), 2, 1), grants)
		for _, g := range grants {
			if !errors.Is(g.Err, limit.ErrInvalid) {
				t.Errorf("source with a nil %T: grant %+v, want ErrInvalid", rdb, g)
			}
		}
	}
	for _, opts := range []remote.Options{{Prefix: "{"}, {Timeout: -time.Second}} {
		if err := remote.NewSource(unreachable(), opts).Err(); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("source with %+v: %v, want ErrInvalid", opts, err)
		}
	}
	if err := remote.NewSource(unreachable(), remote.Options{}).Err(); err != nil {
		t.Errorf("a good source: %v", err)
	}
}

// A request that no bucket can answer is an error of its own, and does not keep the others from being sent.
func TestSourceChecksRequests(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		source := remote.NewSource(b.Client, remote.Options{Timeout: patience})
		good := lease.Request{Key: "good", Limit: per(10, 60), Costs: []lease.Run{{Cost: 1, Count: 1}}}
		with := func(change func(r *lease.Request)) lease.Request {
			r := good
			change(&r)
			return r
		}
		bad := []struct {
			req  lease.Request
			want error
		}{
			{with(func(r *lease.Request) { r.Limit = limit.Limit{} }), limit.ErrInvalid},
			{with(func(r *lease.Request) { r.Limit = limit.Unlimited() }), limit.ErrInvalid},
			{with(func(r *lease.Request) { r.Limit = limit.Blocked() }), limit.ErrInvalid},
			{with(func(r *lease.Request) { r.Limit.Burst = -1 }), limit.ErrInvalid},
			{with(func(r *lease.Request) { r.Key = "" }), limit.ErrInvalidKey},
			{with(func(r *lease.Request) { r.Costs = []lease.Run{{Cost: -1, Count: 1}} }), limit.ErrInvalidTokens},
			{with(func(r *lease.Request) { r.Costs = []lease.Run{{Cost: 1, Count: -1}} }), limit.ErrInvalidTokens},
		}
		want := int64(10)
		for _, tt := range bad {
			for _, reqs := range [][]lease.Request{{tt.req}, {good, tt.req}, {tt.req, good, good}} {
				grants := make([]lease.Grant, len(reqs))
				source.Acquire(ctx, reqs, grants)
				for i, g := range grants {
					if reqs[i].Key == good.Key && reqs[i].Limit == good.Limit && len(reqs[i].Costs) == 1 && reqs[i].Costs[0] == good.Costs[0] {
						if want = max(0, want-1); g.Err != nil || g.Level != want {
							t.Errorf("the good one beside %+v: %+v, want level %d", tt.req, g, want)
						}
					} else if !errors.Is(g.Err, tt.want) {
						t.Errorf("%+v: %+v, want %v", tt.req, g, tt.want)
					}
				}
			}
		}
		source.Acquire(ctx, nil, nil)
	})
}

func TestProtocols(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
			rdb := b.NewClient(t, func(o *redis.Options) { o.Protocol = protocol })
			for _, m := range allModes {
				r := startWith(t, b, rdb, m, per(5, 60), remote.Options{Timeout: patience})
				r.run([]step{
					{0, 0, true, 5, 0},
					{0, 3, true, 2, 0},
					{1, 3, false, 2, whatever},
					{1, 2, true, 0, 0},
					{1, 1, false, 0, whatever},
				})
				if err := r.Reset(ctx, r.key); err != nil {
					t.Errorf("RESP%d: %s: Reset: %v", protocol, m.name, err)
				}
				r.run([]step{{1, 5, true, 0, 0}})
			}
			grants := make([]lease.Grant, 3)
			remote.NewSource(rdb, remote.Options{Timeout: patience}).Acquire(ctx, requests(per(5, 60), 3, 2), grants)
			for _, g := range grants {
				if g.Err != nil || g.Level != 3 {
					t.Errorf("RESP%d: grant %+v, want level 3", protocol, g)
				}
			}
		})
	}
}

// Whatever goes wrong, no error text holds the key.
func TestErrorsHoldNoKey(t *testing.T) {
	const secret = "s3cr3t-k3y"
	scan := func(t *testing.T, what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", what)
		} else if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err.Error()), secret) {
			t.Errorf("%s: %v holds the key", what, err)
		}
	}
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		rdb := b.NewClient(t)
		tap := attach(rdb)
		closed := b.NewClient(t)
		closed.Close()
		for _, m := range allModes {
			r := startWith(t, b, rdb, m, per(5, 60), remote.Options{Timeout: patience}).on(secret)
			r.ask(1)
			ask := func(what string, l limiter, key string, n int) {
				t.Helper()
				_, err := l.AllowN(ctx, key, n)
				scan(t, m.name+" "+what, err)
			}
			ask("above the burst", r, secret, 6)
			ask("negative", r, secret, -1)
			ask("long key", r, strings.Repeat(secret, 100), 1)
			for _, fail := range []error{replyError("LOADING"), replyError("NOPERM"), errors.New("broken"), context.DeadlineExceeded} {
				tap.intercept(func(int) error { return fail })
				short := startWith(t, b, rdb, m, per(5, 60), remote.Options{Timeout: 10 * time.Millisecond})
				ask(fail.Error(), short, secret, 1)
			}
			tap.intercept(func(int) error { panic(r.stored()) })
			ask("panic", r, secret, 1)
			tap.intercept(nil)
			for name, cmd := range foreign {
				if err := r.Reset(ctx, secret); err != nil {
					t.Error(err)
				}
				cmd = append([]any{}, cmd...)
				cmd[1] = r.stored()
				if err := b.Client.Do(ctx, cmd...).Err(); err != nil {
					t.Fatal(err)
				}
				ask(name, r, secret, 1)
			}
			gone, err := m.make(closed, per(5, 60), remote.Options{Timeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			ask("closed client", gone, secret, 1)
			scan(t, "Reset with a closed client", gone.Reset(ctx, secret))
			lost, err := m.make(unreachable(), per(5, 60), remote.Options{Timeout: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			ask("no server", lost, secret, 1)
			scan(t, "Reset without a server", lost.Reset(ctx, secret))
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := r.AllowN(cancelled, secret, 1); err != context.Canceled {
				t.Errorf("cancelled: %v", err)
			}
			if err := r.Reset(cancelled, secret); err != context.Canceled {
				t.Errorf("Reset cancelled: %v", err)
			}
		}
	})
}

// A context that has ended already sends nothing.
func TestEndedContextTakesNothing(t *testing.T) {
	redistest.Each(t, origin, func(t *testing.T, b *redistest.Backend) {
		rdb := b.NewClient(t)
		tap := attach(rdb)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		for _, m := range allModes {
			r := startWith(t, b, rdb, m, per(5, 60), remote.Options{Timeout: patience})
			if got, err := r.Allow(cancelled, "k"); err != context.Canceled || got != (limit.Result{}) {
				t.Errorf("%s: %+v, %v; want context.Canceled", m.name, got, err)
			}
		}
		if got := tap.sent(); got != 0 {
			t.Errorf("%d scripts sent", got)
		}
		grants := make([]lease.Grant, 2)
		remote.NewSource(rdb, remote.Options{Timeout: patience}).Acquire(cancelled, requests(per(5, 60), 2, 1), grants)
		for _, g := range grants {
			if !errors.Is(g.Err, limit.ErrUnavailable) {
				t.Errorf("grant %+v, want ErrUnavailable", g)
			}
		}
	})
}
