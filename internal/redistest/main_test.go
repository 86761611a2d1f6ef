package redistest

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	ctx   = context.Background()
	start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
)

func TestMain(m *testing.M) {
	if os.Getenv("REDISTEST_CHILD") != "" {
		s, err := Launch()
		if err != nil {
			panic(err)
		}
		fmt.Println(s.Addr())
		io.Copy(io.Discard, os.Stdin) // until killed
		return
	}
	goleak.VerifyTestMain(M{m})
}

// eventually waits for what another process or goroutine is about to do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after 10 s", what)
		}
	}
}
