//go:build unix

package hybrid_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/remote"
)

// fault is one way in which things go wrong.
type fault struct {
	name string
	// do makes it happen to the members that the event names, notes in the event what the docs allow for it, and returns
	// when Redis is well again.
	do func(e *event)
}

// event is a fault that happened.
type event struct {
	*arena
	fault   string
	members []*member // who may notice
	keys    []int     // nil: any of them tells whether Redis answers again
	after   func()    // puts things back to where they were, once everybody has recovered

	from, over int64 // until Redis was well again
	noticed    int64 // until the last of the members was served again
	recovered  []time.Duration
	leeways    [][]leeway // by key
}

func (e *event) between(least, most time.Duration) time.Duration {
	return least + time.Duration(e.rng.Int64N(int64(most-least)))
}

// last lets it last for d.
func (e *event) last(d time.Duration) { pause(d, time.Now().Add(d)) }

// hang is last for a time in which nothing is answered: nothing may pile up.
func (e *event) hang(d time.Duration) {
	e.last(d)
	e.countGoroutines()
}

// lost notes that Redis may have forgotten these keys between from and now: "at most B more in any window", and what was
// lent in those that begin later.
func (e *event) lost(from int64, keys ...int) {
	now := time.Now().UnixMicro()
	for _, i := range keys {
		k := e.fleet.keys[i]
		e.leeways[i] = append(e.leeways[i],
			leeway{from, now, float64(k.limit.Burst) - k.lent()}, leeway{from, now + k.after(), k.lent()})
	}
}

// split notes that between from and now two masters may have answered: there was one more bucket, and it got its rate.
func (e *event) split(from int64, keys ...int) {
	e.lost(from, keys...)
	now := time.Now().UnixMicro()
	for _, i := range keys {
		k := e.fleet.keys[i]
		e.leeways[i] = append(e.leeways[i], leeway{from, now + k.after(), float64(k.limit.Rate) * float64(now-from) / 1e6})
	}
}

func (e *event) allKeys() (all []int) {
	for i := range e.fleet.keys {
		all = append(all, i)
	}
	return all
}

// some leaves only some of the members, or all.
func (e *event) some() {
	if e.rng.IntN(2) == 0 {
		return
	}
	e.rng.Shuffle(len(e.members), func(i, j int) { e.members[i], e.members[j] = e.members[j], e.members[i] })
	e.members = e.members[:1+e.rng.IntN(len(e.members)-1)]
}

// proxies does something to those of the members.
func (e *event) proxies(f func(p *redistest.Proxy)) {
	for _, m := range e.members {
		f(m.proxy)
	}
}

// single is one server, and each member behind a proxy of its own.
func single(t *testing.T, rng *rand.Rand) *arena {
	srv := redistest.Start(t)
	admin := srv.Client(t)
	ctx := context.Background()
	a := &arena{t: t, name: "server", rng: rng, oneLane: true}
	a.fleet = newFleet(t, rng, plainKeys(), func(m *member) remote.Client {
		m.proxy = redistest.NewProxy(t, srv.Addr())
		rdb := redis.NewClient(remote.Recommended(clientOptions(m.proxy.Addr())))
		t.Cleanup(func() { rdb.Close() })
		return rdb
	})
	a.deck = []fault{
		{"replies 5 to 40 ms late", func(e *event) {
			e.some()
			d := e.between(5*time.Millisecond, 40*time.Millisecond)
			e.proxies(func(p *redistest.Proxy) { p.Delay(d) })
			e.last(600 * time.Millisecond)
			e.proxies(func(p *redistest.Proxy) { p.Delay(0) })
		}},
		{"replies later than Timeout", func(e *event) {
			e.some()
			d := e.between(chaosTimeout*3/2, 3*chaosTimeout)
			e.proxies(func(p *redistest.Proxy) { p.Delay(d) })
			e.hang(e.between(4*chaosTimeout, 7*chaosTimeout))
			e.proxies(func(p *redistest.Proxy) { p.Delay(0) })
		}},
		{"nothing passes", func(e *event) {
			e.some()
			e.proxies(func(p *redistest.Proxy) { p.BlackHole(true) })
			e.hang(e.between(4*chaosTimeout, 8*chaosTimeout))
			e.proxies(func(p *redistest.Proxy) { p.BlackHole(false) })
		}},
		{"connections refused", func(e *event) {
			e.some()
			e.proxies(func(p *redistest.Proxy) { p.Refuse(true); p.Cut() })
			e.last(e.between(300*time.Millisecond, 800*time.Millisecond))
			e.proxies(func(p *redistest.Proxy) { p.Refuse(false) })
		}},
		{"connections cut", func(e *event) {
			e.some()
			for range 3 {
				e.proxies(func(p *redistest.Proxy) { p.Cut() })
				e.last(e.between(50*time.Millisecond, 150*time.Millisecond))
			}
		}},
		{"replies lost", func(e *event) {
			e.some()
			for range 3 {
				n := 1 + e.rng.IntN(2)
				if e.rng.IntN(2) == 0 {
					e.proxies(func(p *redistest.Proxy) { p.DropReplies(n) })
				} else {
					e.proxies(func(p *redistest.Proxy) { p.HangReplies(n) })
				}
				e.last(e.between(100*time.Millisecond, 200*time.Millisecond))
			}
			e.proxies(func(p *redistest.Proxy) { p.DropReplies(0); p.HangReplies(0) })
		}},
		{"requests late, after others", func(e *event) {
			e.some()
			for range 3 {
				n, d := 1+e.rng.IntN(2), e.between(0, 300*time.Millisecond)
				e.proxies(func(p *redistest.Proxy) { p.LateRequests(n, d) })
				e.last(e.between(100*time.Millisecond, 200*time.Millisecond))
			}
			e.proxies(func(p *redistest.Proxy) { p.LateRequests(0, 0) })
		}},
		{"requests twice", func(e *event) {
			e.some()
			for range 3 {
				n := 1 + e.rng.IntN(6)
				e.proxies(func(p *redistest.Proxy) { p.Duplicate(n) })
				e.last(e.between(100*time.Millisecond, 200*time.Millisecond))
			}
			e.proxies(func(p *redistest.Proxy) { p.Duplicate(0) })
		}},
		{"server stopped (SIGSTOP)", func(e *event) {
			srv.Pause()
			e.hang(e.between(4*chaosTimeout, 8*chaosTimeout))
			srv.Resume()
		}},
		{"server killed, back empty", func(e *event) {
			srv.Kill()
			e.last(e.between(100*time.Millisecond, 800*time.Millisecond))
			srv.Restart(t)
			e.lost(e.from, e.allKeys()...)
		}},
		{"SCRIPT FLUSH", func(e *event) {
			for range 3 {
				e.must(admin.ScriptFlush(ctx).Err())
				e.last(e.between(50*time.Millisecond, 150*time.Millisecond))
			}
		}},
	}
	return a
}

