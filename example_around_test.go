package hybrid_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
)

// must is for examples, whose limiters are right.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// Wait holds a caller back until tokens are there, and says at once if they come too late.
func ExampleLimiter_Wait() {
	lim := must(hybrid.NewFrom(leasetest.NewSource(), hybrid.Every(50*time.Millisecond), hybrid.Options{}))
	defer lim.Close(context.Background())

	start := time.Now()
	for range 3 {
		if err := lim.Wait(context.Background(), "mail"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("the third came after 100ms or more:", time.Since(start) >= 90*time.Millisecond)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err := lim.Wait(ctx, "mail")
	fmt.Println(errors.Is(err, hybrid.ErrWouldExceedDeadline))
	// Output:
	// the third came after 100ms or more: true
	// true
}

// The cost of an answer is known when it has been written.
func ExampleLimiter_Reserve() {
	lim := must(hybrid.NewFrom(leasetest.NewSource(), hybrid.PerHour(1000), hybrid.Options{}))
	defer lim.Close(context.Background())
	ctx := context.Background()

	r, res, err := lim.Reserve(ctx, "customer-42", 400) // an estimate
	if err != nil || !res.Allowed {
		log.Fatal(res, err)
	}
	defer r.Cancel(ctx) // gives all back, if we do not come to Settle
	wrote := 150
	if err := r.Settle(ctx, wrote); err != nil {
		log.Fatal(err)
	}

	res = must(lim.AllowN(ctx, "customer-42", 850)) // what is left
	fmt.Println(res.Allowed, res.Remaining)
	// Output:
	// true 0
}

// A request counts for its user and for the tenant of the user, or for neither.
func ExampleTakeAll() {
	users := must(hybrid.NewFrom(leasetest.NewSource(), hybrid.PerHour(3), hybrid.Options{}))
	defer users.Close(context.Background())
	tenants := must(hybrid.NewFrom(leasetest.NewSource(), hybrid.PerHour(5), hybrid.Options{}))
	defer tenants.Close(context.Background())

	for _, user := range []string{"ann", "ann", "ann", "ann", "bob", "bob", "bob"} {
		res, who, err := hybrid.TakeAll(context.Background(), 1, users.Key(user), tenants.Key("acme"))
		switch {
		case err != nil:
			log.Fatal(err)
		case res.Allowed:
			fmt.Println(user, "served")
		default:
			fmt.Println(user, "denied by the limit of the", []string{"user", "tenant"}[who])
		}
	}
	// Output:
	// ann served
	// ann served
	// ann served
	// ann denied by the limit of the user
	// bob served
	// bob served
	// bob denied by the limit of the tenant
}

// A limit per hour against peaks and one per day for the contract, as one limiter. On one Redis give each its Prefix.
func ExampleAll() {
	hour := must(hybrid.NewFrom(leasetest.NewSource(), hybrid.PerHour(5), hybrid.Options{}))
	defer hour.Close(context.Background())
	day := must(hybrid.NewFrom(leasetest.NewSource(), hybrid.PerDay(8), hybrid.Options{}))
	defer day.Close(context.Background())

	both := hybrid.All(hour, day) // a limit.Limiter, as httplimit.New takes one
	served := 0
	for range 10 {
		if must(both.Allow(context.Background(), "customer-42")).Allowed {
			served++
		}
	}
	fmt.Println("served", served, "and", must(day.AllowN(context.Background(), "customer-42", 0)).Remaining, "are left of the day")
	// Output:
	// served 5 and 3 are left of the day
}

// Limits by plan. The zero Limit, of a plan that is not known, stands for the limiter's own.
func ExampleOptions_limitFor() {
	plans := map[string]hybrid.Limit{"free": hybrid.PerHour(2), "pro": hybrid.PerHour(4), "gone": hybrid.Blocked()}
	lim := must(hybrid.NewFrom(leasetest.NewSource(), hybrid.PerHour(1), hybrid.Options{
		LimitFor: func(key string) hybrid.Limit {
			plan, _, _ := strings.Cut(key, ":")
			return plans[plan]
		},
	}))
	defer lim.Close(context.Background())

	for _, key := range []string{"free:ann", "pro:bob", "gone:eve", "new:joe"} {
		served := 0
		for range 5 {
			if must(lim.Allow(context.Background(), key)).Allowed {
				served++
			}
		}
		fmt.Println(key, served)
	}
	// Output:
	// free:ann 2
	// pro:bob 4
	// gone:eve 0
	// new:joe 1
}
