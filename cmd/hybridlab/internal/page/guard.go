package page

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// policy lets the page load its own files and nothing else, and nobody put it in a frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard keeps other sites, which the same browser has open, away from the lab. It refuses
//   - a Host that is neither localhost nor a loopback address nor the address at which the request came in: a name that
//     somebody else has made point here (DNS rebinding) would make his page one of the same origin;
//   - requests that another origin made, also those that only read, but for the page itself, to which links may lead.
func guard(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !knownHost(r) {
			http.Error(w, "the lab does not answer to this host name; use localhost", http.StatusForbidden)
			return
		}
		if err := cross.Check(unsafe(r)); err != nil && !isPage(r) {
			http.Error(w, "the lab does not answer to other origins", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// unsafe returns r as one that changes something, which CrossOriginProtection looks at closely.
func unsafe(r *http.Request) *http.Request {
	as := *r
	as.Method = http.MethodPost
	return &as
}

func isPage(r *http.Request) bool {
	return r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// knownHost reports whether the Host of r is this machine by a name that nobody else can give to it.
func knownHost(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return false
	}
	addr = addr.Unmap()
	if addr.IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap().WithZone("") == addr.WithZone("")
}
