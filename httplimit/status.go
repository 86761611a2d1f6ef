package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/hybridlimit/hybrid/limit"
)

// Status is the status code for an error of a limiter or a KeyFunc:
//
//	400  ErrNoKey, limit.ErrInvalidKey, limit.ErrInvalidTokens: the request is at fault
//	413  limit.ErrExceedsBurst: it costs more than is ever allowed at once, so it should not be sent again
//	503  limit.ErrUnavailable, limit.ErrClosed, and the errors of a context: nobody could decide in time
//	500  all others
//
// None comes with rate headers, because nothing was decided. Retry-After is set only if some error in the chain has the
// method RetryAfter() time.Duration.
func Status(err error) int {
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(ErrNoKey), is(limit.ErrInvalidKey), is(limit.ErrInvalidTokens):
		return http.StatusBadRequest
	case is(limit.ErrExceedsBurst):
		return http.StatusRequestEntityTooLarge
	case is(limit.ErrUnavailable), is(limit.ErrClosed), is(context.Canceled), is(context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// explain says to the sender of a request what err means for him. The text of the error itself is for the operator.
func explain(err error) string {
	switch {
	case errors.Is(err, ErrNoKey):
		return "The request does not say who sends it, so it cannot be counted."
	case errors.Is(err, limit.ErrInvalidKey):
		return "Who sends the request cannot be told from what it says."
	case errors.Is(err, limit.ErrInvalidTokens):
		return "What the request costs cannot be told from it."
	case errors.Is(err, limit.ErrExceedsBurst):
		return "The request costs more than is ever allowed at once. Waiting does not help; make it smaller."
	case Status(err) == http.StatusServiceUnavailable:
		return "The limit cannot be checked at the moment."
	}
	return "The limit could not be checked."
}
