package redistest

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a TCP proxy in front of one Redis that a test can make faulty.
//
// Only requests that run a script, EVAL and EVALSHA, meet the faults that are counted, so that the handshake of a new
// connection does not use them up. Nor does an EVALSHA of a script the server does not know: its NOSCRIPT passes, and
// the fault waits for the EVAL that follows. Inside MULTI a script's reply is QUEUED, and Duplicate must not be used.
//
// Each of the counted faults is set, not added to: n = 0 takes it back. A request that has passed the proxy runs,
// whatever becomes of the client's connection. The methods are safe for concurrent use.
type Proxy struct {
	target     string
	ln         net.Listener
	done       chan struct{}  // closed by Close
	wg         sync.WaitGroup // all goroutines
	requests   atomic.Int64
	roundTrips atomic.Int64

	mu        sync.Mutex // guards the fields below
	closed    bool
	conns     map[net.Conn]bool // true: of a client
	delay     time.Duration
	drop      int
	hang      int
	duplicate int
	late      int
	lateBy    time.Duration
	blackHole bool
	refuse    bool
}

// NewProxy returns a proxy on a loopback port that passes everything to target. tb's Cleanup closes it.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{target: target, ln: ln, done: make(chan struct{}), conns: make(map[net.Conn]bool)}
	p.wg.Go(p.accept)
	tb.Cleanup(p.Close)
	return p
}

// Addr is the host:port to connect to.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close cuts all connections, forgets requests that are still to be delivered and returns when all goroutines have
// ended. Closing again does nothing.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
		p.ln.Close()
		for conn := range p.conns {
			conn.Close()
		}
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// Delay delivers each reply d after the server gave it. Replies given together arrive together.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// DropReplies throws the next n replies away and closes the client's connection in their place, so that the rest of
// a pipeline goes with it. The scripts have run.
func (p *Proxy) DropReplies(n int) { p.set(func() { p.drop = n }) }

// HangReplies throws the next n replies away and keeps the client's connection open and silent for ever: the client
// runs into its time-out. The scripts have run.
func (p *Proxy) HangReplies(n int) { p.set(func() { p.hang = n }) }

// Duplicate sends the next n scripts to the server twice. The client gets the first reply of each.
func (p *Proxy) Duplicate(n int) { p.set(func() { p.duplicate = n }) }

// LateRequests closes the client's connection instead of delivering a request, and delivers it d later. It does so n
// times; a pipeline is late from its first script on and counts as one.
func (p *Proxy) LateRequests(n int, d time.Duration) { p.set(func() { p.late, p.lateBy = n, d }) }

// BlackHole switches on or off that connections are accepted and read, but nothing passes either way. A connection
// that has lost something stays silent for ever, since its replies would no longer fit its requests.
func (p *Proxy) BlackHole(on bool) { p.set(func() { p.blackHole = on }) }

// Refuse switches on or off that new connections are closed at once. Others are not affected.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Cut closes all clients' connections.
func (p *Proxy) Cut() {
	p.set(func() {
		for conn, client := range p.conns {
			if client {
				conn.Close()
			}
		}
	})
}

// Requests counts the scripts that clients asked for, each command of a pipeline by itself, and EVALSHA and the EVAL
// after a NOSCRIPT as two.
func (p *Proxy) Requests() int64 { return p.requests.Load() }

// RoundTrips counts what clients sent in one go with at least one script in it. A pipeline is one if it fits the
// client's write buffer, 32 KiB by default in go-redis.
func (p *Proxy) RoundTrips() int64 { return p.roundTrips.Load() }

func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// take uses up one of *n, which p.mu guards.
func (p *Proxy) take(n *int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *n <= 0 {
		return false
	}
	*n--
	return true
}

func (p *Proxy) armed(n *int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *n > 0
}

func (p *Proxy) swallowing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blackHole
}

// track makes Close close conn. It reports false, and closes conn, if Close came first.
func (p *Proxy) track(conn net.Conn, client bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return false
	}
	p.conns[conn] = client
	return true
}

func (p *Proxy) release(conn net.Conn) {
	conn.Close()
	p.set(func() { delete(p.conns, conn) })
}

func (p *Proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			conn.Close()
			continue
		}
		if p.track(conn, true) {
			p.wg.Go(func() { p.serve(conn) })
		}
	}
}

// serve owns both connections of a link.
func (p *Proxy) serve(client net.Conn) {
	defer p.release(client)
	l := &link{p: p, client: client, out: make(chan delivery, 4096), gone: make(chan struct{})}
	if p.swallowing() {
		// The server is not even dialled: it may be down, which a black hole does not tell.
		l.dead.Store(true)
		l.requests()
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil || !p.track(server, false) {
		return
	}
	defer p.release(server)
	l.server = server
	var wg sync.WaitGroup
	wg.Go(l.replies)
	wg.Go(l.deliver)
	l.requests()
	l.finish()
	wg.Wait()
}

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	p      *Proxy
	client net.Conn
	server net.Conn
	out    chan delivery // to the client, closed after the last reply
	gone   chan struct{} // closed after the last reply
	mute   atomic.Bool   // no reply passes any more
	dead   atomic.Bool   // no request passes any more

	mu       sync.Mutex // guards the fields below
	pending  []pending  // what the server has yet to answer, oldest first
	finished bool       // no request will follow
}

