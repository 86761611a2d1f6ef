package redistest

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
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
	logging.Disable() // go-redis writes every failed dial to stderr
	goleak.VerifyTestMain(M{m})
}
