package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hybridlimit/hybrid"
)

// gateway stands before a model and keeps each customer to so many tokens a minute.
type gateway struct {
	limiter *hybrid.Limiter
	model   model
}

// tooMany is the error of a request that was denied.
type tooMany struct{ retryAfter time.Duration }

func (t tooMany) Error() string {
	return fmt.Sprintf("too many tokens, try again in %v", ceil(t.retryAfter))
}

// ask sends the answer to a prompt, token by token, and returns what it really cost. The estimate, which is that of the prompt and the longest answer
// that is asked for, is reserved before the model starts; what it really was is settled at the end, whatever the end is:
// the answer, an error, a customer who has hung up, a panic. Only a process that dies settles nothing, and then the estimate
// stays spent.
//
// An answer that has begun is not denied any more, so the model should keep to the estimate: what it costs above is debt, for
// which the next requests wait, and above the burst it is an error.
func (g *gateway) ask(ctx context.Context, customer string, p prompt, send func(token string) error) (used int, err error) {
	r, res, err := g.limiter.Reserve(ctx, customer, p.estimate)
	switch {
	case err != nil:
		return 0, err
	case r == nil:
		return 0, tooMany{res.RetryAfter}
	}
	defer func() { err = errors.Join(err, r.Settle(ctx, used)) }()
	for token := range g.model.answer(p) {
		used++
		if err := send(token); err != nil { // the customer has gone: what was made until now is paid for
			return used, err
		}
	}
	return used, nil
}

// ceil rounds up to seconds, as Retry-After does.
func ceil(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }
