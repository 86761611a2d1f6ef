package httplimit_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

var published = []httplimit.Published{
	{Name: "search", Limit: limit.PerMinute(10).WithBurst(20), About: "searches of each API key"},
	{Name: "login", Limit: limit.Every(1500 * time.Millisecond)},
	{Name: "enterprise", Limit: limit.Unlimited()},
	{Name: "export", Limit: limit.Blocked(), About: "not <open> yet"},
}

func TestPublish(t *testing.T) {
	h, err := httplimit.Publish(published...)
	if err != nil {
		t.Fatal(err)
	}
	const text = "search: 10/m burst 20, searches of each API key\nlogin: 1/1500ms\nenterprise: unlimited\nexport: blocked, not <open> yet\n"
	for _, tt := range []struct {
		accept []string
		json   bool
	}{
		{nil, false},
		{[]string{"*/*"}, false},
		{[]string{"text/html,*/*;q=0.8"}, false},
		{[]string{"application/json"}, true},
		{[]string{"text/plain;q=0.1", "application/problem+json, */*"}, true},
	} {
		w := httptest.NewRecorder()
		w.Header().Set("Vary", "Origin")
		r := request("GET", "/limits")
		r.Header["Accept"] = tt.accept
		h.ServeHTTP(w, r)
		kind := "text/plain; charset=utf-8"
		if tt.json {
			kind = "application/json"
		}
		want(t, w.Result(), 200, "Content-Type: "+kind, "Vary: Origin | Accept")
		if got := w.Body.String(); !tt.json && got != text {
			t.Errorf("Accept %q: %s", tt.accept, got)
		}
	}

	// What a client reads is the limit that was given.
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request("GET", "/limits", "Accept: application/json"))
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Limits []struct {
			Name        string
			Limit       limit.Limit
			Rate, Burst int
			Period      float64 `json:"period_seconds"`
			About       string
		}
	}
	if err := json.Unmarshal(body, &got); err != nil || len(got.Limits) != len(published) {
		t.Fatalf("%v in %s", err, body)
	}
	for i, l := range got.Limits {
		p := published[i]
		if l.Name != p.Name || l.Limit != p.Limit || l.About != p.About {
			t.Errorf("%+v, want %+v", l, p)
		}
		if again := (limit.Limit{Rate: l.Rate, Period: time.Duration(l.Period * float64(time.Second)), Burst: l.Burst}); p.Limit.Rate > 0 && again != p.Limit || p.Limit.Rate == 0 && again != (limit.Limit{}) {
			t.Errorf("%s: the numbers say %+v", l.Name, again)
		}
	}
}

func TestPublishRefuses(t *testing.T) {
	ok := httplimit.Published{Name: "a", Limit: limit.PerSecond(1)}
	for name, all := range map[string][]httplimit.Published{
		"no limit":    {{Name: "a"}},
		"no name":     {{Limit: limit.PerSecond(1)}},
		"two of them": {ok, ok},
		"line":        {{Name: "a\nb", Limit: limit.PerSecond(1)}},
		"two lines":   {{Name: "a", Limit: limit.PerSecond(1), About: "x\ny: 100/s"}},
	} {
		if h, err := httplimit.Publish(all...); !errors.Is(err, limit.ErrInvalid) || h != nil {
			t.Errorf("%s: %v, %v; want ErrInvalid", name, h, err)
		}
	}
}
