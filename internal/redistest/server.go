package redistest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ServerGoroutine is the function a goroutine is in for as long as a server runs. A leak check in the middle of a
// test binary that shares a server (see [Each]) passes it to goleak.IgnoreAnyFunction.
const ServerGoroutine = "github.com/hybridlimit/hybrid/internal/redistest.(*process).run"

const (
	missing      = "redis-server not found: install it (apt-get install redis-server) to run this test"
	startTimeout = 20 * time.Second
	poll         = 5 * time.Millisecond
)

// Server is a real redis-server on a loopback port, without persistence. It dies with the process that started it on
// Linux; elsewhere it needs Close. The methods are safe for concurrent use.
type Server struct {
	conf []string    // of every start, before all others: a configuration file has to be the first
	args []string    // of every start, after the defaults
	tls  *tls.Config // of clients; nil for a server that speaks in the clear
	dir  string      // working directory and log
	addr string

	mu   sync.Mutex // guards proc
	proc *process   // nil when it does not run
}

// Available reports whether there is a redis-server to start.
func Available() bool {
	_, err := exec.LookPath("redis-server")
	return err == nil
}

// Start starts a server that tb's Cleanup kills, and returns when it answers. The args are those of redis-server. If
// it is not installed, the test is skipped, or fails if HYBRID_REQUIRE_REDIS=1.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	require(tb)
	s := &Server{args: args}
	s.mustLaunch(tb)
	return s
}

// mustLaunch launches the server, which tb's Cleanup kills.
func (s *Server) mustLaunch(tb testing.TB) {
	tb.Helper()
	if err := s.launch(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
}

func require(tb testing.TB) {
	tb.Helper()
	switch {
	case Available():
	case os.Getenv("HYBRID_REQUIRE_REDIS") == "1":
		tb.Fatal(missing)
	default:
		tb.Skip(missing)
	}
}

// Launch is [Start] where there is no test: the caller closes the server.
func Launch(args ...string) (*Server, error) {
	s := &Server{args: args}
	if err := s.launch(); err != nil {
		return nil, err
	}
	return s, nil
}

// launch starts the server in a directory and on a port of its own.
func (s *Server) launch() (err error) {
	if !Available() {
		return errors.New(missing)
	}
	if s.dir, err = os.MkdirTemp("", "redistest"); err != nil {
		return err
	}
	// Another process may take the port between freePort and the server's own listen.
	for range 5 {
		if s.addr, err = freePort(); err != nil {
			break
		}
		if err = s.start(); !errors.Is(err, errInUse) {
			break
		}
	}
	if err != nil {
		os.RemoveAll(s.dir)
	}
	return err
}

// highestPort is that of a server whose cluster bus, 10,000 above, still has a port.
const highestPort = 55535

// freePort is the address of a port that nobody listens on.
func freePort() (string, error) {
	for {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		ln.Close()
		if addr := ln.Addr().(*net.TCPAddr); addr.Port <= highestPort {
			return addr.String(), nil
		}
	}
}

var errInUse = errors.New("redistest: address in use")

// start runs redis-server on s.addr and waits until it answers. It leaves no process behind if it fails.
func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		return errors.New("redistest: the server is already running")
	}
	// A file, because os/exec would copy into anything else from a goroutine of its own.
	logName := filepath.Join(s.dir, "redis.log")
	log, err := os.Create(logName)
	if err != nil {
		return err
	}
	defer log.Close()

	host, port, _ := net.SplitHostPort(s.addr)
	listen := []string{"--bind", host, "--port", port}
	if s.tls != nil {
		listen = []string{"--bind", host, "--port", "0", "--tls-port", port}
	}
	defaults := []string{"--dir", s.dir, "--save", "", "--appendonly", "no", "--daemonize", "no"}
	cmd := exec.Command("redis-server", slices.Concat(s.conf, listen, defaults, s.args)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.SysProcAttr = dieWithParent()
	proc, err := spawn(cmd)
	if err != nil {
		return err
	}
	if err := proc.ready(s.addr, s.tls); err != nil {
		proc.kill()
		text, _ := os.ReadFile(logName)
		if bytes.Contains(text, []byte("Address already in use")) {
			return errInUse
		}
		return fmt.Errorf("redistest: start redis-server: %w\n%s", err, text)
	}
	s.proc = proc
	return nil
}

// Addr is host:port.
func (s *Server) Addr() string { return s.addr }

// Client returns a client of the server that tb's Cleanup closes.
func (s *Server) Client(tb testing.TB, opts ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	secure := func(o *redis.Options) { o.TLSConfig = s.tls }
	return newClient(tb, s.addr, append([]func(*redis.Options){secure}, opts...)...)
}

// newClient leaves out what go-redis says to a server on its own account, so that a new connection costs one round
// trip and a count of commands counts the test's.
func newClient(tb testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{
		Addr:                     addr,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// Kill ends the server as a crash would, and returns when it is gone. Its data are lost.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
		s.proc = nil
	}
}

// Pause stops the server where it stands: connections stay open and are accepted, and nothing is answered until
// [Server.Resume]. What was sent in between then runs. It panics on Windows.
func (s *Server) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		pause(s.proc.cmd.Process)
	}
}

// Resume undoes [Server.Pause].
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		resume(s.proc.cmd.Process)
	}
}

// Restart starts the server again after [Server.Kill], empty and on the same port, and returns when it answers.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	// The port may be in use for a moment, by the local end of somebody's connection.
	deadline := time.Now().Add(startTimeout)
	err := s.start()
	for errors.Is(err, errInUse) && time.Now().Before(deadline) {
		time.Sleep(poll)
		err = s.start()
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Close kills the server, paused or not, and removes its directory. Closing again does nothing.
func (s *Server) Close() error {
	s.Kill()
	return os.RemoveAll(s.dir)
}

// process is one run of redis-server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func spawn(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the process and waits for its end, on one thread: the kernel sends the death signal that
// [dieWithParent] asks for when the thread that forked ends, which may be long before the program does.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = p.cmd.Wait() // killed, as it should be
	close(p.done)
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error says that it has ended already
	<-p.done
}

// ready waits until the process serves addr.
func (p *process) ready(addr string, secure *tls.Config) error {
	deadline := time.After(startTimeout)
	for {
		err := ping(addr, secure, p.cmd.Process.Pid)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return errors.New("it ended at once")
		case <-deadline:
			return fmt.Errorf("not ready after %v: %w", startTimeout, err)
		case <-time.After(poll):
		}
	}
}

// ping succeeds if the server at addr has loaded its data and is the process pid: on a port that another server took
// first, that one would answer as well.
func ping(addr string, secure *tls.Config, pid int) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	if secure != nil {
		conn = tls.Client(conn, secure)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("INFO server\r\nPING\r\n")); err != nil {
		return err
	}
	br := bufio.NewReader(conn)
	info, err := readFrame(br)
	if err != nil {
		return err
	}
	pong, err := readFrame(br)
	if err != nil {
		return err
	}
	if bytes.HasPrefix(info, []byte("-NOAUTH")) {
		return nil // it wants a password and has loaded its data
	}
	if !bytes.Contains(info, fmt.Appendf(nil, "process_id:%d\r\n", pid)) {
		return errInUse
	}
	if got := string(bytes.TrimSpace(pong)); !strings.HasPrefix(got, "+PONG") {
		return errors.New(got)
	}
	return nil
}
