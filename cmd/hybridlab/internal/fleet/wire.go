package fleet

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// gate is what all replies of Redis pass: shut, Redis hangs. The zero gate is open.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when it opens again; nil while it is open
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

// opens returns nil if the gate is open, else what tells when it opens.
func (g *gate) opens() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// wire is the connections of one process to Redis. Replies come later by delay, and not while the gate is shut: requests
// reach Redis and are executed all the same. A wire that is cut has no connections and makes none.
type wire struct {
	delay time.Duration
	gate  *gate

	mu    sync.Mutex
	cut   bool
	conns map[*conn]bool
}

func newWire(delay time.Duration, g *gate) *wire {
	return &wire{delay: delay, gate: g, conns: map[*conn]bool{}}
}

// dial is a Dialer for a Redis client.
func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	var d net.Dialer
	inner, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, wire: w, closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		inner.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	w.conns[c] = true
	return c, nil
}

// sever cuts the wire for good.
func (w *wire) sever() {
	w.mu.Lock()
	w.cut = true
	conns := w.conns
	w.conns = map[*conn]bool{}
	w.mu.Unlock()
	for c := range conns {
		c.Close()
	}
}

// conn is one connection of a wire. As every client of Redis does, it is read by one goroutine at a time.
type conn struct {
	net.Conn
	wire     *wire
	asked    atomic.Bool  // something was written since the last reply: the next one is late by a round trip
	deadline atomic.Int64 // of reading, in nanoseconds since 1970; 0 for none
	once     sync.Once
	closed   chan struct{}
	late     atomic.Bool // a reply was dropped because it came after the deadline; the connection is of no use
}

func (c *conn) Write(p []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(p)
}

// Read holds what has come until it may be seen. What is written in one go, such as a pipeline, waits once.
func (c *conn) Read(p []byte) (int, error) {
	if c.late.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		return n, err
	}
	if c.asked.Swap(false) && c.wire.delay > 0 {
		delay := time.NewTimer(c.wire.delay)
		defer delay.Stop()
		err = c.hold(delay.C, nil)
	}
	for err == nil {
		opens := c.wire.gate.opens()
		if opens == nil {
			return n, nil
		}
		err = c.hold(nil, opens)
	}
	c.late.Store(true)
	return 0, err
}

// hold waits for one of the two, at most until the deadline or until the connection is closed.
func (c *conn) hold(after <-chan time.Time, opens <-chan struct{}) error {
	var expired <-chan time.Time
	if d := c.deadline.Load(); d != 0 {
		t := time.NewTimer(time.Until(time.Unix(0, d)))
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-after:
	case <-opens:
	case <-expired:
		return os.ErrDeadlineExceeded
	case <-c.closed:
		return net.ErrClosed
	}
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) keep(t time.Time) {
	if t.IsZero() {
		c.deadline.Store(0)
		return
	}
	c.deadline.Store(t.UnixNano())
}

// Close wakes a Read that holds a reply.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.wire.mu.Lock()
		delete(c.wire.conns, c)
		c.wire.mu.Unlock()
	})
	return c.Conn.Close()
}
