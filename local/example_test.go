package local_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
)

func ExampleTokenBucket() {
	bucket, err := local.NewTokenBucket(limit.Limit{Rate: 10, Period: time.Hour, Burst: 3}, local.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		res, err := bucket.Allow(context.Background(), "alice")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(res.Allowed, res.Remaining, "wait", res.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 2 wait 0s
	// true 1 wait 0s
	// true 0 wait 0s
	// false 0 wait 6m0s
}

// request is a line of an access log.
type request struct {
	At  time.Time
	Key string
}

func replay(accessLog []request, candidate limit.Limit) (map[string]int, error) {
	var now time.Time
	lim, err := local.NewTokenBucket(candidate, local.Options{
		MaxKeys: 1 << 20,
		Now:     func() time.Time { return now },
	})
	if err != nil {
		return nil, err
	}
	denied := map[string]int{}
	for _, r := range accessLog { // in the order of time
		now = r.At
		if res, err := lim.Allow(context.Background(), r.Key); err == nil && !res.Allowed {
			denied[r.Key]++
		}
	}
	return denied, nil
}

// What a limit would have denied, found from a log and without waiting.
func Example_replay() {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var log []request
	for i := range 120 { // a script asks twice a second, a person once in ten
		log = append(log, request{start.Add(time.Duration(i) * 500 * time.Millisecond), "script"})
		if i%20 == 0 {
			log = append(log, request{start.Add(time.Duration(i) * 500 * time.Millisecond), "person"})
		}
	}
	denied, err := replay(log, limit.PerMinute(30).WithBurst(10))
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(denied)
	// Output: map[script:81]
}

// The algorithms in memory have one shape, and a clock that can be set.
func Example() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opts := local.Options{Now: func() time.Time { return now }}
	window, err1 := local.NewFixedWindow(limit.PerMinute(2), opts)
	log, err2 := local.NewSlidingLog(limit.PerMinute(2), opts)
	counter, err3 := local.NewSlidingCounter(limit.PerMinute(2), opts)
	if err1 != nil || err2 != nil || err3 != nil {
		fmt.Println(err1, err2, err3)
		return
	}
	for _, l := range []limit.Limiter{window, log, counter} {
		now = time.Date(2026, 1, 1, 0, 0, 50, 0, time.UTC)
		for range 2 {
			l.Allow(context.Background(), "alice")
		}
		now = now.Add(15 * time.Second) // into the next minute
		res, err := l.Allow(context.Background(), "alice")
		fmt.Printf("%T: %v, wait %v, %v\n", l, res.Allowed, res.RetryAfter, err)
	}
	// Output:
	// *local.FixedWindow: true, wait 0s, <nil>
	// *local.SlidingLog: false, wait 45s, <nil>
	// *local.SlidingCounter: false, wait 25s, <nil>
}
