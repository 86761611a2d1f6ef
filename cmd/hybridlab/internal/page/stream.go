package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// events streams views, one each time that something changes and several a second while a run is under way. It ends with
// the request, and so with the server. The parameter width says how wide charts shall be, in pixels.
func (a api) events(w http.ResponseWriter, r *http.Request) {
	width, err := strconv.Atoi(r.FormValue("width"))
	if err != nil {
		width = firstWidth
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // else the server takes the silence of the reader for his end
	for {
		s, changed := a.lab.look()
		if send(w, rc, s, width) != nil {
			return
		}
		pause := heartbeat
		if s.phase == active {
			pause = frame
		}
		timer := time.NewTimer(pause)
		select {
		case <-changed:
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// send writes one event. A reader who does not take it in time is given up.
func send(w http.ResponseWriter, rc *http.ResponseController, s state, width int) error {
	v, err := show(s, width)
	if err != nil {
		return err
	}
	data, err := json.Marshal(v) // which has no line breaks in it
	if err != nil {
		return err
	}
	_ = rc.SetWriteDeadline(time.Now().Add(patience)) // only what is not a connection has none
	if _, err := fmt.Fprintf(w, "retry: 1000\ndata: %s\n\n", data); err != nil {
		return err
	}
	return rc.Flush()
}
