package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// instance is one server of the API, with a limiter of its own. All that it shares with the others is in Redis.
type instance struct {
	rdb     *redis.Client
	limiter *hybrid.Limiter
	server  *http.Server
	ln      net.Listener
}

// newInstance listens, but does not serve yet. close must follow.
func newInstance(listen, redisAddr string, lim limit.Limit, stderr io.Writer) (*instance, error) {
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: redisAddr}))
	limiter, err := hybrid.New(rdb, lim, hybrid.Options{Prefix: "example-http:", Logger: slog.New(slog.NewTextHandler(stderr, nil))})
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	i := &instance{rdb: rdb, limiter: limiter}
	api, err := newAPI(limiter, lim)
	if err == nil {
		i.server = &http.Server{Handler: api, ReadHeaderTimeout: 5 * time.Second}
		i.ln, err = net.Listen("tcp", listen)
	}
	if err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

// base is the URL at which it serves.
func (i *instance) base() string {
	return "http://" + strings.Replace(i.ln.Addr().String(), "127.0.0.1", "localhost", 1)
}

// serve serves until ctx ends, and lets requests in flight end.
func (i *instance) serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- i.server.Serve(i.ln) }() // ends with Shutdown
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := i.server.Shutdown(ending)
	<-failed
	return err
}

// close gives unspent tokens back.
func (i *instance) close() {
	if i.ln != nil {
		_ = i.ln.Close() // of one that did not come to serve; else it is closed already
	}
	_ = i.limiter.Close(context.Background()) // if it fails the tokens come back when the leases end
	_ = i.rdb.Close()
}
