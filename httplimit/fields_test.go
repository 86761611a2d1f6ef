package httplimit_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

// item is a member of a List of Strings with integer parameters.
type item struct {
	name   string
	params map[string]int64
}

// parseItem reads one by the grammar of RFC 9651, and nothing that is not in it.
func parseItem(s string) (item, error) {
	it := item{params: map[string]int64{}}
	if !strings.HasPrefix(s, `"`) {
		return it, fmt.Errorf("no string at %q", s)
	}
	i := 1
	for ; ; i++ {
		switch {
		case i >= len(s):
			return it, fmt.Errorf("the string does not end")
		case s[i] < 0x20 || s[i] > 0x7e:
			return it, fmt.Errorf("byte %#x in a string", s[i])
		case s[i] == '\\':
			if i++; i >= len(s) || s[i] != '"' && s[i] != '\\' {
				return it, fmt.Errorf("bad escape")
			}
		case s[i] == '"':
			s = s[i+1:]
			for s != "" {
				key, rest, ok := strings.Cut(strings.TrimPrefix(s, ";"), "=")
				if !ok || s[0] != ';' || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz") != "" {
					return it, fmt.Errorf("no parameter at %q", s)
				}
				end := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
				if end < 1 || end > 15 {
					return it, fmt.Errorf("an integer of %d digits", end)
				}
				if _, twice := it.params[key]; twice {
					return it, fmt.Errorf("%s is there twice", key)
				}
				it.params[key], _ = strconv.ParseInt(rest[:end], 10, 64)
				s = rest[end:]
			}
			return it, nil
		}
		it.name += string(rune(s[i]))
	}
}

func TestPolicyNames(t *testing.T) {
	for name, written := range map[string]string{
		"burst":    `"burst"`,
		"per hour": `"per hour"`,
		`a"b\c`:    `"a\"b\\c"`,
		"":         `"default"`,
		"~ ":       `"~ "`,
	} {
		s := newSite(t, bucket(t, newClock(), limit.PerMinute(5)), httplimit.Options{Dialect: httplimit.Draft11, Policy: name})
		want(t, s.get(), 200, "RateLimit-Policy: "+written+";q=5;w=60", "RateLimit: "+written+";r=4;t=12")
	}
}

func FuzzFields(f *testing.F) {
	f.Add("default", 100, int64(time.Minute), 100, 50, int64(0), int64(0))
	f.Add(`a"b\c`, 1, int64(time.Microsecond), 1<<30, -1, int64(-5), int64(-9))
	f.Add("x\r\nSet-Cookie: a=b", math.MaxInt32, int64(time.Hour), math.MaxInt32, math.MaxInt32, int64(limit.Never), int64(limit.Never))
	f.Add("é", 7, int64(3*time.Second), 9, 9, int64(1), int64(1))
	f.Add("long", 1, int64(250*365*24*time.Hour), 1, 1, int64(limit.Never-1), int64(limit.Never-1))
	f.Fuzz(func(t *testing.T, name string, rate int, period int64, burst, remaining int, retry, reset int64) {
		lim := limit.Limit{Rate: rate, Period: time.Duration(period), Burst: burst}
		for _, res := range []limit.Result{allowed(remaining), denied(time.Duration(retry))} {
			res.ResetAfter = time.Duration(reset)
			for dialect, names := range map[httplimit.Dialect][2]string{httplimit.Draft11: {"r", "t"}, httplimit.Draft12: {"a", "w"}} {
				mw, err := httplimit.New(&described{fixed{res: res}, lim}, httplimit.Options{Dialect: dialect, Policy: name})
				if err != nil {
					if strings.Trim(name, printable) == "" {
						t.Errorf("name %q: %v", name, err)
					}
					return
				}
				s := &site{t: t, h: mw.Handler(nothing)}
				h := s.get().Header
				for _, header := range []string{"Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
					if v := h.Get(header); v != "" && !number.MatchString(v) {
						t.Errorf("%s: %q", header, v)
					}
				}
				field, err := parseItem(h.Get("RateLimit"))
				if h.Get("RateLimit") == "" {
					if remaining != math.MaxInt && lim != limit.Unlimited() {
						t.Errorf("%v, %+v: no RateLimit", lim, res)
					}
					continue
				}
				if err != nil {
					t.Errorf("RateLimit %q: %v", h.Get("RateLimit"), err)
				}
				left, ok := field.params[names[0]]
				if !ok || (name != "" && field.name != name) {
					t.Errorf("RateLimit %q", h.Get("RateLimit"))
				}
				policy := h.Get("RateLimit-Policy")
				if (policy == "") != (lim.Validate() != nil) {
					t.Errorf("%v: policy %q", lim, policy)
				}
				if policy == "" {
					continue
				}
				p, err := parseItem(policy)
				w, timed := p.params["w"]
				if err != nil || p.name != field.name || timed && w < 1 || left > p.params["q"] {
					t.Errorf("RateLimit-Policy %q, RateLimit %q: %v", policy, h.Get("RateLimit"), err)
				}
				if at, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64); err == nil && field.params[names[1]] > at {
					t.Errorf("the window %d ends after Retry-After %d", field.params[names[1]], at)
				}
			}
		}
	})
}

var printable = func() string {
	var b strings.Builder
	for c := byte(' '); c <= '~'; c++ {
		b.WriteByte(c)
	}
	return b.String()
}()
