// Package page serves the lab to a browser: settings, one run or a comparison of two at a time, and what is seen of it.
package page

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/chart"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

const (
	frame     = 250 * time.Millisecond // between two pictures of a run
	heartbeat = 15 * time.Second       // between two when nothing runs, to find out who has gone
	patience  = 10 * time.Second       // for a request to come, and for an answer to be taken
	goodbye   = 2 * time.Second        // for answers that are under way at the end
	maxBody   = 64 << 10               // bytes of a request
)

//go:embed assets
var files embed.FS

// Serve serves the page on ln, which it closes, until ctx ends; then it stops the run, ends all answers and returns nil.
// It returns early if ln fails. Runs use the limiters of r, which has to stay open. What goes wrong is told to w.
//
// It does not ask who the caller is: whoever reaches ln may start runs. Pages of other origins may not.
func Serve(ctx context.Context, ln net.Listener, r *fleet.Redis, w io.Writer) error {
	return serve(ctx, ln, newLab(func(s scenario.Scenario) (running, error) { return fleet.Start(r, s) }), w)
}

func serve(ctx context.Context, ln net.Listener, l *lab, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer l.close()
	defer cancel()
	srv := &http.Server{
		Handler:           handler(ctx, l),
		ReadHeaderTimeout: patience,
		ReadTimeout:       patience,
		WriteTimeout:      patience, // a stream of events extends it with each of them
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // so that streams end
		ErrorLog:          log.New(w, "hybridlab: ", 0),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	var err error
	select {
	case err = <-failed:
		cancel()
	case <-ctx.Done():
	}
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer stop()
	if srv.Shutdown(late) != nil {
		_ = srv.Close() // whoever has not taken his answer by now does not get it
	}
	if err == nil {
		err = <-failed
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("page: %w", err)
}

// handler returns all that the lab answers. Runs end with ctx.
func handler(ctx context.Context, l *lab) http.Handler {
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	a := api{ctx, l}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", index)
	mux.Handle("GET /assets/", http.StripPrefix("/assets/", http.FileServerFS(assets)))
	mux.HandleFunc("GET /assets/chart.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = io.WriteString(w, chart.CSS)
	})
	mux.HandleFunc("GET /api/events", a.events)
	mux.HandleFunc("POST /api/check", a.check)
	mux.HandleFunc("POST /api/start", a.start)
	mux.HandleFunc("POST /api/stop", a.stop)
	mux.HandleFunc("POST /api/fault", a.fault)
	mux.HandleFunc("GET /export/hybridlab.json", a.exportJSON)
	mux.HandleFunc("GET /export/hybridlab.html", a.exportHTML)
	return guard(mux)
}
