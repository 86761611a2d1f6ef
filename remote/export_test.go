package remote

import (
	"context"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

// Decide runs one batch as it is sent when callers have gathered, and returns the result of each caller in order.
func (l *Limiter) Decide(ctx context.Context, key string, costs []lease.Run) ([]limit.Result, error) {
	paid, err := l.send(ctx, key, costs)
	var results []limit.Result
	for i, p := range paid {
		for j := range costs[i].Count {
			results = append(results, p.Result(j))
		}
	}
	return results, err
}