func plainKeys() (keys []chaosKey) {
	for i, lim := range chaosLimits {
		keys = append(keys, chaosKey{fmt.Sprint("key-", i), lim})
	}
	return keys
}

// sentinel is a master and its replica, which take turns.
func sentinel(t *testing.T, rng *rand.Rand) *arena {
	s := redistest.StartSentinel(t)
	admins := make(map[*redistest.Server]*redis.Client)
	for _, srv := range []*redistest.Server{s.Master(t), s.Replica(t)} {
		admins[srv] = srv.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, time.Second })
	}
	watch := redis.NewSentinelClient(s.Sentinel.Client(t).Options())
	t.Cleanup(func() { watch.Close() })
	ctx := context.Background()
	a := &arena{t: t, name: "Sentinel", rng: rng, oneLane: true}
	a.fleet = newFleet(t, rng, plainKeys(), func(*member) remote.Client {
		rdb := redis.NewFailoverClient(remote.Recommended(&redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: s.Addrs(), DisableIdentity: true,
		}))
		t.Cleanup(func() { rdb.Close() })
		return rdb
	})
	// back starts what was the master, and returns when the next failover may come.
	back := func(old *redistest.Server) func() {
		return func() {
			old.Kill() // it may be stopped
			old.Restart(t)
			a.eventually("the old master is a replica in step", func() bool {
				r := watch.Replicas(ctx, redistest.MasterName).Val()
				return len(r) == 1 && r[0]["flags"] == "slave" && r[0]["master-link-status"] == "ok" &&
					inStep(admins[s.Master(t)], admins[old])
			})
		}
	}
	replaced := func(end func(*redistest.Server)) func(e *event) {
		return func(e *event) {
			old := s.Master(t)
			end(old)
			s.Replaced(t, old)
			e.countGoroutines()
			e.lost(e.from, e.allKeys()...)
			e.after = back(old)
		}
	}
	a.deck = []fault{
		{"master killed", replaced((*redistest.Server).Kill)},
		{"master stopped (SIGSTOP)", replaced((*redistest.Server).Pause)},
		{"SENTINEL FAILOVER", func(e *event) {
			old, promoted := s.Master(t), admins[s.Replica(t)]
			alone := make(chan int64, 1) // until when there was one master
			go func() {
				at := e.from
				for now := at; role(promoted) == "slave"; now = time.Now().UnixMicro() {
					at = now
					pause(time.Millisecond, time.Now().Add(time.Second))
				}
				alone <- at
			}()
			s.Failover(t)
			// Until it is told the old one answers as a master, and who has not heard of the new one asks it.
			e.eventually("the old master is told", func() bool { return role(admins[old]) == "slave" })
			e.split(<-alone, e.allKeys()...)
			e.after = func() {
				e.eventually("the old master is in step", func() bool { return inStep(admins[s.Master(t)], admins[old]) })
			}
		}},
	}
	return a
}

