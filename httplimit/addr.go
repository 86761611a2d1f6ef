package httplimit

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Addr finds the address of the client of a request. The zero Addr takes that of the TCP peer and believes no header.
//
// If the peer is a trusted proxy, the addresses in X-Forwarded-For are read from the last to the first, over all lines of
// that name: each proxy adds the address it was called from at the end, so what is on the right was written by the
// nearest. Trusted ones are skipped; the first other one is the client, and what is left of it is his own text and not
// looked at. Where an entry is no address the walk ends, and the client is the last address before it, that of the trusted
// proxy which sent the entry. The same holds where there are only trusted ones.
//
// Zones and ports are dropped, and IPv4 addresses mapped into IPv6 are taken as IPv4.
type Addr struct {
	// Trusted are the networks of your proxies. Name the narrowest: everybody inside can choose an address. Default:
	// none.
	Trusted []netip.Prefix
	// Header is where proxies put addresses. Name another one only if every trusted proxy sets or adds to it. Default
	// "X-Forwarded-For".
	Header string
	// IPv6Bits is the length of the network by which IPv6 clients are counted, 1 to 128; a customer commonly has a
	// network of 64 bits or less, and so 2^64 addresses or more. Default, also for other values: 64.
	IPv6Bits int
	// NAT64 are networks of 96 bits whose addresses carry an IPv4 address in their last 32; these are counted by the
	// IPv4 address. Other lengths are ignored. Default, nil: 64:ff9b::/96. An empty list: none, all of such a network
	// are counted together.
	NAT64 []netip.Prefix
}

// ByAddr counts requests by the address of the client, believing the headers of trusted proxies: Addr{Trusted:
// trusted}.Key.
func ByAddr(trusted ...netip.Prefix) KeyFunc { return Addr{Trusted: trusted}.Key }

// wellKnownNAT64 is that of RFC 6052.
var wellKnownNAT64 = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}

// Key is a KeyFunc: "addr:192.0.2.1" or "addr:2001:db8:1:2::/64". A peer without an IP address, as on a Unix socket, has
// no key.
func (a Addr) Key(r *http.Request) (string, error) {
	client, err := a.Client(r)
	if err != nil {
		return "", err
	}
	nat64 := a.NAT64
	if nat64 == nil {
		nat64 = wellKnownNAT64
	}
	for _, p := range nat64 {
		if p.Bits() == 96 && p.Contains(client) {
			b := client.As16()
			client = netip.AddrFrom4([4]byte(b[12:]))
		}
	}
	if client.Is4() {
		var room [32]byte
		return string(client.AppendTo(append(room[:0], "addr:"...))), nil
	}
	bits := a.IPv6Bits
	if bits < 1 || bits > 128 {
		bits = 64
	}
	network, err := client.Prefix(bits)
	return "addr:" + network.String(), err
}

// Client returns the address of the client, whole. The error wraps ErrNoKey.
func (a Addr) Client(r *http.Request) (netip.Addr, error) {
	client, ok := parsePeer(r.RemoteAddr)
	if !ok || overUnix(r) {
		return netip.Addr{}, fmt.Errorf("%w: its peer has no IP address", ErrNoKey)
	}
	header := a.Header
	if header == "" {
		header = "X-Forwarded-For"
	}
	lines := r.Header.Values(header)
	for i := len(lines) - 1; i >= 0; i-- {
		rest, more := lines[i], true
		for more {
			if !a.trusts(client) {
				return client, nil
			}
			var entry string
			rest, entry, more = cutLast(rest)
			if entry = strings.Trim(entry, " \t"); entry == "" {
				continue // lists in headers may have empty entries (RFC 9110, 5.6.1)
			}
			next, ok := parseAddr(entry)
			if !ok {
				return client, nil
			}
			client = next
		}
	}
	return client, nil
}

// overUnix reports whether r came over a Unix socket, whose client may give its own end a name that reads like an IP
// address.
func overUnix(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && strings.HasPrefix(local.Network(), "unix")
}

// cutLast cuts a list before its last entry; more is whether there are entries before.
func cutLast(list string) (before, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	return list[:max(i, 0)], list[i+1:], i >= 0
}

// parsePeer is parseAddr for what has a port nearly always, which saves the error that it is no bare address.
func parsePeer(s string) (netip.Addr, bool) {
	if peer, err := netip.ParseAddrPort(s); err == nil {
		return peer.Addr().WithZone("").Unmap(), true
	}
	return parseAddr(s)
}

// parseAddr reads an address with or without a port, and an IPv6 address with or without brackets.
func parseAddr(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		var withPort netip.AddrPort
		withPort, err = netip.ParseAddrPort(s)
		addr = withPort.Addr()
	}
	if inner, ok := strings.CutPrefix(s, "["); err != nil && ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			addr, err = netip.ParseAddr(inner)
		}
	}
	return addr.WithZone("").Unmap(), err == nil
}

func (a Addr) trusts(addr netip.Addr) bool {
	for _, p := range a.Trusted {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
