package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/limit"
)

// perTenant is what all users of a company may do together.
var perTenant = hybrid.PerHour(8)

// script is what happens.
type script struct {
	out                        io.Writer
	plans                      plans
	perMinute, perDay, tenants *hybrid.Limiter
}

func (s *script) play(ctx context.Context) error {
	for _, part := range []func(context.Context) error{s.byPlan, s.userAndTenant, s.upgrade} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// byPlan sends as many requests as each customer gets answered, up to 100, and one more. What has both limits in one is a
// limit.Limiter, for httplimit.New for example.
func (s *script) byPlan(ctx context.Context) error {
	fmt.Fprintln(s.out, "Limits by plan, per minute and per day:")
	var both limit.Limiter = hybrid.All(s.perMinute, s.perDay)
	for _, customer := range []string{"ann", "eve", "bigco", "mallory"} {
		res, n := hybrid.Result{}, 0
		for ; n < 100; n++ {
			var err error
			if res, err = both.Allow(ctx, customer); err != nil {
				return err
			}
			if !res.Allowed {
				break
			}
		}
		fmt.Fprintf(s.out, "  %-8s %-16v and %-10v %3d of 100 answered%s\n",
			customer, s.perMinute.LimitOf(customer), s.perDay.LimitOf(customer), n, comeBack(res))
	}
	return nil
}

// userAndTenant has a request pay each of three limits or none, and tells which of them denied.
func (s *script) userAndTenant(ctx context.Context) error {
	fmt.Fprintf(s.out, "\nThree limits at once: of the user per minute and per day, and of the tenant, %v:\n", perTenant)
	names := []string{"the minute of the user", "the day of the user", "the tenant"}
	for _, user := range []string{"bob", "bob", "bob", "bob", "cat", "cat", "cat", "cat", "cat", "dan", "dan", "bob"} {
		keys := []*hybrid.Key{s.perMinute.Key(user), s.perDay.Key(user), s.tenants.Key("tenant:acme")}
		res, denied, err := hybrid.TakeAll(ctx, 1, keys...)
		switch {
		case err != nil:
			return err
		case denied < 0:
			fmt.Fprintf(s.out, "  %s  answered, %d left\n", user, res.Remaining) // of the limit that has the least
		default:
			fmt.Fprintf(s.out, "  %s  denied by %s%s\n", user, names[denied], comeBack(res))
		}
	}
	return nil
}

// upgrade changes plans while the customers are there. LimitFor is asked again before each call to Redis, so a new plan is
// in force with the next one: at once, or, for those who were just denied from memory, within a second.
func (s *script) upgrade(ctx context.Context) error {
	fmt.Fprintln(s.out, "\nA new plan:")
	ask := func(when, customer string) error {
		res, err := s.perDay.Allow(ctx, customer)
		if err != nil {
			return err
		}
		verdict := "denied"
		if res.Allowed {
			verdict = "answered"
		}
		fmt.Fprintf(s.out, "  %-5s %-20s %-11v %s%s\n", customer, when, s.perDay.LimitOf(customer), verdict, comeBack(res))
		return nil
	}
	if err := ask("has used up her day", "ann"); err != nil {
		return err
	}
	s.plans.set("ann", "enterprise")
	select {
	case <-time.After(1100 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ask("a second later", "ann"); err != nil {
		return err
	}
	s.plans.set("ann", "pro")
	time.Sleep(110 * time.Millisecond) // Unlimited and Blocked never ask Redis; then it is every 100 ms. What was used counts
	if err := ask("goes back to pro", "ann"); err != nil {
		return err
	}
	s.plans.set("eve", "blocked")
	return ask("does not pay", "eve")
}

// comeBack is when, of a request that was denied: rounded up to seconds, as Retry-After is.
func comeBack(res hybrid.Result) string {
	switch {
	case res.Allowed:
		return ""
	case res.RetryAfter == hybrid.Never:
		return ", for ever"
	}
	return fmt.Sprintf(", come back in %v", (res.RetryAfter + time.Second - 1).Truncate(time.Second))
}
