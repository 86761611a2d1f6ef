package remote

import (
	"context"
	_ "embed"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

//go:embed fixed_window.lua
var fixedWindowSource string

var fixedWindowScript = newScript(fixedWindowSource)

// FixedWindow admits Rate tokens per Period, counted in windows that begin at whole multiples of Period on the clock
// of the Redis server. It is the cheapest algorithm, and lets up to twice Rate pass around the edge of two windows.
type FixedWindow struct{ Limiter }

// NewFixedWindow returns a FixedWindow. The limit must have Burst == Rate and a Period of whole milliseconds; errors
// wrap limit.ErrInvalid.
func NewFixedWindow(rdb Client, lim limit.Limit, opts Options) (*FixedWindow, error) {
	if err := lim.ValidateWindow(); err != nil {
		return nil, err
	}
	l, err := newLimiter(rdb, lim, opts, fixedWindow{lim})
	if err != nil {
		return nil, err
	}
	return &FixedWindow{l}, nil
}

type fixedWindow struct{ limit limit.Limit }

func (fixedWindow) suffix() string { return "fw1" }

func (m fixedWindow) decide(ctx context.Context, c conn, key string, costs []lease.Run) ([]lease.Paid, error) {
	return decideWindow(ctx, c, fixedWindowScript, key, []any{m.limit.Period.Microseconds(), m.limit.Rate}, m.limit, costs)
}
