package hybrid_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

const limitsPage = "docs/limits.md"

// far is the round trip of the table in docs/limits.md.
const far = 100 * time.Millisecond

// farSource has the buckets a round trip away.
func farSource(rtt, timeout time.Duration) *leasetest.Source {
	src := leasetest.NewSource()
	src.Timeout = timeout
	src.Always(func(lease.Request) leasetest.Fault { return leasetest.Fault{Delay: rtt / 2, Reply: rtt / 2} })
	return src
}

// askFar lets one process ask for a key as often as lam says, at random, for a minute after the first ten seconds. It
// returns the calls per second, and the share of the requests that did not have their answer at once.
func askFar(lim limit.Limit, opts hybrid.Options, lam float64) (calls, waited float64) {
	opts.Timeout = 5 * far
	l, err := hybrid.NewFrom(farSource(far, opts.Timeout), lim, opts)
	if err != nil {
		panic(err)
	}
	defer l.Close(context.Background())
	const warmUp, length = 10 * time.Second, time.Minute
	rnd := rand.New(rand.NewPCG(1, 2))
	var asked, late atomic.Int64
	var all sync.WaitGroup
	var before int64
	start, at := time.Now(), time.Duration(0)
	for at < warmUp+length {
		counts := at >= warmUp
		if counts && before == 0 {
			before = l.Stats().Calls
		}
		all.Go(func() {
			began := time.Now()
			if r, err := l.Allow(context.Background(), "k"); err != nil || !r.Allowed {
				panic(fmt.Sprint(r, err))
			}
			if counts {
				asked.Add(1)
				if time.Since(began) > 0 {
					late.Add(1)
				}
			}
		})
		at += time.Duration(rnd.ExpFloat64() / lam * float64(time.Second))
		time.Sleep(time.Until(start.Add(at)))
	}
	made := l.Stats().Calls - before
	all.Wait()
	return float64(made) / length.Seconds(), float64(late.Load()) / float64(asked.Load())
}

// TestDocsFarRedis plays the rows of the table in docs/limits.md.
func TestDocsFarRedis(t *testing.T) {
	rows := tableOf(t, readDoc(t, limitsPage), "limit | options | lam | calls/s | wait for Redis")
	if len(rows) < 5 {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		terms, opts := parseTerms(row)
		lam, err1 := strconv.ParseFloat(row[2], 64)
		calls, err2 := strconv.ParseFloat(row[3], 64)
		waited, err3 := strconv.ParseFloat(strings.TrimSuffix(row[4], " %"), 64)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatalf("%q", row)
		}
		var gotCalls, gotWaited float64
		synctest.Test(t, func(*testing.T) { gotCalls, gotWaited = askFar(terms.Limit, opts, lam) })
		t.Logf("%v %s, %v/s: %.1f calls/s, %.1f %% wait", terms.Limit, row[1], lam, gotCalls, 100*gotWaited)
		// The table is rounded, and goroutines that run at one instant have no order.
		if math.Abs(gotCalls-calls) > 0.1+0.1*calls || math.Abs(100*gotWaited-waited) > 0.5+0.1*waited {
			t.Errorf("%s says %q, it is %.1f and %.1f %%", limitsPage, row, gotCalls, 100*gotWaited)
		}
	}
}

// The default Timeout is too short for a Redis that is so far away.
func TestDocsFarRedisNeedsATimeout(t *testing.T) {
	const rtt = far + time.Millisecond // else it is a tie
	for timeout, byPolicy := range map[time.Duration]bool{remote.DefaultTimeout: true, 5 * far: false} {
		synctest.Test(t, func(t *testing.T) {
			l, err := hybrid.NewFrom(farSource(rtt, timeout), hybrid.PerSecond(1000).WithBurst(6000), hybrid.Options{Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(context.Background())
			r, err := l.Allow(t.Context(), "k")
			if err != nil || (r.Origin == hybrid.Fallback) != byPolicy {
				t.Errorf("Timeout %v: %+v, %v", timeout, r, err)
			}
		})
	}
}

// TestFarRedisConnects: a Timeout that is longer than a round trip, but not than those of a new connection, never gets
// one; five round trips are enough.
func TestFarRedisConnects(t *testing.T) {
	srv := redistest.Start(t)
	const rtt = 60 * time.Millisecond
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		time.Sleep(rtt)
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return farConn{conn, rtt}, err
	}
	for timeout, reached := range map[time.Duration]bool{rtt + rtt/2: false, 5 * rtt: true} {
		rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: srv.Addr(), Dialer: dial}))
		t.Cleanup(func() { rdb.Close() })
		l, err := hybrid.New(rdb, hybrid.PerHour(1000), hybrid.Options{Timeout: timeout, Exact: true, OnFailure: hybrid.FailClosed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(context.Background()) })
		tries := 4
		if reached {
			tries = 50 // on a machine that is busy one may fail
		}
		got := false
		for i := 0; i < tries && !got; i++ {
			_, err := l.Allow(t.Context(), "k"+strconv.Itoa(i))
			got = err == nil
		}
		if got != reached {
			t.Errorf("Timeout %v, round trips of %v: reached %v", timeout, rtt, got)
		}
	}
}

// farConn gets each answer rtt late.
type farConn struct {
	net.Conn
	rtt time.Duration
}

func (c farConn) Read(p []byte) (int, error) {
	time.Sleep(c.rtt)
	return c.Conn.Read(p) // fails if its deadline has passed meanwhile
}
