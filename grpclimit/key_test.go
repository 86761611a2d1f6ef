package grpclimit_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

// incoming is the context of a call from a peer, nil for none, with metadata given as name, value, name, value.
func incoming(from net.Addr, md ...string) context.Context {
	ctx := context.Background()
	if from != nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: from})
	}
	return metadata.NewIncomingContext(ctx, metadata.Pairs(md...))
}

func tcp(addr string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)) }

// named is an address of a listener in memory.
type named struct{ network, name string }

func (n named) Network() string { return n.network }
func (n named) String() string  { return n.name }

func TestKeys(t *testing.T) {
	call := grpclimit.Call{Method: "/pkg.Service/Method"}
	proxy := netip.MustParsePrefix("10.0.0.0/8")
	byKey, byAddr := grpclimit.ByMetadata("X-Api-Key"), grpclimit.ByAddr()
	none := grpclimit.By("none", func(context.Context, grpclimit.Call) (string, error) { return "", nil })
	user := grpclimit.By("user", func(context.Context, grpclimit.Call) (string, error) { return "127.0.0.1", nil })
	bare := func(context.Context, grpclimit.Call) (string, error) { return "", nil }
	for _, tt := range []struct {
		what string
		key  grpclimit.KeyFunc
		ctx  context.Context
		want string
		err  error
	}{
		{"IPv4", byAddr, incoming(tcp("192.0.2.1:1234")), "addr:192.0.2.1", nil},
		{"mapped", byAddr, incoming(tcp("[::ffff:192.0.2.1]:1234")), "addr:192.0.2.1", nil},
		{"IPv6", byAddr, incoming(tcp("[2001:db8:1:2:3::4]:1234")), "addr:2001:db8:1:2::/64", nil},
		{"a zone", byAddr, incoming(tcp("[fe80::1%eth0]:1234")), "addr:fe80::/64", nil},
		{"NAT64", byAddr, incoming(tcp("[64:ff9b::192.0.2.1]:1234")), "addr:192.0.2.1", nil},
		{"a header of a stranger", byAddr, incoming(tcp("192.0.2.1:1"), "x-forwarded-for", "198.51.100.7"), "addr:192.0.2.1", nil},
		{"a header past the proxy", grpclimit.ByAddr(proxy), incoming(tcp("192.0.2.1:1"), "x-forwarded-for", "198.51.100.7"), "addr:192.0.2.1", nil},
		{"a header of the proxy", grpclimit.ByAddr(proxy), incoming(tcp("10.0.0.1:1"), "x-forwarded-for", "6.6.6.6", "x-forwarded-for", "198.51.100.7, 10.0.0.2"), "addr:198.51.100.7", nil},
		{"another header", grpclimit.ByAddrOf(httplimit.Addr{Trusted: []netip.Prefix{proxy}, Header: "X-Real-IP", IPv6Bits: 56}),
			incoming(tcp("10.0.0.1:1"), "x-real-ip", "2001:db8:1:203::7"), "addr:2001:db8:1:200::/56", nil},
		{"no peer", byAddr, incoming(nil), "", grpclimit.ErrNoKey},
		{"in memory", byAddr, incoming(named{"bufconn", "bufconn"}), "", grpclimit.ErrNoKey},
		{"a Unix socket", byAddr, incoming(&net.UnixAddr{Net: "unix"}), "", grpclimit.ErrNoKey},
		{"a Unix socket that was given a name", byAddr, incoming(&net.UnixAddr{Net: "unix", Name: "192.0.2.1:1"}), "", grpclimit.ErrNoKey},

		{"metadata", byKey, incoming(nil, "x-api-key", "a:b"), "metadata:x-api-key:a:b", nil},
		{"no metadata", byKey, incoming(nil), "", grpclimit.ErrNoKey},
		{"empty metadata", byKey, incoming(nil, "x-api-key", ""), "", grpclimit.ErrNoKey},
		{"two values", byKey, incoming(nil, "x-api-key", "a", "x-api-key", "b"), "", limit.ErrInvalidKey},
		{"twice the same", byKey, incoming(nil, "x-api-key", "a", "x-api-key", "a"), "", limit.ErrInvalidKey},
		{"the second empty", byKey, incoming(nil, "x-api-key", "a", "x-api-key", ""), "", limit.ErrInvalidKey},

		{"method", grpclimit.ByMethod(), incoming(nil), "method:/pkg.Service/Method", nil},
		{"a user like an address", user, incoming(nil), "user:127.0.0.1", nil},
		{"no user", none, incoming(nil), "", grpclimit.ErrNoKey},
		{"a bad kind", grpclimit.By("a:b", nil), incoming(nil), "", limit.ErrInvalid},
		{"no kind", grpclimit.By("", nil), incoming(nil), "", limit.ErrInvalid},

		{"both", grpclimit.Join(byAddr, grpclimit.ByMethod()), incoming(tcp("192.0.2.1:1")), "14:addr:192.0.2.126:method:/pkg.Service/Method", nil},
		{"one missing", grpclimit.Join(byAddr, none), incoming(tcp("192.0.2.1:1")), "", grpclimit.ErrNoKey},
		{"one empty", grpclimit.Join(byAddr, bare), incoming(tcp("192.0.2.1:1")), "", grpclimit.ErrNoKey},
		{"the first", grpclimit.First(byKey, byAddr), incoming(tcp("192.0.2.1:1"), "x-api-key", "a"), "metadata:x-api-key:a", nil},
		{"the second", grpclimit.First(byKey, bare, byAddr), incoming(tcp("192.0.2.1:1")), "addr:192.0.2.1", nil},
		{"a bad first", grpclimit.First(byKey, byAddr), incoming(tcp("192.0.2.1:1"), "x-api-key", "a", "x-api-key", "b"), "", limit.ErrInvalidKey},
		{"neither", grpclimit.First(byKey, byAddr), incoming(nil), "", grpclimit.ErrNoKey},
		{"a hash", grpclimit.Hash(byKey), incoming(nil, "x-api-key", "abc"), "sha256:sru4qaKQbcxMWvLuBKiJXf_f8BkZM54LnjYVYvCT8ic", nil},
		{"a hash of nothing", grpclimit.Hash(byKey), incoming(nil), "", grpclimit.ErrNoKey},
	} {
		got, err := tt.key(tt.ctx, call)
		if got != tt.want || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: %q, %v; want %q, %v", tt.what, got, err, tt.want, tt.err)
		}
		if err != nil && strings.Contains(err.Error(), "192.0.2.1") {
			t.Errorf("%s: the error holds the key: %v", tt.what, err)
		}
	}
}

