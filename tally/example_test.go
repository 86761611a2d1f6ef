package tally_test

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"slices"
	"strings"

	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
	"github.com/hybridlimit/hybrid/tally"
)

func Example() {
	bucket, err := local.NewTokenBucket(limit.PerHour(2), local.Options{})
	if err != nil {
		log.Fatal(err)
	}
	counted, err := tally.New(bucket, tally.Options{
		Class: func(key string) string {
			plan, _, _ := strings.Cut(key, ":")
			return plan
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"free:ann", "free:ann", "free:ann", "paid:bob"} {
		if _, err := counted.Allow(context.Background(), key); err != nil {
			log.Fatal(err)
		}
	}
	counts := counted.Counts()
	slices.SortFunc(counts, func(a, b tally.Count) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Outcome, b.Outcome))
	})
	for _, c := range counts {
		fmt.Println(c.Class, c.Outcome, c.N)
	}
	// Output:
	// free allowed 2
	// free denied 1
	// paid allowed 1
}
