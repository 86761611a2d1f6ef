package httplimit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

var trusted = netip.MustParsePrefix("10.0.0.0/8")

// keyOf is the key of a request from a peer with lines of X-Forwarded-For.
func keyOf(t testing.TB, key httplimit.KeyFunc, peer string, lines ...string) string {
	t.Helper()
	r := request("GET", "/")
	r.RemoteAddr = peer
	if lines != nil {
		r.Header["X-Forwarded-For"] = lines
	}
	k, err := key(r)
	if err != nil {
		t.Errorf("peer %s, %q: %v", peer, lines, err)
	}
	return k
}

func TestIP01_OnlyTrustedProxiesAreBelieved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		key    httplimit.KeyFunc
		peer   string
		header func(i int) string
		want   string
	}{
		{"nobody is trusted", nil, "10.0.0.1:80", func(i int) string { return fmt.Sprintf("1.1.1.%d", i) }, "addr:10.0.0.1"},
		{"behind a proxy", httplimit.ByAddr(trusted), "10.0.0.1:80", func(i int) string { return fmt.Sprintf("1.1.1.%d, 203.0.113.9", i) }, "addr:203.0.113.9"},
		{"a proxy without the header", httplimit.ByAddr(trusted), "10.0.0.1:80", func(int) string { return "" }, "addr:10.0.0.1"},
		{"past the proxy", httplimit.ByAddr(trusted), "198.51.100.7:80", func(i int) string { return fmt.Sprintf("1.1.1.%d", i) }, "addr:198.51.100.7"},
	} {
		s := newSite(t, bucket(t, newClock(), limit.PerMinute(3)), httplimit.Options{Key: tt.key})
		for i := range 10 {
			headers := []string{"X-Forwarded-For: " + tt.header(i)}
			if tt.header(i) == "" {
				headers = nil
			}
			s.from(tt.peer, headers...)
		}
		if got := s.served.Load(); got != 3 {
			t.Errorf("%s: %d of 10 served, want 3", tt.name, got)
		}
		key := tt.key
		if key == nil {
			key = httplimit.ByAddr()
		}
		if got := keyOf(t, key, tt.peer, tt.header(0)); got != tt.want {
			t.Errorf("%s: key %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestIP02_MappedIPv4(t *testing.T) {
	for peer, want := range map[string]string{
		"[::ffff:1.2.3.4]:80":              "addr:1.2.3.4",
		"[::ffff:102:304]:80":              "addr:1.2.3.4",
		"[::ffff:102:304%eth0]:80":         "addr:1.2.3.4",
		"1.2.3.4:80":                       "addr:1.2.3.4",
		"[::ffff:9.9.9.9]:80":              "addr:9.9.9.9",
		"[2001:db8:1234:5678::1.2.3.4]:80": "addr:2001:db8:1234:5678::/64",
		"[2001:db8:1234:5678::102:304]:80": "addr:2001:db8:1234:5678::/64",
	} {
		if got := keyOf(t, httplimit.ByAddr(), peer); got != want {
			t.Errorf("%s: key %q, want %q", peer, got, want)
		}
	}
	// A proxy that is named or seen in mapped form.
	mapped := netip.MustParsePrefix("::ffff:10.0.0.0/104")
	for _, peer := range []string{"10.9.9.9:80", "[::ffff:10.9.9.9]:80"} {
		for _, p := range []netip.Prefix{trusted, mapped} {
			if got := keyOf(t, httplimit.ByAddr(p), peer, "::ffff:203.0.113.9"); got != "addr:203.0.113.9" {
				t.Errorf("proxy %s of %s: key %q", peer, p, got)
			}
		}
	}
}

func TestIP03_IPv6ByNetwork(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	host := func() string {
		return fmt.Sprintf("[2001:db8:1:2:%x:%x:%x:%x]:443", rnd.IntN(1<<16), rnd.IntN(1<<16), rnd.IntN(1<<16), rnd.IntN(1<<16))
	}
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(5)), httplimit.Options{})
	for range 100 {
		s.from(host())
	}
	if got := s.served.Load(); got != 5 {
		t.Errorf("%d of 100 of one network served, want 5", got)
	}
	for range 5 {
		want(t, s.from("[2001:db8:1:3::1]:443"), 200)
	}
	for bits, want := range map[int]string{
		48: "addr:2001:db8:1::/48", 56: "addr:2001:db8:1::/56", 0: "addr:2001:db8:1:2::/64", -1: "addr:2001:db8:1:2::/64", 129: "addr:2001:db8:1:2::/64",
		128: "addr:2001:db8:1:2::5/128",
	} {
		key := httplimit.Addr{IPv6Bits: bits}.Key
		if got := keyOf(t, key, "[2001:db8:1:2::5]:443"); got != want {
			t.Errorf("%d bits: key %q, want %q", bits, got, want)
		}
		if got := keyOf(t, key, "192.0.2.7:443"); got != "addr:192.0.2.7" {
			t.Errorf("%d bits: key of an IPv4 address %q", bits, got)
		}
	}
}

