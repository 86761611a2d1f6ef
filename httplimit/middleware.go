package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// Middleware limits the requests to HTTP handlers. It keeps nothing of a request, so one may serve any number of
// handlers; they then share the limits. It is safe for concurrent use and must be made by New.
type Middleware struct {
	limiter limit.Limiter
	limits  limit.Describer // nil if the limiter is none
	opts    Options
	headers headers
}

// New returns a Middleware that asks l about each request. Errors wrap limit.ErrInvalid.
//
// If l is a limit.Describer, as all limiters of this module are, its limits are told in the headers; else only what is in
// a limit.Result.
func New(l limit.Limiter, opts Options) (*Middleware, error) {
	if isNil(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", limit.ErrInvalid)
	}
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	m := &Middleware{limiter: l, opts: opts, headers: newHeaders(opts)}
	m.limits, _ = l.(limit.Describer)
	return m, nil
}

// isNil also finds a nil pointer in a limiter that is not nil itself.
func isNil(l limit.Limiter) bool {
	v := reflect.ValueOf(l)
	return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Handler returns a handler that passes the requests which are admitted on to next, and answers the others itself. As a
// value, m.Handler is a middleware in the usual form.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.Admit(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

// Admit decides about r, for frameworks whose handlers have another form. If it returns true the headers of w are set and
// the caller has to serve the request; if false, w has been answered.
func (m *Middleware) Admit(w http.ResponseWriter, r *http.Request) bool {
	if m.opts.skips(r) {
		return true
	}
	m.headers.expose(w.Header())
	key, err := m.opts.Key(r)
	if err == nil && key == "" {
		err = ErrNoKey
	}
	if err != nil {
		if m.opts.AllowNoKey && errors.Is(err, ErrNoKey) {
			return true
		}
		m.fail(w, r, err)
		return false
	}
	cost := 1
	if m.opts.Cost != nil {
		cost = m.opts.Cost(r)
	}
	res, err := m.limiter.AllowN(r.Context(), key, cost)
	if err != nil {
		if m.opts.FailOpen && errors.Is(err, limit.ErrUnavailable) {
			return true
		}
		m.fail(w, r, err)
		return false
	}
	var lim limit.Limit // the zero Limit where it is not known
	if m.limits != nil {
		lim = m.limits.LimitOf(key)
	}
	m.headers.set(w.Header(), lim, res)
	if !res.Allowed {
		m.deny(w, r, res)
	}
	return res.Allowed
}

// deny answers a request that was denied.
func (m *Middleware) deny(w http.ResponseWriter, r *http.Request, res limit.Result) {
	wait := max(1, seconds(res.RetryAfter)) // a client that is told 0 comes back at once
	if res.RetryAfter != limit.Never {
		wait = m.headers.retryAfter(w.Header(), wait)
	}
	noStore(w.Header())
	if m.opts.OnLimited != nil {
		m.opts.OnLimited(w, r, res)
		return
	}
	p := m.problem(http.StatusTooManyRequests)
	p.Detail = fmt.Sprintf("Too many requests. Try again in %s.", plural(wait, "second"))
	if res.RetryAfter == limit.Never {
		p.Detail = "This request is not allowed, and waiting does not change that."
	}
	if m.opts.Dialect != NoFields {
		p.Type = typeQuotaExceeded
		p.ViolatedPolicies = []string{m.opts.Policy}
	}
	m.write(w, r, p)
}

// fail answers a request about which nothing was decided.
func (m *Middleware) fail(w http.ResponseWriter, r *http.Request, err error) {
	var known interface{ RetryAfter() time.Duration }
	if errors.As(err, &known) && known.RetryAfter() != limit.Never {
		m.headers.retryAfter(w.Header(), max(1, seconds(known.RetryAfter())))
	}
	noStore(w.Header())
	if m.opts.OnError != nil {
		m.opts.OnError(w, r, err)
		return
	}
	p := m.problem(Status(err))
	p.Detail = explain(err)
	if p.Status == http.StatusServiceUnavailable && m.opts.Dialect != NoFields {
		p.Type = typeReducedCapacity
	}
	m.write(w, r, p)
}

func (m *Middleware) problem(status int) Problem {
	return Problem{Title: http.StatusText(status), Status: status, Contact: m.opts.Contact}
}

func (m *Middleware) write(w http.ResponseWriter, r *http.Request, p Problem) {
	if m.opts.EditProblem != nil {
		m.opts.EditProblem(r, &p)
	}
	p.Write(w)
}

// noStore keeps an answer that is meant for one moment out of caches, also where something outside has set how long
// answers may be kept.
func noStore(h http.Header) { h.Set("Cache-Control", "no-store") }
