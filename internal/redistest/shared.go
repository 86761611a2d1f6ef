package redistest

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// databases is how many tests can use the shared server at the same time. After as many, numbers come again.
const databases = 4096

// shared is the server of [Each], started when first needed. One for all, because a start takes longer than most tests.
var shared struct {
	mu     sync.Mutex // guards the fields below
	server *Server
	next   int // database
}

// database returns a client of an empty database of the shared server.
func database(tb testing.TB) *redis.Client {
	tb.Helper()
	require(tb)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		s, err := Launch("--databases", strconv.Itoa(databases))
		if err != nil {
			tb.Fatal(err)
		}
		// It writes nothing, and without Shutdown nobody would remove the directory.
		os.RemoveAll(s.dir)
		shared.server = s
	}
	db := shared.next % databases
	shared.next++
	rdb := newClient(tb, shared.server.Addr(), func(o *redis.Options) { o.DB = db })
	if err := rdb.FlushDB(context.Background()).Err(); err != nil {
		tb.Fatal(err)
	}
	return rdb
}

// Main runs the tests and then ends the server that they shared:
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
//
// Without it the server ends with the test binary on Linux, and outlives it elsewhere.
func Main(m *testing.M) int {
	defer settle()
	defer Shutdown()
	return m.Run()
}

// settle lets the goroutines of closed clients end, for goleak does not wait long enough: go-redis looks once in a second
// whether a server that was down is back, and sees only then that its client is closed.
func settle() {
	buf := make([]byte, 4<<20)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(poll) {
		if !bytes.Contains(buf[:runtime.Stack(buf, true)], []byte(".(*ConnPool).tryDial(")) {
			return
		}
	}
}

// M is [Main] for goleak, which must look after the shared server has ended:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(redistest.M{M: m}) }
type M struct{ *testing.M }

// Run is [Main].
func (m M) Run() int { return Main(m.M) }

// Shutdown ends the server that [Each] shares. The next Each starts another.
func Shutdown() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		shared.server.Close()
		shared.server = nil
	}
}