func role(rdb *redis.Client) string {
	return rdb.InfoMap(context.Background(), "replication").Item("Replication", "role")
}

// inStep reports whether a replica has all that its master has written, and is sent what follows.
func inStep(master, replica *redis.Client) bool {
	ctx := context.Background()
	from, to := master.Info(ctx, "replication").Val(), replica.Info(ctx, "replication").Val()
	return strings.Contains(from, "role:master") && strings.Contains(from, "state=online") &&
		strings.Contains(to, "role:slave") && strings.Contains(to, "master_link_status:up")
}

// cluster is three masters with a replica each, and a key on each of them.
func cluster(t *testing.T, rng *rand.Rand) *arena {
	c := redistest.StartCluster(t, 3, 3, "--cluster-require-full-coverage", "no")
	admins := make(map[*redistest.Node]*redis.Client)
	for _, n := range c.Nodes {
		admins[n] = n.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, time.Second })
	}
	ctx := context.Background()
	keys := make([]chaosKey, 3)
	for i := 0; slices.ContainsFunc(keys, func(k chaosKey) bool { return k.name == "" }); i++ {
		name := fmt.Sprint("key-", i)
		j := slices.Index(c.Nodes, c.Master(t, tag(name)))
		keys[j] = chaosKey{name, chaosLimits[j]}
	}
	a := &arena{t: t, name: "Cluster", rng: rng}
	a.fleet = newFleet(t, rng, keys, func(*member) remote.Client {
		rdb := redis.NewClusterClient(remote.Recommended(&redis.ClusterOptions{Addrs: c.Addrs(), DisableIdentity: true}))
		t.Cleanup(func() { rdb.Close() })
		return rdb
	})
	master := func(key int) *redistest.Node { return c.Master(t, tag(keys[key].name)) }
	// agreed returns when every node that runs says the same of who serves a key.
	agreed := func(key int) {
		owner := master(key)
		slot := int(admins[owner].ClusterKeySlot(ctx, tag(keys[key].name)).Val())
		a.eventually("the nodes agree on who serves the key", func() bool {
			return !slices.ContainsFunc(c.Nodes, func(n *redistest.Node) bool {
				return !serves(admins[n].ClusterNodes(ctx).Val(), owner.ID, slot)
			})
		})
	}
	replicaOf := func(n, master *redistest.Node) bool {
		return strings.Contains(admins[n].ClusterNodes(ctx).Val(), "myself,slave "+master.ID)
	}
	// settled returns when all nodes are up, each master has a replica in step, and all agree on the keys.
	settled := func() {
		a.eventually("each master has a replica in step", func() bool {
			pairs := 0
			for _, n := range c.Nodes {
				for _, r := range c.Nodes {
					if n != r && replicaOf(r, n) && inStep(admins[n], admins[r]) {
						pairs++
					}
				}
			}
			return pairs == 3
		})
		for i := range keys {
			agreed(i)
		}
	}
	// on are the keys that a node serves.
	on := func(n *redistest.Node) (all []int) {
		for i := range keys {
			if master(i) == n {
				all = append(all, i)
			}
		}
		return all
	}
	a.deck = []fault{
		{"master killed", func(e *event) {
			old := master(e.rng.IntN(3))
			e.keys = on(old)
			e.from = time.Now().UnixMicro()
			old.Kill()
			e.eventually("its replica serves", func() bool { return master(e.keys[0]) != old })
			e.lost(e.from, e.keys...)
			e.after = func() { old.Restart(t); settled() }
		}},
		{"master stopped (SIGSTOP), not for long", func(e *event) {
			old := master(e.rng.IntN(3))
			e.keys = on(old)
			e.from = time.Now().UnixMicro()
			old.Pause()
			e.hang(4 * chaosTimeout) // well below the node time-out of 2 s, so that nobody takes its place
			old.Resume()
			e.after = func() {
				settled()
				if master(e.keys[0]) != old { // this machine stood still for longer, and somebody did
					e.split(e.from, e.keys...)
				}
			}
		}},
		{"CLUSTER FAILOVER", func(e *event) {
			old := master(e.rng.IntN(3))
			e.keys = on(old)
			e.from = time.Now().UnixMicro()
			// Nothing is lost. A vote may fail, as soon after another; the old master then goes on after 5 s.
			var asked time.Time
			e.eventually("its replica serves", func() bool {
				if time.Since(asked) > 6*time.Second {
					asked = time.Now()
					for _, n := range c.Nodes {
						if replicaOf(n, old) {
							_ = admins[n].ClusterFailover(ctx).Err()
						}
					}
				}
				return master(e.keys[0]) != old
			})
			e.after = settled
		}},
		{"slot moved", func(e *event) {
			key := e.rng.IntN(3)
			e.keys = []int{key}
			to := master((key + 1) % 3)
			if to == master(key) {
				to = master((key + 2) % 3)
			}
			if to == master(key) { // they have met on one node: the other two have no key of ours
				to = c.Nodes[slices.IndexFunc(c.Nodes, func(n *redistest.Node) bool { return n != to && role(admins[n]) == "master" })]
			}
			e.from = time.Now().UnixMicro()
			m := c.Migrate(t, tag(keys[key].name), to)
			e.last(e.between(50*time.Millisecond, 200*time.Millisecond))
			m.Finish(t)
			e.after = settled
		}},
	}
	return a
}

