package remote

import (
	"context"
	_ "embed"
	"strconv"

	"github.com/hybridlimit/hybrid/lease"
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
	l, err := newLimiter(rdb, lim, opts, fixedWindow{newWindow("fw1", lim)})
	if err != nil {
		return nil, err
	}
	return &FixedWindow{l}, nil
}

// window is what the window modes share. Their keys are named after the period as well: under one name, limits of
// different periods would end each other's windows.
type window struct {
	limit limit.Limit
	name  string // the suffix
}

func newWindow(version string, lim limit.Limit) window {
	return window{lim, version + ":" + strconv.FormatInt(lim.Period.Milliseconds(), 10)}
}

func (w window) suffix() string { return w.name }

type fixedWindow struct{ window }

func (m fixedWindow) decide(ctx context.Context, c conn, key string, costs []lease.Run) ([]lease.Paid, error) {
	return decideWindow(ctx, c, fixedWindowScript, key, []any{m.limit.Period.Microseconds(), m.limit.Rate}, m.limit, costs)
}
