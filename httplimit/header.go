package httplimit

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

// XStyle is the form of the headers X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, for which there is
// no standard.
type XStyle int

const (
	// XDelta: Reset is in how many seconds, rounded up. The default.
	XDelta XStyle = iota
	// XEpoch: Reset is in seconds since 1970, to the nearest, by the clock of the server.
	XEpoch
	// XNone: these headers are not used.
	XNone
)

// Dialect is a version of draft-ietf-httpapi-ratelimit-headers, which is not an RFC yet and has renamed its parameters
// before.
type Dialect int

const (
	// NoFields: RateLimit and RateLimit-Policy are not sent. The default.
	NoFields Dialect = iota
	// Draft11 is the syntax of the drafts 08 (October 2024) to 11 (May 2026):
	//
	//	RateLimit-Policy: "default";q=100;w=60
	//	RateLimit: "default";r=50;t=30
	Draft11
	// Draft12 is the syntax of the editors' text of August 2026, which draft 12 (November 2026) is to have; compare it
	// with the draft before you rely on it:
	//
	//	RateLimit-Policy: "default";q=100;w=60
	//	RateLimit: "default";a=50;w=30
	Draft12
)

// The names as they are in an http.Header, so that setting one need not make its canonical form each time. They are the
// same to all who read them.
const (
	xLimit          = "X-Ratelimit-Limit"
	xRemaining      = "X-Ratelimit-Remaining"
	xReset          = "X-Ratelimit-Reset"
	rateLimit       = "Ratelimit"
	rateLimitPolicy = "Ratelimit-Policy"
)

// headers sets the headers of answers.
type headers struct {
	style     XStyle
	dialect   Dialect
	item      string // the policy as an item of a structured field
	available string // the parameters of RateLimit
	window    string
	exposed   string // "" if nothing is exposed
	jitter    float64
}

func newHeaders(o Options) headers {
	h := headers{style: o.XRateLimit, dialect: o.Dialect, item: quote(o.Policy), available: ";r=", window: ";t=", jitter: o.Jitter}
	if o.Dialect == Draft12 {
		h.available, h.window = ";a=", ";w="
	}
	if o.Expose {
		names := []string{"Retry-After"}
		if o.XRateLimit != XNone {
			names = append(names, "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
		}
		if o.Dialect != NoFields {
			names = append(names, "RateLimit", "RateLimit-Policy")
		}
		h.exposed = strings.Join(names, ", ")
	}
	return h
}

// expose lets scripts of other origins read the headers, where that is wanted.
func (h *headers) expose(to http.Header) {
	if h.exposed != "" {
		to.Add("Access-Control-Expose-Headers", h.exposed)
	}
}

// set tells the result and the limit, which is the zero Limit if it is not known.
//
// Of an unlimited key there is nothing to tell, and a decision made without Redis knows nothing of the tokens that all
// processes share.
func (h *headers) set(to http.Header, lim limit.Limit, res limit.Result) {
	if res.Origin == limit.Fallback || lim == limit.Unlimited() || res.Remaining == math.MaxInt {
		return
	}
	t := tell(lim, res)
	if h.style != XNone && (!res.Allowed || t.remaining < othersRemaining(to)) {
		h.setX(to, t)
	}
	if h.dialect != NoFields {
		h.addFields(to, t)
	}
}

// told is what headers tell. What is not known is negative.
type told struct {
	limit     int64 // tokens at most at once
	remaining int64
	reset     time.Duration // until all are there
	quota     int64         // tokens per window
	window    int64         // seconds
	effective int64         // seconds in which no more than remaining may be used
}

func tell(lim limit.Limit, res limit.Result) told {
	t := told{limit: -1, remaining: int64(max(0, res.Remaining)), reset: -1, quota: -1, window: -1, effective: -1}
	known := lim.Validate() == nil
	if known {
		t.limit, t.quota = int64(lim.Burst), 0
		t.remaining = min(t.remaining, t.limit) // the limit may have been changed in between
		if lim.Rate > 0 {
			t.reset = lim.ResetAfter(int(t.remaining))
			t.window = max(1, seconds(lim.ResetAfter(0)))
			t.quota = added(lim, t.window)
			t.effective = max(1, seconds(lim.ResetAfter(lim.Burst-1)))
		}
	}
	if res.ResetAfter > 0 && lim != limit.Blocked() {
		t.reset = res.ResetAfter
		t.effective = seconds(res.ResetAfter)
	}
	if t.reset == limit.Never {
		t.reset = -1
	}
	switch {
	case res.Allowed:
	case res.RetryAfter == limit.Never:
		t.effective = -1
	default: // not later than Retry-After says
		t.effective = max(1, seconds(res.RetryAfter))
	}
	return t
}

// added is how many tokens flow in a number of seconds, saturating.
func added(lim limit.Limit, seconds int64) int64 {
	hi, lo := bits.Mul64(uint64(lim.Rate), uint64(seconds))
	hi2, lo := bits.Mul64(lo, 1_000_000)
	if hi != 0 || hi2 >= uint64(lim.Period.Microseconds()) {
		return math.MaxInt64
	}
	n, _ := bits.Div64(hi2, lo, uint64(lim.Period.Microseconds()))
	return int64(min(n, math.MaxInt64))
}

// setX replaces what another Middleware has told.
func (h *headers) setX(to http.Header, t told) {
	reset := seconds(t.reset)
	if t.reset >= 0 && h.style == XEpoch {
		// To the nearest, because the limiter has read its clock a moment before: rounded up, the end of a window would
		// sometimes be a second later than it is.
		reset = time.Now().Add(t.reset).Round(time.Second).Unix()
	}
	setNumber(to, xLimit, t.limit)
	setNumber(to, xRemaining, t.remaining)
	setNumber(to, xReset, reset)
}

func setNumber(to http.Header, name string, n int64) {
	if n < 0 {
		to.Del(name)
		return
	}
	to.Set(name, strconv.FormatInt(n, 10))
}

// othersRemaining is what a Middleware outside has told as its remaining tokens. Of several limits the tightest counts.
func othersRemaining(h http.Header) int64 {
	v := h.Get(xRemaining)
	if v == "" { // nearly always, and an error would cost more than the look
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// addFields adds the fields of the drafts, which are lists: there is an item for each limit.
func (h *headers) addFields(to http.Header, t told) {
	var room [64]byte // that most fields need
	if t.quota >= 0 {
		b := append(append(room[:0], h.item...), ";q="...)
		b = appendInteger(b, t.quota)
		if t.window > 0 {
			b = appendInteger(append(b, ";w="...), t.window)
		}
		to.Add(rateLimitPolicy, string(b))
	}
	b := append(append(room[:0], h.item...), h.available...)
	b = appendInteger(b, t.remaining)
	if t.effective >= 0 {
		b = appendInteger(append(b, h.window...), t.effective)
	}
	to.Add(rateLimit, string(b))
}

// retryAfter sets Retry-After and returns what it has set.
func (h *headers) retryAfter(to http.Header, wait int64) int64 {
	if most := int64(h.jitter * float64(wait)); most > 0 && wait < math.MaxInt64/2 {
		wait += rand.Int64N(most + 1)
	}
	to.Set("Retry-After", strconv.FormatInt(wait, 10))
	return wait
}

// seconds rounds up; what is negative stays so.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	} else if s == 0 && d < 0 {
		s = -1
	}
	return s
}
