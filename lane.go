package hybrid

import (
	"sync"

	"github.com/hybridlimit/hybrid/limit"
)

// lane is the way to one server. Requests that take it share their fate with each other and with no others: in a cluster
// one server that hangs must neither hold up the keys of the others nor have them decided by the failure policy.
type lane struct {
	pipeline
	outage
}

// laner is a lease.Source that knows which keys go to the same server, as that of package remote does.
type laner interface {
	Lane(key string) string
}

// lanes are those that were taken so far.
type lanes struct {
	mu  sync.RWMutex
	all map[string]*lane
}

// lane is that of a key.
func (l *Limiter) lane(key string) *lane {
	name := ""
	if s, ok := l.source.(laner); ok {
		name = s.Lane(key)
	}
	l.lanes.mu.RLock()
	w := l.lanes.all[name]
	l.lanes.mu.RUnlock()
	if w != nil {
		return w
	}
	l.lanes.mu.Lock()
	defer l.lanes.mu.Unlock()
	if w = l.lanes.all[name]; w == nil {
		w = &lane{pipeline{source: l.source, timeout: l.opts.Timeout}, outage{limiter: l, name: name}}
		if l.lanes.all == nil {
			l.lanes.all = make(map[string]*lane)
		}
		l.lanes.all[name] = w
	}
	return w
}

// each calls f for all lanes.
func (l *lanes) each(f func(*lane)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, w := range l.all {
		f(w)
	}
}

// forgot notes that the table has forgotten a key.
func (l *lanes) forgot() {
	l.each(func(w *lane) {
		if w.failing.Load() {
			w.evicted.Store(true)
		}
	})
}

// unavailable reports whether one of the servers is not asked, and the last failure.
func (l *lanes) unavailable() (open bool, err error) {
	l.each(func(w *lane) {
		cause, isOpen := w.cause(), w.open.Load()
		if cause != limit.ErrUnavailable && (err == nil || isOpen) {
			err = cause
		}
		open = open || isOpen
	})
	return open, err
}
