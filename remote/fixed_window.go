package remote

import (
	_ "embed"

	"github.com/hybridlimit/hybrid/limit"
)

//go:embed fixed_window.lua
var fixedWindowSource string

var fixedWindowScript = newScript(fixedWindowSource)

// FixedWindow admits Rate tokens per Period, counted in windows that begin at whole multiples of Period on the clock
// of the Redis server. It is the cheapest algorithm, and lets up to twice Rate pass around the edge of two windows.
//
// A limiter with another Period counts apart, even with the same prefix and key; one with another Rate goes on with
// the count.
type FixedWindow struct{ Limiter }

// NewFixedWindow returns a FixedWindow. The limit must have Burst == Rate and a Period of whole milliseconds; errors
// wrap limit.ErrInvalid.
func NewFixedWindow(rdb Client, lim limit.Limit, opts Options) (*FixedWindow, error) {
	if err := lim.ValidateWindow(); err != nil {
		return nil, err
	}
	l, err := newLimiter(rdb, lim, opts, newWindow("fw1", fixedWindowScript, lim, lim.Period.Microseconds(), lim.Rate))
	if err != nil {
		return nil, err
	}
	return &FixedWindow{l}, nil
}
