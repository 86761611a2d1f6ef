package httplimit

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/hybridlimit/hybrid/limit"
)

// Options of a Middleware. The zero value is ready to use; New copies and checks them. The functions are called from
// many goroutines.
type Options struct {
	// Key says whom a request is counted for. Default ByAddr(): the address of the TCP peer.
	Key KeyFunc
	// AllowNoKey serves requests for which Key returns ErrNoKey, without any limit. Default: they are refused with 400. To
	// count them otherwise use First.
	AllowNoKey bool
	// Cost is what a request costs in tokens; 0 tells the headers and takes nothing. A negative cost is refused with
	// 400, one above the burst with 413. Default: 1.
	Cost func(r *http.Request) int
	// Skip says which requests are served without being counted and without headers. Default: none.
	Skip func(r *http.Request) bool
	// SkipPaths are paths that are skipped too; one that ends in a slash stands for all below it. A request path with
	// dot segments or empty ones matches none of them, because what serves it may read it as another path. Default: none.
	SkipPaths []string

	// XRateLimit is the form of the X-RateLimit headers. Default XDelta.
	XRateLimit XStyle
	// Dialect is the IETF draft whose RateLimit and RateLimit-Policy fields are sent. Default NoFields: none is.
	Dialect Dialect
	// Policy is the name of the limit in these fields, of printable ASCII characters. Limits that guard the same
	// handlers need different ones. Default "default".
	Policy string
	// Expose names the headers of this package in Access-Control-Expose-Headers, without which a browser hides them
	// from scripts of other origins. Default: it does not.
	Expose bool
	// Jitter adds up to this share of it to Retry-After, at random and in whole seconds, so that clients who were denied
	// together do not come back together: 0.1 makes 30 to 33 of 30. At most 1. Default 0.
	Jitter float64

	// Contact is a URL where users may ask for more; it becomes the member "contact" of the body. Default: none.
	Contact string
	// EditProblem may change the body of an answer, its status included, before it is sent. Default: nothing is changed.
	EditProblem func(r *http.Request, p *Problem)
	// OnLimited answers requests that are denied, for example with something cheaper. All headers are set before,
	// Retry-After and Cache-Control: no-store included; it may change them. Default: a Problem with status 429.
	OnLimited func(w http.ResponseWriter, r *http.Request, res limit.Result)
	// OnError answers requests about which nothing was decided, see Status for the errors; those of Key come as they
	// are. Cache-Control: no-store is set before, and Retry-After if the error tells when to come back, see Status.
	// Default: a Problem with the status that Status gives.
	OnError func(w http.ResponseWriter, r *http.Request, err error)
	// FailOpen serves requests without limit and without headers while the limiter returns limit.ErrUnavailable. A
	// hybrid.Limiter has its own policy, which counts on, and returns it only with FailClosed. Default: they are
	// refused with 503.
	FailOpen bool
}

// complete returns the options with defaults filled in, or an error that wraps limit.ErrInvalid.
func (o Options) complete() (Options, error) {
	bad := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("%w: Options."+format, append([]any{limit.ErrInvalid}, args...)...)
	}
	if o.Key == nil {
		o.Key = ByAddr()
	}
	if o.Policy == "" {
		o.Policy = "default"
	}
	o.SkipPaths = slices.Clone(o.SkipPaths)
	for _, p := range o.SkipPaths {
		if !isClean(p) {
			return bad("SkipPaths: %q is no clean path from the root, so no request matches it", p)
		}
	}
	switch {
	case o.XRateLimit < XDelta || o.XRateLimit > XNone:
		return bad("XRateLimit %d is no style", int(o.XRateLimit))
	case o.Dialect < NoFields || o.Dialect > Draft12:
		return bad("Dialect %d is no dialect", int(o.Dialect))
	case !isPrintable(o.Policy):
		return bad("Policy %q has other than printable ASCII characters", o.Policy)
	case !(o.Jitter >= 0 && o.Jitter <= 1): // also NaN
		return bad("Jitter %v must be 0 to 1", o.Jitter)
	}
	if o.Contact != "" {
		if u, err := url.Parse(o.Contact); err != nil || !u.IsAbs() {
			return bad("Contact %q is no absolute URL", o.Contact)
		}
	}
	return o, nil
}

// skips reports whether r is served without being counted.
func (o Options) skips(r *http.Request) bool {
	for _, p := range o.SkipPaths {
		if r.URL.Path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(r.URL.Path, p) && isClean(r.URL.Path) {
			return true
		}
	}
	return o.Skip != nil && o.Skip(r)
}

// isClean reports whether p is rooted and has no empty or dot segments; a slash at the end is fine.
func isClean(p string) bool {
	clean := path.Clean(p)
	return strings.HasPrefix(p, "/") && (p == clean || clean != "/" && p == clean+"/")
}