// pending is a request without its reply.
type pending struct {
	script  bool
	swallow bool        // the client does not expect this reply
	probe   chan []byte // gets the reply, if not nil
}

// delivery is a reply on its way to the client.
type delivery struct {
	due   time.Time
	frame []byte // nil: close the client's connection
}

// requests reads what the client sends, until its connection ends.
func (l *link) requests() {
	p := l.p
	br := bufio.NewReaderSize(l.client, 256<<10)
	for {
		batch, err := readBatch(br)
		scripts := int64(0)
		for _, frame := range batch {
			if _, ok := script(frame); ok {
				scripts++
			}
		}
		if scripts > 0 {
			p.requests.Add(scripts)
			p.roundTrips.Add(1)
		}
		if len(batch) > 0 && p.swallowing() {
			l.mute.Store(true)
			l.dead.Store(true)
		}
		if !l.dead.Load() && !l.forward(batch) {
			return
		}
		if err != nil {
			return
		}
	}
}

// readBatch reads the frames that came in one go.
func readBatch(br *bufio.Reader) (batch [][]byte, err error) {
	for {
		frame, err := readFrame(br)
		if err != nil {
			return batch, err
		}
		batch = append(batch, frame)
		if br.Buffered() == 0 {
			return batch, nil
		}
	}
}

// forward sends the batch to the server, and reports false if the link has ended.
func (l *link) forward(batch [][]byte) bool {
	p := l.p
	var buf []byte
	flush := func() bool {
		_, err := l.server.Write(buf)
		buf = buf[:0]
		return err == nil
	}
	for i, frame := range batch {
		sha, ok := script(frame)
		if ok && (p.armed(&p.late) || p.armed(&p.duplicate)) {
			// A fault is not for a script that the server does not know, so ask first.
			if !flush() {
				return false
			}
			known := sha == "" || l.knows(sha)
			switch {
			case known && p.take(&p.late):
				p.mu.Lock()
				d := p.lateBy
				p.mu.Unlock()
				l.mute.Store(true)
				l.client.Close()
				select {
				case <-time.After(d):
				case <-p.done:
					return false
				}
				for _, frame := range batch[i:] {
					l.expect(pending{swallow: true})
					buf = append(buf, frame...)
				}
				flush()
				return false
			case known && p.take(&p.duplicate):
				l.expect(pending{script: true}, pending{swallow: true})
				buf = append(append(buf, frame...), frame...)
				continue
			}
		}
		l.expect(pending{script: ok})
		buf = append(buf, frame...)
	}
	return flush()
}

// knows asks the server for a script.
func (l *link) knows(sha string) bool {
	reply := make(chan []byte, 1)
	l.expect(pending{probe: reply})
	if _, err := fmt.Fprintf(l.server, "*3\r\n$6\r\nSCRIPT\r\n$6\r\nEXISTS\r\n$%d\r\n%s\r\n", len(sha), sha); err != nil {
		return false
	}
	select {
	case r := <-reply:
		return strings.Contains(string(r), ":1")
	case <-l.gone:
		return false
	}
}

func (l *link) expect(ps ...pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, ps...)
}

// answered takes the oldest request off the list; a reply nobody asked for has the zero pending.
func (l *link) answered() (q pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > 0 {
		q, l.pending = l.pending[0], l.pending[1:]
	}
	return q
}

// finish says that no request follows. The connection to the server stays until the last one is answered, for Redis
// drops what it has not read yet from a connection that was reset.
func (l *link) finish() {
	l.mu.Lock()
	l.finished = true
	l.mu.Unlock()
	l.closeIfIdle()
}

func (l *link) closeIfIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finished && len(l.pending) == 0 {
		l.server.Close()
	}
}

// replies reads what the server answers, until its connection ends.
func (l *link) replies() {
	defer close(l.out)
	defer close(l.gone)
	p := l.p
	br := bufio.NewReader(l.server)
	for {
		frame, err := readFrame(br)
		if err != nil {
			return
		}
		var q pending
		if frame[0] != '>' { // a push answers no request
			q = l.answered()
		}
		ran := q.script && !noScript(frame)
		switch {
		case q.probe != nil:
			q.probe <- frame
		case q.swallow || l.mute.Load():
		case ran && p.take(&p.drop):
			l.mute.Store(true) // the rest of a pipeline must not use up another fault
			l.out <- delivery{}
		case ran && p.take(&p.hang):
			// Later replies must not pass either: the client would take them for this one.
			l.mute.Store(true)
		default:
			due := time.Now()
			if q.script {
				p.mu.Lock()
				due = due.Add(p.delay)
				p.mu.Unlock()
			}
			l.out <- delivery{due, frame}
		}
		l.closeIfIdle()
	}
}

// deliver writes to the client, and closes its connection after the last reply.
func (l *link) deliver() {
	lost := false // what follows a lost reply would be taken for it
	for d := range l.out {
		if wait := time.Until(d.due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-l.p.done:
			}
		}
		switch {
		case d.frame == nil:
			l.client.Close()
		case lost || l.p.swallowing():
			lost = true
			l.mute.Store(true)
		default:
			_, _ = l.client.Write(d.frame) // the client may have gone
		}
	}
	// A silent connection does not tell that the server has ended.
	if !l.mute.Load() && !l.p.swallowing() {
		l.client.Close()
	}
}
