package main

import (
	"fmt"
	"net/http"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

// newAPI returns the handlers behind the limit.
func newAPI(limiter limit.Limiter, lim limit.Limit) (http.Handler, error) {
	mw, err := httplimit.New(limiter, httplimit.Options{
		// Behind a proxy: httplimit.ByAddr(netip.MustParsePrefix("10.0.0.0/8")).
		Key:       httplimit.ByAddr(),
		Cost:      cost,
		SkipPaths: []string{"/healthz", "/limits"},
		Dialect:   httplimit.Draft11,
		Policy:    "api",
		Contact:   "https://example.com/limits",
	})
	if err != nil {
		return nil, err
	}
	limits, err := httplimit.Publish(httplimit.Published{Name: "api", Limit: lim, About: "requests from each address"})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Hello, %q.\n", r.PathValue("name"))
	})
	mux.HandleFunc("GET /limit", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /limits", limits)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mw.Handler(mux), nil
}

// cost lets clients look at their limit for nothing.
func cost(r *http.Request) int {
	if r.URL.Path == "/limit" {
		return 0
	}
	return 1
}
