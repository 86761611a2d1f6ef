package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/hybridlimit/hybrid"
)

// tokensPerMinute is the limit of each customer: at most 10,000 at once, and 167 more each second.
var tokensPerMinute = hybrid.PerMinute(10_000)

// script is what happens to the gateways of two processes.
type script struct {
	out         io.Writer
	here, there *gateway
	start       time.Time

	reserved, used int            // tokens of all requests that were answered
	spent          map[string]int // by each customer, and reserved by him if it was not settled
}

// errHungUp is why a customer's context ends.
var errHungUp = errors.New("the customer has hung up")

func (s *script) play(ctx context.Context) error {
	fmt.Fprintf(s.out, "%v tokens for each customer, shared by two processes.\n\n", tokensPerMinute)
	fmt.Fprintf(s.out, "%-42s %8s %8s %8s\n", "", "reserved", "used", "left")

	// A request that costs less gives the rest back; one that costs more is charged the difference.
	if err := s.ask(ctx, "acme: a short answer", "acme", prompt{estimate: 2000, length: 700}); err != nil {
		return err
	}
	if err := s.ask(ctx, "acme: one longer than expected", "acme", prompt{estimate: 2000, length: 3300}); err != nil {
		return err
	}

	// One that ends early costs what was streamed until then.
	streamed := 0
	_, err := s.here.ask(ctx, "acme", prompt{estimate: 3000, length: 3000}, func(string) error {
		if streamed++; streamed == 500 {
			return errHungUp
		}
		return nil
	})
	if !errors.Is(err, errHungUp) {
		return fmt.Errorf("the customer who hangs up: %w", err)
	}
	if err := s.answered(ctx, "acme: hung up in the middle", "acme", 3000, 500); err != nil {
		return err
	}

	// One for which the model had no room costs nothing.
	r, err := s.reserve(ctx, "acme", 3000)
	if err != nil {
		return err
	}
	if err := r.Cancel(ctx); err != nil {
		return err
	}
	if err := s.answered(ctx, "acme: cancelled, the model is busy", "acme", 3000, 0); err != nil {
		return err
	}

	// A process that dies in between settles nothing: its reservation stays spent, and comes back as all tokens do.
	if _, err := s.reserve(ctx, "acme", 1500); err != nil {
		return err
	}
	s.spent["acme"] += 1500
	if err := s.row(ctx, "acme: the process dies before it settles", "acme", "1500", "-"); err != nil {
		return err
	}
	// Unless somebody knows that the job has not ended, such as a queue that delivers it again. It must be given back once,
	// so that is noted before and not after.
	if err := s.there.limiter.Refund(ctx, "acme", 1500); err != nil {
		return err
	}
	s.spent["acme"] -= 1500
	if err := s.row(ctx, "acme: another process gives that back", "acme", "", ""); err != nil {
		return err
	}

	// A request that costs more than there is leaves a debt, for which all processes wait.
	if err := s.ask(ctx, "acme: far longer, 1500 of it are debt", "acme", prompt{estimate: 5000, length: 7000}); err != nil {
		return err
	}
	for name, g := range s.both() {
		var denied tooMany
		if _, err := g.ask(ctx, "acme", prompt{estimate: 1000}, discard); !errors.As(err, &denied) {
			return fmt.Errorf("a request in debt: %w", cmp.Or(err, errors.New("it is answered")))
		}
		fmt.Fprintf(s.out, "%-42s %8d   %v\n", "acme: denied "+name, 1000, denied)
	}
	if err := s.ask(ctx, "zeta: has tokens of its own", "zeta", prompt{estimate: 2000, length: 2000}); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n%d tokens were reserved for answers, %d were used and paid for.\n", s.reserved, s.used)
	return nil
}

// both are the two processes.
func (s *script) both() iter.Seq2[string, *gateway] {
	return func(yield func(string, *gateway) bool) {
		_ = yield("here", s.here) && yield("in the other process", s.there)
	}
}

func discard(string) error { return nil }

// reserve reserves here what is sure to be there.
func (s *script) reserve(ctx context.Context, customer string, n int) (*hybrid.Reservation, error) {
	r, res, err := s.here.limiter.Reserve(ctx, customer, n)
	if err == nil && r == nil {
		err = tooMany{res.RetryAfter}
	}
	return r, err
}

// ask is a request that is admitted and answered.
func (s *script) ask(ctx context.Context, title, customer string, p prompt) error {
	used, err := s.here.ask(ctx, customer, p, discard)
	if err != nil {
		return err
	}
	return s.answered(ctx, title, customer, p.estimate, used)
}

func (s *script) answered(ctx context.Context, title, customer string, reserved, used int) error {
	s.reserved += reserved
	s.used += used
	s.spent[customer] += used
	return s.row(ctx, title, customer, fmt.Sprint(reserved), fmt.Sprint(used))
}

// row prints what became of a request, and what is left as the other process sees it; in hundreds, since some flow in.
func (s *script) row(ctx context.Context, title, customer, reserved, used string) error {
	left, err := s.left(ctx, customer)
	fmt.Fprintf(s.out, "%-42s %8s %8s %8d\n", title, reserved, used, left/100*100)
	return err
}

// left is what the other process sees, once it sees what was settled: that goes with a request for which nobody waits.
func (s *script) left(ctx context.Context, customer string) (int, error) {
	least := tokensPerMinute.Burst - s.spent[customer]
	for range 2000 {
		res, err := s.there.limiter.AllowN(ctx, customer, 0) // takes nothing
		if err != nil {
			return 0, err
		}
		refilled := int(time.Since(s.start).Minutes()*float64(tokensPerMinute.Rate)) + 1
		if least = max(0, least); res.Remaining >= least && res.Remaining <= least+refilled {
			return res.Remaining, nil
		}
		time.Sleep(time.Millisecond)
	}
	return 0, fmt.Errorf("%s should have %d left", customer, least)
}
