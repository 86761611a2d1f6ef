package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// once makes a client send each command once.
func once(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }

// hasty is rdb where a time-out is expected.
func hasty(rdb *redis.Client) *redis.Client { return rdb.WithTimeout(200 * time.Millisecond) }

func refused(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		conn.Close()
	}
	return err != nil
}

func TestServer_killAndRestart(t *testing.T) {
	s := Start(t)
	rdb := s.Client(t)
	if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	addr := s.Addr()
	s.Kill()
	s.Kill()
	if !refused(addr) {
		t.Error("a killed server accepts connections")
	}
	s.Restart(t)
	if s.Addr() != addr {
		t.Errorf("Addr after Restart = %s, want %s", s.Addr(), addr)
	}
	if n, err := rdb.Exists(ctx, "k").Result(); n != 0 || err != nil {
		t.Errorf("key after Restart: %d, %v, want 0, nil", n, err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
		t.Errorf("directory after Close: %v", err)
	}
}

func TestServer_pause(t *testing.T) {
	s := Start(t)
	rdb := s.Client(t, once)
	if err := rdb.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	var timeout net.Error
	if err := hasty(rdb).Incr(ctx, "n").Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("Incr while paused: %v, want a time-out", err)
	}
	s.Resume()
	eventually(t, "the request runs after Resume", func() bool { return rdb.Get(ctx, "n").Val() == "1" })
	s.Pause()
	s.Close()
	if !refused(s.Addr()) {
		t.Error("a server closed while paused accepts connections")
	}
}

func TestServer_portInUse(t *testing.T) {
	s := Start(t)
	other := &Server{addr: s.Addr(), dir: t.TempDir()}
	if err := other.start(); !errors.Is(err, errInUse) {
		t.Errorf("start on the port of another server: %v, want errInUse", err)
	}
	if err := ping(s.Addr(), nil, s.proc.cmd.Process.Pid+1); !errors.Is(err, errInUse) {
		t.Errorf("ping of another process: %v, want errInUse", err)
	}
	s.Kill()
	ln, err := net.Listen("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { ln.Close() })
	s.Restart(t)
}

func TestServer_badArgument(t *testing.T) {
	require(t)
	_, err := Launch("--no-such-directive", "1")
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("Launch: %v, want what the server has to say", err)
	}
}

func TestServer_password(t *testing.T) {
	s := Start(t, "--requirepass", "secret")
	if err := s.Client(t).Ping(ctx).Err(); err == nil {
		t.Error("the password was not passed on")
	}
}

// The thread that called Launch may end long before the program does.
func TestServer_outlivesThread(t *testing.T) {
	require(t)
	launched := make(chan *Server)
	go func() {
		runtime.LockOSThread() // and do not unlock: the thread ends with the goroutine
		s, err := Launch()
		if err != nil {
			t.Error(err)
		}
		launched <- s
	}()
	s := <-launched
	defer s.Close()
	time.Sleep(50 * time.Millisecond) // nothing tells when the thread has ended
	if err := s.Client(t).Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
}

func TestServer_diesWithParent(t *testing.T) {
	require(t)
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a process with its parent")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "REDISTEST_CHILD=1", "TMPDIR="+t.TempDir())
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimSpace(line)
	if refused(addr) {
		t.Error("the child's server does not run")
	}
	cmd.Process.Kill()
	cmd.Wait()
	eventually(t, "the server is gone with its parent", func() bool { return refused(addr) })
}

func TestServer_quietClient(t *testing.T) {
	s := Start(t)
	if err := s.Client(t).Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	// Old servers refuse such commands, new ones count them.
	stats := s.Client(t).Info(ctx, "everything").Val()
	if strings.Contains(stats, "cmdstat_client") || !strings.Contains(stats, "total_error_replies:0") {
		t.Errorf("a client sends commands of its own:\n%s", stats)
	}
}

func TestServerGoroutine(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	s := Start(t)
	if err := goleak.Find(ignore, goleak.IgnoreAnyFunction(ServerGoroutine)); err != nil {
		t.Error(err)
	}
	s.Close()
	if err := goleak.Find(ignore); err != nil {
		t.Error(err)
	}
}

// verdict records how a test would end.
type verdict struct {
	testing.TB
	text string
}

func (v *verdict) Skip(args ...any)  { v.text = "skip: " + fmt.Sprint(args...); runtime.Goexit() }
func (v *verdict) Fatal(args ...any) { v.text = "fatal: " + fmt.Sprint(args...); runtime.Goexit() }

func TestStart_missing(t *testing.T) {
	t.Setenv("PATH", "")
	for value, want := range map[string]string{"": "skip: " + missing, "1": "fatal: " + missing} {
		t.Setenv("HYBRID_REQUIRE_REDIS", value)
		v := &verdict{TB: t}
		ended := make(chan bool)
		go func() {
			defer close(ended)
			Start(v)
		}()
		<-ended
		if v.text != want {
			t.Errorf("HYBRID_REQUIRE_REDIS=%q: %s, want %s", value, v.text, want)
		}
	}
	if Available() {
		t.Error("Available without a PATH")
	}
	if _, err := Launch(); err == nil {
		t.Error("Launch without a PATH succeeds")
	}
}
