package httplimit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/hybridlimit/hybrid/limit"
)

// Published is a limit as the users of an API are told of it.
type Published struct {
	// Name is what the limit is called, such as that of Options.Policy or of a plan: printable ASCII characters, and a
	// name of its own.
	Name string
	// Limit is the limit. Give the value that the limiter has, so that the two cannot differ.
	Limit limit.Limit
	// About says in a few words, on one line, what is counted: "requests of each API key". Default: nothing.
	About string
}

// Publish returns a handler that tells limits, in the order given: as JSON to those whose Accept header has the word json,
// else as text, a line for each with the text form of limit.Limit. It answers any method and takes no tokens itself.
// The limits are those of the call; after a SetLimit make a new handler. Errors wrap limit.ErrInvalid.
func Publish(limits ...Published) (http.Handler, error) {
	type item struct {
		Name   string      `json:"name"`
		Limit  limit.Limit `json:"limit"`                    // in text form, also for unlimited and blocked
		Rate   int         `json:"rate,omitempty"`           // tokens every period
		Period float64     `json:"period_seconds,omitempty"` // with rate
		Burst  int         `json:"burst,omitempty"`          // most at once
		About  string      `json:"about,omitempty"`
	}
	items := make([]item, len(limits))
	names := make(map[string]bool)
	var text strings.Builder
	for i, p := range limits {
		switch err := p.Limit.Validate(); {
		case err != nil:
			return nil, fmt.Errorf("the limit %q: %w", p.Name, err)
		case p.Name == "" || !isPrintable(p.Name) || names[p.Name]:
			return nil, fmt.Errorf("%w: the name %q of a limit is empty, there twice, or has other than printable ASCII characters", limit.ErrInvalid, p.Name)
		case strings.ContainsAny(p.About, "\r\n"):
			return nil, fmt.Errorf("%w: what is said about the limit %q has more than one line", limit.ErrInvalid, p.Name)
		}
		names[p.Name] = true
		items[i] = item{Name: p.Name, Limit: p.Limit, About: p.About}
		if p.Limit.Rate > 0 {
			items[i].Rate, items[i].Period, items[i].Burst = p.Limit.Rate, p.Limit.Period.Seconds(), p.Limit.Burst
		}
		fmt.Fprintf(&text, "%s: %v", p.Name, p.Limit)
		if p.About != "" {
			fmt.Fprintf(&text, ", %s", p.About)
		}
		text.WriteByte('\n')
	}
	object, err := json.Marshal(map[string]any{"limits": items})
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		kind, body := "text/plain; charset=utf-8", text.String()
		if strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "json") {
			kind, body = "application/json", string(object)+"\n"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write([]byte(body)) // if the client has gone there is nobody to tell
	}), nil
}
