package fleet

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// onWire runs test with one connection of a wire with a delay of 40 ms, and the other end of it.
func onWire(t *testing.T, test func(t *testing.T, g *gate, c *conn, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		g := &gate{}
		c := &conn{Conn: near, wire: newWire(40*time.Millisecond, g), closed: make(chan struct{})}
		defer c.Close()
		test(t, g, c, far)
	})
}

// reads reads n times, and returns when each was done, since start.
func reads(c net.Conn, n int, start time.Time) (at []time.Duration, err error) {
	for range n {
		if _, err = c.Read(make([]byte, 1)); err != nil {
			break
		}
		at = append(at, time.Since(start))
	}
	return at, err
}

// answer takes a request of three bytes and answers with three.
func answer(far net.Conn) {
	far.Read(make([]byte, 3))
	far.Write([]byte("abc"))
}

// A pipeline waits once, the next request again.
func TestWireDelaysEachRoundTrip(t *testing.T) {
	onWire(t, func(t *testing.T, _ *gate, c *conn, far net.Conn) {
		for range 2 {
			start := time.Now()
			go answer(far)
			c.Write([]byte("xyz"))
			at, err := reads(c, 3, start)
			if err != nil || at[0] != 40*time.Millisecond || at[2] != at[0] {
				t.Errorf("replies after %v, %v", at, err)
			}
		}
	})
}

func TestWireHangs(t *testing.T) {
	onWire(t, func(t *testing.T, g *gate, c *conn, far net.Conn) {
		g.set(true)
		g.set(true) // is no second lock
		start := time.Now()
		time.AfterFunc(3*time.Second, func() { g.set(false) })
		go answer(far)
		c.Write([]byte("xyz")) // is taken
		at, err := reads(c, 1, start)
		if err != nil || at[0] != 3*time.Second {
			t.Errorf("reply after %v, %v", at, err)
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		g.set(true)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 4*time.Second {
			t.Errorf("%v after %v, want a timeout", err, time.Since(start))
		}
		g.set(false)
		c.SetDeadline(time.Time{})
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection goes on after a reply was dropped")
		}
	})
}

func TestWireDeadlineWithinDelay(t *testing.T) {
	onWire(t, func(t *testing.T, _ *gate, c *conn, far net.Conn) {
		start := time.Now()
		c.SetDeadline(start.Add(30 * time.Millisecond))
		go answer(far)
		c.Write([]byte("xyz"))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 30*time.Millisecond {
			t.Errorf("%v after %v, want a timeout", err, time.Since(start))
		}
	})
}

func TestSeveredWire(t *testing.T) {
	onWire(t, func(t *testing.T, g *gate, c *conn, far net.Conn) {
		c.wire.conns[c] = true
		g.set(true)
		start := time.Now()
		time.AfterFunc(time.Second, c.wire.sever)
		go answer(far)
		c.Write([]byte("xyz"))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) || time.Since(start) != time.Second {
			t.Errorf("%v after %v, want a closed connection", err, time.Since(start))
		}
		if _, err := c.wire.dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
			t.Error("a cut wire connects")
		}
		if len(c.wire.conns) != 0 {
			t.Errorf("it keeps %d connections", len(c.wire.conns))
		}
	})
}