func TestIP04_TranslatedAddresses(t *testing.T) {
	together := httplimit.Addr{NAT64: []netip.Prefix{}}.Key
	own := httplimit.Addr{NAT64: []netip.Prefix{netip.MustParsePrefix("2001:db8:64::/96"), netip.MustParsePrefix("2001:db8::/32")}}.Key
	for _, tt := range []struct {
		key        httplimit.KeyFunc
		peer, want string
	}{
		{httplimit.ByAddr(), "[64:ff9b::808:808]:80", "addr:8.8.8.8"},
		{httplimit.ByAddr(), "[64:ff9b::909:909]:80", "addr:9.9.9.9"},
		{together, "[64:ff9b::808:808]:80", "addr:64:ff9b::/64"},
		{together, "[64:ff9b::909:909]:80", "addr:64:ff9b::/64"},
		{own, "[2001:db8:64::808:808]:80", "addr:8.8.8.8"},
		{own, "[2001:db8:65::808:808]:80", "addr:2001:db8:65::/64"}, // the /32 is no length that is known
		{own, "[64:ff9b::909:909]:80", "addr:64:ff9b::/64"},
		{httplimit.ByAddr(), "[::1]:80", "addr:::/64"},
		{httplimit.ByAddr(), "[fe80::1]:80", "addr:fe80::/64"},
		{httplimit.ByAddr(), "[fe80::1%eth0]:80", "addr:fe80::/64"},
		{httplimit.ByAddr(), "[::]:80", "addr:::/64"},
	} {
		if got := keyOf(t, tt.key, tt.peer); got != tt.want {
			t.Errorf("%s: key %q, want %q", tt.peer, got, tt.want)
		}
	}
}

func TestIP05_PortsMakeNoKeys(t *testing.T) {
	s := newSite(t, bucket(t, newClock(), limit.PerMinute(2)), httplimit.Options{})
	for _, host := range []string{"192.0.2.1", "[2001:db8::1]"} {
		before := s.served.Load()
		for port := range 10 {
			s.from(fmt.Sprintf("%s:%d", host, 1000+port))
		}
		if got := s.served.Load() - before; got != 2 {
			t.Errorf("%s: %d of 10 served, want 2", host, got)
		}
	}
}

