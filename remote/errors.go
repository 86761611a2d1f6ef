package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/limit"
)

// ErrRefused is wrapped, together with limit.ErrUnavailable, by the errors with which a healthy Redis refuses a call
// and that waiting does not mend: missing rights (NOPERM, NOAUTH), no memory (OOM), a key that holds something else
// (WRONGTYPE, or the state of another version), a cross-slot call. The text is that of Redis.
var ErrRefused = errors.New("remote: redis refuses the call")

// class says what an error tells about the script that was sent.
type class int

const (
	// unknown: it may have run. Never sent again.
	unknown class = iota
	// notExecuted: it certainly did not run, and may if it is sent again.
	notExecuted
	// noScript: the server does not know the script yet; not executed.
	noScript
	// refused: it did not run, and will not.
	refused
)

// The first words of the replies by which Redis says that it did not run a script, but another time may.
var temporary = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "MOVED", "ASK",
	"ERR max number of clients reached",
}

// classify sorts an error of the client. Replies of the server are never unknown: a script that answers with an error
// has checked its arguments and state before its first write.
func classify(err error) class {
	// Older servers, and scripts that were refused at a write, wrap the code: "ERR Error running script ... -READONLY".
	if reply, ok := errors.AsType[redis.Error](err); ok {
		text := strings.TrimPrefix(reply.Error(), "ERR ")
		switch {
		case strings.HasPrefix(text, "NOSCRIPT"):
			return noScript
		case errors.Is(err, redis.Nil):
			return refused
		}
		for _, code := range temporary {
			code = strings.TrimPrefix(code, "ERR ")
			if strings.HasPrefix(text, code) || strings.Contains(text, "-"+code+" ") {
				return notExecuted
			}
		}
		return refused
	}
	// Dialling failed, or no connection came free: nothing was sent. A dial time-out is also a context error, so
	// it has to be looked at first.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return notExecuted
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return notExecuted
	}
	return unknown
}

// unavailable is the error that callers see. A refusal names the prefix, so that who reads it finds the keys; no text
// names a key.
func unavailable(prefix string, err error) error {
	switch {
	case errors.Is(err, limit.ErrUnavailable):
		return err
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: the client is closed: %w", limit.ErrUnavailable, err)
	case classify(err) == refused:
		return fmt.Errorf("%w: %w under the prefix %q: %w", limit.ErrUnavailable, ErrRefused, prefix, err)
	case errors.Is(err, context.DeadlineExceeded):
		// Our own time-out and nobody else's: callers tell theirs apart by errors.Is(err, context.DeadlineExceeded).
		return fmt.Errorf("%w: no answer in time", limit.ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", limit.ErrUnavailable, err)
}

// badReply is the error for a reply that no script of ours gives.
func badReply(what string) error {
	return fmt.Errorf("%w: %w: unexpected reply: %s", limit.ErrUnavailable, ErrRefused, what)
}
