package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const incr = `return redis.call('INCRBY', KEYS[1], 1)`

// behind returns a proxy, a client through it and one past it.
func behind(t *testing.T) (p *Proxy, rdb, direct *redis.Client) {
	t.Helper()
	direct = database(t)
	o := direct.Options()
	p = NewProxy(t, o.Addr)
	rdb = newClient(t, p.Addr(), once, func(n *redis.Options) { n.DB, n.PoolSize = o.DB, 1 })
	return p, rdb, direct
}

func run(rdb *redis.Client) (int, error) { return rdb.Eval(ctx, incr, []string{"n"}).Int() }

// wantRun checks that the script runs and that the reply is that of this request.
func wantRun(t *testing.T, rdb *redis.Client, want int) {
	t.Helper()
	if n, err := run(rdb); n != want || err != nil {
		t.Errorf("script: %d, %v, want %d, nil", n, err, want)
	}
}

func wantLost(t *testing.T, err error) {
	t.Helper()
	if err == nil || timedOut(err) {
		t.Errorf("error %v, want that of a closed connection", err)
	}
}

func wantTimeout(t *testing.T, err error) {
	t.Helper()
	if !timedOut(err) {
		t.Errorf("error %v, want a time-out", err)
	}
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func wantCount(t *testing.T, direct *redis.Client, want int) {
	t.Helper()
	eventually(t, "runs on the server", func() bool { n, _ := direct.Get(ctx, "n").Int(); return n == want })
}

func TestProxy_passesAndCounts(t *testing.T) {
	p, rdb, _ := behind(t)
	big := strings.Repeat("x", 1<<20)
	if got, err := rdb.Set(ctx, "big", big, 0).Result(); got != "OK" || err != nil {
		t.Fatalf("Set: %q, %v", got, err)
	}
	if rdb.Get(ctx, "big").Val() != big {
		t.Error("a large value does not pass unchanged")
	}
	if p.Requests() != 0 || p.RoundTrips() != 0 {
		t.Errorf("without a script: %d requests, %d round trips", p.Requests(), p.RoundTrips())
	}
	cmds, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, "h", "a", 1, "b", 2)
		pipe.Eval(ctx, incr, []string{"n"})
		pipe.HGetAll(ctx, "h")
		pipe.Eval(ctx, incr, []string{"n"})
		return nil
	})
	if err != nil || cmds[3].(*redis.Cmd).Val() != int64(2) {
		t.Errorf("pipeline: %v, %v", cmds, err)
	}
	if p.Requests() != 2 || p.RoundTrips() != 1 {
		t.Errorf("after a pipeline: %d requests, %d round trips, want 2, 1", p.Requests(), p.RoundTrips())
	}
	wantRun(t, rdb, 3)
	if p.Requests() != 3 || p.RoundTrips() != 2 {
		t.Errorf("at last: %d requests, %d round trips, want 3, 2", p.Requests(), p.RoundTrips())
	}
}

// A fault hits the script that runs, and neither the handshake nor an EVALSHA that the server does not know.
func TestProxy_faults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		arm   func(p *Proxy, n int)
		check func(t *testing.T, err error)
		ran   int
	}{
		{"drop", (*Proxy).DropReplies, wantLost, 1},
		{"hang", (*Proxy).HangReplies, wantTimeout, 1},
		{"duplicate", (*Proxy).Duplicate, func(t *testing.T, err error) {
			if err != nil {
				t.Error(err)
			}
		}, 2},
		{"late", func(p *Proxy, n int) { p.LateRequests(n, time.Millisecond) }, wantLost, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, rdb, direct := behind(t)
			faulty := rdb
			if tt.name == "hang" {
				faulty = hasty(rdb)
			}
			tt.arm(p, 2)
			for i := range 2 {
				script := redis.NewScript(fmt.Sprint(incr, " -- ", direct.Options().DB, i)) // unknown
				if err := script.EvalSha(ctx, rdb, []string{"n"}).Err(); !errors.Is(err, redis.ErrNoScript) {
					t.Fatalf("unknown script: %v, want NOSCRIPT", err)
				}
				n, err := script.Eval(ctx, faulty, []string{"n"}).Int()
				tt.check(t, err)
				if err == nil && n != 1+i*tt.ran {
					t.Errorf("reply %d, want %d", n, 1+i*tt.ran)
				}
				wantCount(t, direct, (i+1)*tt.ran)
			}
			wantRun(t, rdb, 2*tt.ran+1)

			// By its hash, too, once the server knows it.
			script := redis.NewScript(incr)
			tt.arm(p, 1)
			_, err := script.EvalSha(ctx, faulty, []string{"n"}).Int()
			tt.check(t, err)
			wantCount(t, direct, 3*tt.ran+1)

			tt.arm(p, 1)
			tt.arm(p, 0)
			wantRun(t, rdb, 3*tt.ran+2)
		})
	}
}