// serves reports whether a node says, in its CLUSTER NODES, that the node with this ID serves a slot.
func serves(nodes, id string, slot int) bool {
	for line := range strings.Lines(nodes) {
		if f := strings.Fields(line); len(f) > 8 && f[0] == id {
			return slices.ContainsFunc(f[8:], func(s string) bool {
				var first, last int
				n, _ := fmt.Sscanf(s, "%d-%d", &first, &last)
				return n == 2 && first <= slot && slot <= last || n == 1 && first == slot
			})
		}
	}
	return false
}

// tag makes of a key what is hashed.
func tag(key string) string { return "{" + key + "}" }

// stepped is a miniredis whose clock can be set. Between the steps it is the wall clock: whoever sends something sets it
// first, so that no script sees a time before that of its request.
func stepped(t *testing.T, rng *rand.Rand) *arena {
	m, admin := redistest.NewMini(t, time.Now())
	clock := &steppedClock{mini: m}
	ctx := context.Background()
	a := &arena{t: t, name: "miniredis", rng: rng, oneLane: true}
	a.fleet = newFleet(t, rng, plainKeys(), func(*member) remote.Client {
		rdb := redis.NewClient(remote.Recommended(clientOptions(m.Addr())))
		rdb.AddHook(clock)
		t.Cleanup(func() { rdb.Close() })
		return rdb
	})
	step := func(sign, least, most time.Duration) func(e *event) {
		return func(e *event) {
			for range 2 {
				d := e.between(least, most)
				from := time.Now().UnixMicro()
				clock.step(sign * d)
				now := time.Now().UnixMicro()
				for i, k := range e.fleet.keys {
					if sign > 0 { // "at most R*J, and never more than B, for each jump"
						e.leeways[i] = append(e.leeways[i], leeway{from, now + k.after(),
							math.Min(float64(k.limit.Rate)*d.Seconds(), float64(k.limit.Burst))})
					}
				}
				e.last(300 * time.Millisecond)
			}
		}
	}
	a.deck = []fault{
		{"clock forward, up to 100 ms", step(1, time.Millisecond, 100*time.Millisecond)},
		{"clock forward, up to 3 s", step(1, 100*time.Millisecond, 3*time.Second)},
		{"clock forward, an hour", step(1, time.Hour, time.Hour+time.Second)},
		{"clock back, up to 3 s", step(-1, time.Millisecond, 3*time.Second)},
		{"clock back, an hour", step(-1, time.Hour, time.Hour+time.Second)},
		{"LOADING", func(e *event) {
			clock.loading.Store(true)
			e.hang(e.between(4*chaosTimeout, 7*chaosTimeout)) // until breakers open
			clock.loading.Store(false)
		}},
		{"FLUSHALL", func(e *event) {
			e.must(admin.FlushAll(ctx).Err())
			e.lost(e.from, e.allKeys()...)
			e.last(500 * time.Millisecond)
		}},
	}
	return a
}

type steppedClock struct {
	mini    *miniredis.Miniredis
	loading atomic.Bool // it answers as a server that reads its data

	mu     sync.Mutex // guards offset, and makes reading the time and setting it one step
	offset time.Duration
}

func (c *steppedClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
	c.mini.SetTime(time.Now().Add(c.offset))
}

func (c *steppedClock) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *steppedClock) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.loading.Load() { // miniredis would say so in the middle of a script, too
			cmd.SetErr(errLoading)
			return errLoading
		}
		c.step(0)
		return next(ctx, cmd)
	}
}

func (c *steppedClock) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if c.loading.Load() {
			for _, cmd := range cmds {
				cmd.SetErr(errLoading)
			}
			return errLoading
		}
		c.step(0)
		return next(ctx, cmds)
	}
}

// errLoading is a reply of the server.
const errLoading = errorReply("LOADING Redis is loading the dataset in memory")

type errorReply string

func (e errorReply) Error() string { return string(e) }
func (e errorReply) RedisError()   {}
