package hybrid_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(redistest.M{M: m}) }