func TestProxy_faultInPipeline(t *testing.T) {
	for _, tt := range []struct {
		name string
		arm  func(p *Proxy, n int)
		ok   int // replies before the fault
		ran  int
	}{
		{"drop", (*Proxy).DropReplies, 1, 2},
		{"hang", (*Proxy).HangReplies, 1, 2},
		{"duplicate", (*Proxy).Duplicate, 4, 4},
		{"late", func(p *Proxy, n int) { p.LateRequests(n, time.Millisecond) }, 0, 2}, // the connection is cut at once
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, rdb, direct := behind(t)
			faulty := rdb
			if tt.name == "hang" {
				faulty = hasty(rdb)
			}
			if err := rdb.Ping(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			tt.arm(p, 2)
			cmds, _ := faulty.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, "a", "1", 0)
				pipe.Eval(ctx, incr, []string{"n"})
				pipe.Eval(ctx, incr, []string{"n"})
				pipe.Get(ctx, "a")
				return nil
			})
			for i, cmd := range cmds[1:] {
				if i+1 < tt.ok && cmd.Err() != nil || i+1 >= tt.ok && cmd.Err() == nil {
					t.Errorf("command %d: %v", i+1, cmd)
				}
			}
			if get := cmds[3].(*redis.StringCmd); tt.ok == 4 && get.Val() != "1" {
				t.Errorf("%v got the reply of another", get)
			}
			if tt.name == "hang" && cmds[1].(*redis.Cmd).Val() != nil {
				t.Errorf("%v got the reply of another", cmds[1])
			}
			wantCount(t, direct, tt.ran)
			if tt.ok < 4 { // the pipeline used up one of the two
				rdb.Ping(ctx)
				if _, err := run(faulty); err == nil {
					t.Error("the second fault did not wait for the next request")
				}
				wantCount(t, direct, tt.ran+1)
				tt.ran++
			}
			wantRun(t, rdb, tt.ran+1)
		})
	}
}

func TestProxy_lateRequest(t *testing.T) {
	p, rdb, direct := behind(t)
	const d = 100 * time.Millisecond
	p.LateRequests(1, d)
	begin := time.Now()
	_, err := run(rdb)
	wantLost(t, err)
	wantCount(t, direct, 1)
	if got := time.Since(begin); got < d {
		t.Errorf("the late request ran after %v, want %v at least", got, d)
	}
}

func TestProxy_delay(t *testing.T) {
	p, rdb, _ := behind(t)
	const d = 100 * time.Millisecond
	p.Delay(d)
	begin := time.Now()
	// If delays added up, this would be 10 s and a time-out.
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for range 100 {
			pipe.Eval(ctx, incr, []string{"n"})
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if got := time.Since(begin); got < d {
		t.Errorf("replies after %v, want %v at least", got, d)
	}
	p.Delay(0)
	wantRun(t, rdb, 101)
}

func TestProxy_blackHole(t *testing.T) {
	p, rdb, direct := behind(t)
	wantRun(t, rdb, 1)
	p.BlackHole(true)
	p.BlackHole(false)
	wantRun(t, rdb, 2) // nothing was lost
	p.BlackHole(true)
	for range 2 { // an old and a new connection
		_, err := run(hasty(rdb))
		wantTimeout(t, err)
	}
	p.BlackHole(false)
	wantRun(t, rdb, 3)
	wantCount(t, direct, 3)
}

// A reply on its way when the black hole opens is lost, and those that follow on the connection are not taken for it.
func TestProxy_blackHoleReply(t *testing.T) {
	for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		p := NewProxy(t, ln.Addr().String())
		p.Delay(delay)
		client, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		br := bufio.NewReader(server)
		ask := func() {
			io.WriteString(client, "*2\r\n$4\r\nEVAL\r\n$1\r\n0\r\n")
			if _, err := readFrame(br); err != nil {
				t.Fatal(err)
			}
		}
		ask()
		p.BlackHole(true)
		io.WriteString(server, ":1\r\n")
		silent(t, client)
		p.BlackHole(false)
		ask()
		io.WriteString(server, ":2\r\n")
		server.Close()
		silent(t, client)
	}
}

