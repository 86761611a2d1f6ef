package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// retryAfter reads how long a server wants to be left alone: Retry-After in seconds or as a date, which may be over.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if n, ok := digits(v); ok {
		return inSeconds(n), true
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	return at.Sub(serverTime(h, now)), true
}

// untilReset reads when a server that has nothing left gives again.
func untilReset(h http.Header, style XStyle, now time.Time) (time.Duration, bool) {
	left, ok := digits(h.Get(xRemaining))
	if !ok || left != 0 {
		return 0, false
	}
	n, ok := digits(h.Get(xReset))
	switch {
	case !ok:
		return 0, false
	case style == XDelta:
		return inSeconds(n), true
	}
	since := serverTime(h, now).Unix()
	return inSeconds(max(0, n-since)), true
}

// serverTime is the time by the clock of the server, if it tells it: then its dates need no agreement between clocks.
func serverTime(h http.Header, now time.Time) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return now
}

// digits reads a number that consists of nothing else, saturating.
func digits(s string) (int64, bool) {
	s = strings.TrimSpace(s)
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = math.MaxInt64
	}
	return n, true
}

// inSeconds saturates.
func inSeconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}
