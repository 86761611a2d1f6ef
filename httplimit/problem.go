package httplimit

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
)

// The problem types of draft-ietf-httpapi-ratelimit-headers; used only where a Dialect is.
const (
	typeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// Problem is the body of an answer that says why a request was not served: problem details as in RFC 9457.
type Problem struct {
	// Type is a URI for this kind of problem; "" means that Status says it all.
	Type string `json:"type,omitempty"`
	// Title is a short summary, the same for all problems of the type.
	Title string `json:"title"`
	// Status is the status code of the answer.
	Status int `json:"status"`
	// Detail is for people: what is wrong with this request, and what to do.
	Detail string `json:"detail,omitempty"`
	// Instance is a URI for this occurrence.
	Instance string `json:"instance,omitempty"`
	// ViolatedPolicies are the names of the limits that denied the request.
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
	// Contact is where to ask for more.
	Contact string `json:"contact,omitempty"`
	// Members are further members. One with the name of a field above counts only where that field is empty.
	Members map[string]any `json:"-"`
}

// MarshalJSON returns the problem as a JSON object.
func (p Problem) MarshalJSON() ([]byte, error) {
	type fields Problem // without this method
	b, err := json.Marshal(fields(p))
	if err != nil || len(p.Members) == 0 {
		return b, err
	}
	var own map[string]any
	if err := json.Unmarshal(b, &own); err != nil {
		return nil, err
	}
	all := maps.Clone(p.Members)
	maps.Copy(all, own)
	return json.Marshal(all)
}

// Write answers with p. Headers that are there already stay, but for Content-Type, Content-Length and Cache-Control,
// which becomes no-store. A Status that is none is sent as 500, and Members that cannot be written as JSON are left out.
func (p Problem) Write(w http.ResponseWriter) {
	if p.Status < 200 || p.Status > 999 {
		p.Status = http.StatusInternalServerError
	}
	body, err := json.Marshal(p)
	if err != nil {
		p.Members = nil
		body, _ = json.Marshal(p) // strings and a number
	}
	body = append(body, '\n')
	h := w.Header()
	noStore(h)
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // if the client has gone there is nobody to tell
}

// plural is for texts: "1 second", "2 seconds".
func plural(n int64, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return strconv.FormatInt(n, 10) + " " + unit
}
