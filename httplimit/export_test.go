package httplimit

import "time"

// PauseOf is how long the pause of a host still lasts.
func PauseOf(t *Transport, host string) time.Duration { return t.pauses.left(host) }