func TestKEY01_JoinKeepsPartsApart(t *testing.T) {
	key := grpclimit.Join(grpclimit.ByMetadata("a"), grpclimit.ByMetadata("b"))
	seen := map[string]bool{}
	for _, v := range [][2]string{{"x", "y"}, {"x:metadata:b:y", "z"}, {"x", "y:z"}, {"x:y", "z"}, {"y", "x"}} {
		k, err := key(incoming(nil, "a", v[0], "b", v[1]), grpclimit.Call{})
		if err != nil || seen[k] {
			t.Errorf("%q: %q, %v", v, k, err)
		}
		seen[k] = true
	}
}

// Over the wire: clients are told apart by metadata, and by the address of a real peer.
func TestKeysOfRealCalls(t *testing.T) {
	s := newSite(t, bucket(t, limit.PerMinute(1)), grpclimit.Options{Key: grpclimit.Join(grpclimit.ByAddr(), grpclimit.ByMetadata("user"), grpclimit.ByMethod())})
	for _, call := range calls {
		ctx := soon(t)
		wantCode(t, call(as(ctx, "alice"), s), codes.OK)
		wantCode(t, call(as(ctx, "alice"), s), codes.ResourceExhausted)
		wantCode(t, call(as(ctx, "bob"), s), codes.OK)
		wantCode(t, call(as(as(ctx, "bob"), "carol"), s), codes.InvalidArgument)
		wantCode(t, call(ctx, s), codes.InvalidArgument)
	}
}

func TestPeersWithoutAddress(t *testing.T) {
	for allow, want := range map[bool]codes.Code{false: codes.InvalidArgument, true: codes.OK} {
		limits, err := grpclimit.New(deciding(denied(1), nil), grpclimit.Options{AllowNoKey: allow})
		if err != nil {
			t.Fatal(err)
		}
		ln := bufconn.Listen(1 << 16)
		dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) })
		s := serveOn(t, ln, "passthrough:///memory", limits.ServerOptions(), dial)
		for _, call := range calls {
			wantCode(t, call(soon(t), s), want)
		}
	}
}
