package page

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
)

// endpoints are all that pages of others must not reach. What is refused is refused before it is read.
var endpoints = []struct{ method, path string }{
	{"POST", "/api/check"}, {"POST", "/api/start"}, {"POST", "/api/stop"}, {"POST", "/api/fault"},
	{"GET", "/api/events"}, {"GET", "/export/hybridlab.json"}, {"GET", "/export/hybridlab.html"},
}

func TestOtherOriginsAreRefused(t *testing.T) {
	st := newStage()
	b := open(t, st)
	for _, e := range endpoints {
		for name, header := range map[string][]string{
			"another site, says the browser":     {"Sec-Fetch-Site", "cross-site"},
			"another port, says the browser":     {"Sec-Fetch-Site", "same-site"},
			"another site, by its origin":        {"Origin", "https://example.com"},
			"another port, by its origin":        {"Origin", "http://127.0.0.1:1"},
			"an origin that is none":             {"Origin", "null"},
			"a link of another site, no origin":  {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"},
			"both, of which one would be enough": {"Sec-Fetch-Site", "cross-site", "Origin", "http://" + b.host},
		} {
			if status, text, _ := b.do(e.method, e.path, `[{}]`, header...); status != http.StatusForbidden || !strings.Contains(text, "other origins") {
				t.Errorf("%s %s, %s: %d %s", e.method, e.path, name, status, text)
			}
		}
	}
	if len(st.runs) != 0 {
		t.Error("another origin has started a run")
	}
	// The page itself, and what has no browser.
	b.want(200, "POST", "/api/check", `{}`, "Sec-Fetch-Site", "same-origin", "Origin", "http://"+b.host)
	b.want(200, "POST", "/api/check", `{}`)
	b.want(404, "GET", "/export/hybridlab.json", "", "Sec-Fetch-Site", "none") // typed into the address line
	b.want(200, "GET", "/", "", "Sec-Fetch-Site", "cross-site")                // a link to the lab
}

// TestForeignHostsAreRefused: to a browser, a name that points to 127.0.0.1 is an origin like others, and whoever owns
// the name may read what it answers.
func TestForeignHostsAreRefused(t *testing.T) {
	b := open(t, newStage())
	_, port, _ := net.SplitHostPort(b.host)
	paths := append([]struct{ method, path string }{{"GET", "/"}, {"GET", "/assets/lab.js"}}, endpoints...)
	for _, e := range paths {
		for _, host := range []string{
			"example.com", "example.com:" + port, "localhost.example.com:" + port, "127.0.0.1.example.com", "10.1.2.3:" + port, "192.0.2.1",
			"[2001:db8::1]:" + port, "localhost.", "0.0.0.0:" + port,
		} {
			if status, text, _ := b.do(e.method, e.path, `{}`, "Host", host); status != http.StatusForbidden || !strings.Contains(text, "host name") {
				t.Errorf("%s %s of %s: %d %s", e.method, e.path, host, status, text)
			}
		}
	}
	for _, host := range []string{"localhost", "LOCALHOST:" + port, "127.0.0.1:" + port, "127.0.0.2", "[::1]:" + port, "[::1]"} {
		b.want(200, "GET", "/", "", "Host", host)
	}
}

// TestTheAddressThatWasListenedOn is a Host as well, when it is no loopback address.
func TestTheAddressThatWasListenedOn(t *testing.T) {
	ask := func(local, host string) bool {
		r, err := http.NewRequest("GET", "http://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		addr, err := net.ResolveTCPAddr("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		return knownHost(r.WithContext(contextWithLocal(t, addr)))
	}
	for _, c := range []struct {
		local, host string
		want        bool
	}{
		{"192.0.2.7:80", "192.0.2.7:80", true},
		{"192.0.2.7:80", "192.0.2.8:80", false},
		{"[::ffff:192.0.2.7]:80", "192.0.2.7", true},
		{"[2001:db8::7]:80", "[2001:db8::7]:80", true},
		{"192.0.2.7:80", "lab.example.com", false},
	} {
		if got := ask(c.local, c.host); got != c.want {
			t.Errorf("at %s, Host %s: %v", c.local, c.host, got)
		}
	}
}

func TestPolicy(t *testing.T) {
	b := open(t, newStage())
	for _, path := range []string{"/", "/assets/lab.js", "/nothing", "/export/hybridlab.json"} {
		_, _, h := b.do("GET", path, "")
		csp := h.Get("Content-Security-Policy")
		if !strings.Contains(csp, "script-src 'self';") || !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", path, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("%s: headers %v", path, h)
		}
	}
	page := b.want(200, "GET", "/", "")
	if strings.Contains(page, "<script>") || strings.Contains(page, "onclick") {
		t.Error("the page has scripts that its policy forbids")
	}
}

func contextWithLocal(t *testing.T, addr net.Addr) context.Context {
	return context.WithValue(t.Context(), http.LocalAddrContextKey, addr)
}
