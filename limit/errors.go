package limit

import (
	"errors"
	"fmt"
)

// Errors of all limiters, to be tested with errors.Is. An error decides nothing and, but for ErrUnavailable, charges
// nothing. No error text holds a key.
var (
	// ErrInvalid: a limit or option cannot be used; the text says what to change.
	ErrInvalid = errors.New("limit: invalid limit")
	// ErrExceedsBurst: the request costs more than the burst and could never be admitted.
	ErrExceedsBurst = errors.New("limit: cost exceeds the burst")
	// ErrInvalidTokens: the cost is negative.
	ErrInvalidTokens = errors.New("limit: invalid number of tokens")
	// ErrInvalidKey: the key is empty or longer than MaxKeyLen bytes.
	ErrInvalidKey = errors.New("limit: invalid key")
	// ErrClosed: the limiter is closed.
	ErrClosed = errors.New("limit: limiter is closed")
	// ErrWouldExceedDeadline: the tokens would come after the deadline of the context. For calls that wait for tokens.
	ErrWouldExceedDeadline = errors.New("limit: wait would exceed the deadline")
	// ErrUnavailable: Redis did not decide in time. If it ran the request but the reply was lost, its tokens are
	// gone until they are refilled.
	ErrUnavailable = errors.New("limit: redis unavailable")
)

// The refusals of Admit, made once: a hostile caller should not make the limiter allocate.
var (
	errKeyEmpty = fmt.Errorf("%w: it is empty", ErrInvalidKey)
	errKeyLong  = fmt.Errorf("%w: it is longer than %d bytes", ErrInvalidKey, MaxKeyLen)
	errNegative = fmt.Errorf("%w: it is negative", ErrInvalidTokens)
	errTooMany  = fmt.Errorf("%w: no waiting will admit it", ErrExceedsBurst)
)