// TestWalk goes through X-Forwarded-For behind trusted proxies in 10.0.0.0/8 and 2001:db8:aa::/48.
func TestWalk(t *testing.T) {
	key := httplimit.ByAddr(trusted, netip.MustParsePrefix("2001:db8:aa::/48"))
	for _, tt := range []struct {
		lines []string
		want  string
	}{
		{[]string{"203.0.113.9"}, "203.0.113.9"},
		{[]string{"203.0.113.9,10.0.0.2"}, "203.0.113.9"},
		{[]string{" 203.0.113.9 ,\t10.0.0.2 "}, "203.0.113.9"},
		{[]string{"203.0.113.9, 10.0.0.2, 2001:db8:aa::1, [2001:db8:aa::2]:8080"}, "203.0.113.9"},
		{[]string{"6.6.6.6, 203.0.113.9, 10.0.0.2"}, "203.0.113.9"}, // what the client wrote
		{[]string{"10.0.0.9, 203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		// Several lines are one list.
		{[]string{"6.6.6.6", "203.0.113.9"}, "203.0.113.9"},
		{[]string{"203.0.113.9", "10.0.0.2"}, "203.0.113.9"},
		{[]string{"6.6.6.6, 203.0.113.9", "10.0.0.3, 10.0.0.2", "10.0.0.1"}, "203.0.113.9"},
		// Only proxies: the one that is farthest.
		{[]string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{nil, "10.0.0.1"},
		{[]string{}, "10.0.0.1"},
		{[]string{""}, "10.0.0.1"},
		{[]string{"", " , ,"}, "10.0.0.1"},
		{[]string{"203.0.113.9,, ,10.0.0.2,"}, "203.0.113.9"},
		// What is no address ends the walk at the proxy that sent it.
		{[]string{"unknown"}, "10.0.0.1"},
		{[]string{"203.0.113.9, unknown, 10.0.0.2"}, "10.0.0.2"},
		{[]string{"203.0.113.9, 10.0.0.2x"}, "10.0.0.1"},
		{[]string{"203.0.113.9", "_hidden, 10.0.0.5"}, "10.0.0.5"},
		{[]string{"203.0.113.9 10.0.0.2"}, "10.0.0.1"},
		{[]string{"for=203.0.113.9"}, "10.0.0.1"},
		{[]string{"203.0.113.09"}, "10.0.0.1"},
		{[]string{"203.0.113.256"}, "10.0.0.1"},
		{[]string{"203.0.113.9:"}, "10.0.0.1"},
		{[]string{"203.0.113.9:99999"}, "10.0.0.1"},
		{[]string{"203.0.113.9%eth0"}, "10.0.0.1"},
		{[]string{"[2001:db8::1"}, "10.0.0.1"},
		{[]string{"[203.0.113.9"}, "10.0.0.1"},
		{[]string{"\x00"}, "10.0.0.1"},
		{[]string{"\xff, 10.0.0.2"}, "10.0.0.2"},
		// All forms of an address.
		{[]string{"203.0.113.9:4711"}, "203.0.113.9"},
		{[]string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{[]string{"2001:db8::1"}, "2001:db8::/64"},
		{[]string{"2001:DB8:0:0::1"}, "2001:db8::/64"},
		{[]string{"[2001:db8::1]"}, "2001:db8::/64"},
		{[]string{"[2001:db8::1]:4711"}, "2001:db8::/64"},
		{[]string{"fe80::1%eth0"}, "fe80::/64"},
		{[]string{"[fe80::1%25eth0]:4711"}, "fe80::/64"},
		{[]string{"203.0.113.9, ::ffff:10.0.0.2"}, "203.0.113.9"},
	} {
		if got := keyOf(t, key, "10.0.0.1:80", tt.lines...); got != "addr:"+tt.want {
			t.Errorf("%q: key %q, want %q", tt.lines, got, "addr:"+tt.want)
		}
	}
}

func TestClient(t *testing.T) {
	r := request("GET", "/", "CF-Connecting-IP: 2001:db8:1:2:3:4:5:6", "X-Forwarded-For: 6.6.6.6")
	r.RemoteAddr = "10.0.0.1:80"
	got, err := httplimit.Addr{Trusted: []netip.Prefix{trusted}, Header: "cf-connecting-ip"}.Client(r)
	if err != nil || got.String() != "2001:db8:1:2:3:4:5:6" {
		t.Errorf("%v, %v", got, err)
	}
	r.RemoteAddr = "198.51.100.7" // some middlewares drop the port
	if got, err = (httplimit.Addr{Trusted: []netip.Prefix{trusted}}).Client(r); err != nil || got.String() != "198.51.100.7" {
		t.Errorf("%v, %v", got, err)
	}
	if got := keyOf(t, httplimit.ByAddr(netip.Prefix{}), "10.0.0.1:80", "6.6.6.6"); got != "addr:10.0.0.1" {
		t.Errorf("the zero Prefix trusts somebody: %q", got)
	}
}

func TestNoPeer(t *testing.T) {
	for _, peer := range []string{"", "@", "/run/site.sock", "localhost:80", ":80"} {
		r := request("GET", "/", "X-Forwarded-For: 203.0.113.9")
		r.RemoteAddr = peer
		if _, err := httplimit.ByAddr(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))(r); !errors.Is(err, httplimit.ErrNoKey) {
			t.Errorf("peer %q: %v, want ErrNoKey", peer, err)
		}
	}
}

// A header as long as a server takes costs no more than reading it from the right.
func TestHugeForwardedFor(t *testing.T) {
	key := httplimit.ByAddr(trusted)
	const n = 100_000
	spoofed := strings.Repeat("10.0.0.9,", n)
	if got := keyOf(t, key, "10.0.0.1:80", spoofed+"203.0.113.9"); got != "addr:203.0.113.9" {
		t.Errorf("key %q", got)
	}
	if got := keyOf(t, key, "10.0.0.1:80", spoofed); got != "addr:10.0.0.9" {
		t.Errorf("key %q", got)
	}
	if got := keyOf(t, key, "10.0.0.1:80", strings.Repeat(",", n)); got != "addr:10.0.0.1" {
		t.Errorf("key %q", got)
	}
	if got := keyOf(t, key, "10.0.0.1:80", strings.Repeat("1", n)); got != "addr:10.0.0.1" {
		t.Errorf("key %q", got)
	}
	lines := make([]string, n)
	for i := range lines {
		lines[i] = "10.0.0.9"
	}
	if got := keyOf(t, key, "10.0.0.1:80", append([]string{"203.0.113.9"}, lines...)...); got != "addr:203.0.113.9" {
		t.Errorf("key %q", got)
	}

	r := request("GET", "/")
	r.RemoteAddr = "10.0.0.1:80"
	r.Header["X-Forwarded-For"] = []string{spoofed + "203.0.113.9"}
	if allocs := testing.AllocsPerRun(10, func() { _, _ = key(r) }); allocs > 10 {
		t.Errorf("%v allocations, want a few however long the header is", allocs)
	}
}

// naiveClient is the rule of Addr, written the other way round.
func naiveClient(peer netip.Addr, lines []string, trusts func(netip.Addr) bool) netip.Addr {
	hops := []netip.Addr{} // from the left; the zero Addr is no address
	for entry := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		if entry = strings.Trim(entry, " \t"); entry != "" {
			host := entry
			if withPort, err := netip.ParseAddrPort(entry); err == nil {
				host = withPort.Addr().String()
			} else if strings.HasPrefix(entry, "[") && strings.HasSuffix(entry, "]") {
				host = entry[1 : len(entry)-1]
			}
			addr, _ := netip.ParseAddr(host)
			hops = append(hops, addr.WithZone("").Unmap())
		}
	}
	hops = append(hops, peer)
	at := len(hops) - 1
	for at > 0 && trusts(hops[at]) && hops[at-1].IsValid() {
		at--
	}
	return hops[at]
}

func FuzzClient(f *testing.F) {
	for _, s := range []string{
		"203.0.113.9, 10.0.0.2", "6.6.6.6\n203.0.113.9", "unknown, 10.0.0.2", "[fe80::1%25eth0]:80, 10.0.0.1", "::ffff:10.0.0.1, ,", "\x00\xff", "[10.0.0.1]",
	} {
		f.Add("10.0.0.1:80", s)
		f.Add("[::ffff:10.0.0.1]:80", s)
		f.Add("198.51.100.7:1", s)
	}
	addr := httplimit.Addr{Trusted: []netip.Prefix{trusted}}
	f.Fuzz(func(t *testing.T, peer, text string) {
		r := request("GET", "/")
		r.RemoteAddr = peer
		lines := strings.Split(text, "\n")
		r.Header["X-Forwarded-For"] = lines
		client, err := addr.Client(r)
		if err != nil {
			if !errors.Is(err, httplimit.ErrNoKey) {
				t.Errorf("error %v", err)
			}
			return
		}
		if client.Zone() != "" || client.Is4In6() || !client.IsValid() {
			t.Errorf("client %v is not normal", client)
		}
		r.Header = nil
		alone, err := addr.Client(r)
		if err != nil {
			t.Fatal(err)
		}
		if !trusted.Contains(alone) && client != alone {
			t.Errorf("an untrusted peer %v made itself %v", alone, client)
		}
		if want := naiveClient(alone, lines, trusted.Contains); client != want {
			t.Errorf("peer %q, %q: client %v, want %v", peer, lines, client, want)
		}
		if key, err := addr.Key(r); err != nil || limit.CheckKey(key) != nil {
			t.Errorf("key %q, %v", key, err)
		}
	})
}

// TestUnixPeerHasNoAddress: the client of a Unix socket names its end as it likes, here like the address of a trusted proxy.
func TestUnixPeerHasNoAddress(t *testing.T) {
	t.Chdir(t.TempDir())
	ln, err := net.Listen("unix", "server")
	if err != nil {
		t.Skip("no Unix sockets: ", err)
	}
	errs := make(chan error, 1)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.RemoteAddr != "10.0.0.1:1" {
			t.Errorf("the peer is %q, so the test shows nothing", r.RemoteAddr)
		}
		_, err := httplimit.ByAddr(trusted)(r)
		errs <- err
	}))
	srv.Listener = ln
	srv.Start()
	defer srv.Close()
	conn, err := net.DialUnix("unix", &net.UnixAddr{Name: "10.0.0.1:1", Net: "unix"}, &net.UnixAddr{Name: "server", Net: "unix"})
	if err != nil {
		t.Skip("a client cannot name its end here: ", err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n")
	if err := <-errs; !errors.Is(err, httplimit.ErrNoKey) {
		t.Errorf("error %v", err)
	}
}
