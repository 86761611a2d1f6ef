package fleet

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would report the connections that faults break
	goleak.VerifyTestMain(redistest.M{M: m})
}
