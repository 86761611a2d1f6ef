package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/hybridlimit/hybrid/httplimit"
)

// ByAddr counts calls by the address of the client: ByAddrOf(httplimit.Addr{Trusted: trusted}). Without arguments that is
// the TCP peer, and no metadata is believed.
func ByAddr(trusted ...netip.Prefix) KeyFunc { return ByAddrOf(httplimit.Addr{Trusted: trusted}) }

// ByAddrOf counts calls by the address that a finds, with metadata in the place of headers: "addr:192.0.2.1" or
// "addr:2001:db8:1:2::/64", the same keys as those of httplimit. A peer without an IP address, as on a Unix socket or in
// memory, has no key.
func ByAddrOf(a httplimit.Addr) KeyFunc {
	if a.Header == "" {
		a.Header = "X-Forwarded-For"
	}
	return func(ctx context.Context, _ Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", fmt.Errorf("%w: it has no peer", ErrNoKey)
		}
		// A client of a Unix socket may give its own end a name that reads like an IP address.
		if strings.HasPrefix(p.Addr.Network(), "unix") {
			return "", fmt.Errorf("%w: its peer is at a Unix socket", ErrNoKey)
		}
		r := http.Request{RemoteAddr: p.Addr.String()}
		if len(a.Trusted) > 0 {
			r.Header = http.Header{http.CanonicalHeaderKey(a.Header): metadata.ValueFromIncomingContext(ctx, strings.ToLower(a.Header))}
		}
		key, err := a.Key(&r)
		if errors.Is(err, httplimit.ErrNoKey) {
			return "", fmt.Errorf("%w: its peer has no IP address", ErrNoKey)
		}
		return key, err
	}
}
