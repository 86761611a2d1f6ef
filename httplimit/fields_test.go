package httplimit_test

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

// item is a member of a List of Strings with integer parameters.
type item struct {
	name   string
	params map[string]int64
}

// parseItem reads one by a parser that is not ours, and requires that there is nothing else.
func parseItem(s string) (item, error) {
	it := item{params: map[string]int64{}}
	list, err := httpsfv.UnmarshalList([]string{s})
	if err != nil || len(list) != 1 {
		return it, fmt.Errorf("%d members, %w", len(list), err)
	}
	member, ok := list[0].(httpsfv.Item)
	if !ok {
		return it, fmt.Errorf("an inner list")
	}
	if it.name, ok = member.Value.(string); !ok {
		return it, fmt.Errorf("no String but a %T", member.Value)
	}
	for _, key := range member.Params.Names() {
		v, _ := member.Params.Get(key)
		if it.params[key], ok = v.(int64); !ok {
			return it, fmt.Errorf("%s is no Integer but a %T", key, v)
		}
	}
	if again, err := httpsfv.Marshal(list); err != nil || again != s {
		return it, fmt.Errorf("not in the form that serializing gives, %q: %v", again, err)
	}
	return it, nil
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
		resp := s.get()
		want(t, resp, 200, "RateLimit-Policy: "+written+";q=5;w=60", "RateLimit: "+written+";r=4;t=12")
		if it, err := parseItem(resp.Header.Get("RateLimit")); err != nil || it.name != cmp.Or(name, "default") || it.params["r"] != 4 {
			t.Errorf("%q is read as %v, %v", written, it, err)
		}
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