// dial returns an idle connection through p.
func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	io.WriteString(conn, "PING\r\n")
	pong := make([]byte, 7)
	if _, err := io.ReadFull(conn, pong); string(pong) != "+PONG\r\n" {
		t.Fatalf("PING: %q, %v", pong, err)
	}
	return conn
}

func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, want silence", n, err)
	}
}

func TestProxy_cutAndRefuse(t *testing.T) {
	p, rdb, _ := behind(t)
	wantRun(t, rdb, 1)
	p.Refuse(true)
	wantRun(t, rdb, 2) // the connection is not new
	p.Cut()
	for range 2 {
		_, err := run(rdb)
		wantLost(t, err)
	}
	p.Refuse(false)
	wantRun(t, rdb, 3)
}

func TestProxy_targetGone(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	rdb := newClient(t, p.Addr(), once)
	wantRun(t, rdb, 1)
	s.Kill()
	_, err := run(rdb)
	wantLost(t, err)
	s.Restart(t)
	eventually(t, "the proxy dials again", func() bool { _, err := run(rdb); return err == nil })

	// A black hole does not tell, neither on an old connection nor on a new one.
	conn := dial(t, p)
	p.BlackHole(true)
	s.Kill()
	silent(t, conn)
	for range 2 {
		_, err = run(hasty(rdb))
		wantTimeout(t, err)
	}
}

// What has passed the proxy runs, also if the client has gone, and then nothing of the link is left.
func TestProxy_clientGone(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	const n = 5000
	request := fmt.Sprintf("*4\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n1\r\n$1\r\nn\r\n", len(incr), incr)
	if _, err := io.WriteString(conn, strings.Repeat(request, n)); err != nil {
		t.Fatal(err)
	}
	conn.(*net.TCPConn).CloseWrite()
	wantCount(t, s.Client(t), n)
	eventually(t, "no connections of the proxy", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.conns) == 0
	})
	conn.Close()
}

// Close does not wait for what hangs or is late.
func TestProxy_close(t *testing.T) {
	p, rdb, direct := behind(t)
	p.LateRequests(1, time.Hour)
	_, err := run(rdb)
	wantLost(t, err)
	p.HangReplies(1)
	rdb.Ping(ctx)
	_, err = run(hasty(rdb))
	wantTimeout(t, err)
	p.Delay(time.Hour)
	rdb.Ping(ctx)
	_, err = run(hasty(rdb))
	wantTimeout(t, err)
	idle := dial(t, p)
	p.Close()
	p.Close()
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("a connection survives Close")
	}
	if !refused(p.Addr()) {
		t.Error("a closed proxy accepts connections")
	}
	wantCount(t, direct, 2)
}

func TestReadFrame(t *testing.T) {
	for _, s := range []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "PING\r\n",
		"$-1\r\n", "$0\r\n\r\n", "$4\r\na\r\nb\r\n", "!3\r\nERR\r\n", "=5\r\ntxt:a\r\n",
		"*-1\r\n", "*0\r\n", "*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "~1\r\n:1\r\n", ">2\r\n+a\r\n+b\r\n",
		"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", "|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
	} {
		br := bufio.NewReader(strings.NewReader(s + "+next\r\n"))
		if got, err := readFrame(br); string(got) != s || err != nil {
			t.Errorf("readFrame(%q) = %q, %v", s, got, err)
		}
		if _, err := readFrame(bufio.NewReader(strings.NewReader(s[:len(s)-1]))); err == nil {
			t.Errorf("readFrame(%q) cut short succeeds", s)
		}
	}
	if _, err := readFrame(bufio.NewReader(strings.NewReader("*x\r\n"))); err == nil {
		t.Error("readFrame takes *x")
	}
}
