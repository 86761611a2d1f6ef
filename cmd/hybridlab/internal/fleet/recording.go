package fleet

import "github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"

// Recording is what was seen of a run so far, or of a whole one. It marshals to JSON as it is.
type Recording struct {
	Scenario scenario.Scenario `json:"scenario"`
	Terms    string            `json:"terms"` // what is in force after clamping, in words
	Every    float64           `json:"every"` // seconds between samples
	Samples  []Sample          `json:"samples"`
	Verdict  Verdict           `json:"verdict"` // of all samples so far
	Done     bool              `json:"done"`
}

// Sample is what happened since the sample before it, in all instances together unless it says otherwise.
type Sample struct {
	At       float64 `json:"at"` // seconds since the start, at its end
	Asked    int64   `json:"asked"`
	Admitted int64   `json:"admitted"` // tokens, as all counts of admissions
	Ideal    int64   `json:"ideal"`    // what one ideal bucket would have admitted of the same requests
	Calls    int64   `json:"calls"`    // scripts that were sent to Redis; callers who wait together share one
	// Requests that were denied, by what decided: memory, Redis, or the failure policy. Failed got an error.
	DeniedLocal    int64   `json:"deniedLocal"`
	DeniedRemote   int64   `json:"deniedRemote"`
	DeniedFallback int64   `json:"deniedFallback"`
	Failed         int64   `json:"failed"`
	Held           []int64 `json:"held"`            // tokens on lease, of each instance, now
	P50            float64 `json:"p50"`             // microseconds that a decision took
	P99            float64 `json:"p99"`             //
	Excess         float64 `json:"excess"`          // tokens by which the worst window up to now is surely above the bound of its mode; never negative
	Fault          string  `json:"fault,omitempty"` // what was wrong during it, in a word or two
}

// Verdict sums a run up.
type Verdict struct {
	OfIdeal   float64 `json:"ofIdeal"`   // admitted / ideal
	CallsEach float64 `json:"callsEach"` // requests to Redis per decision
	CallsRate float64 `json:"callsRate"` // requests to Redis per second
	Excess    float64 `json:"excess"`    // tokens, worst window
	P50       float64 `json:"p50"`       // microseconds, over all decisions
	P99       float64 `json:"p99"`
	Asked     int64   `json:"asked"`
	Admitted  int64   `json:"admitted"`
	Text      string  `json:"text"` // one plain line of all this
}
