package calls

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func TestCounterCountsScriptsOnly(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	var c Counter
	rdb.AddHook(&c)
	ctx := t.Context()
	script := redis.NewScript("return 1")
	if err := script.Run(ctx, rdb, nil).Err(); err != nil { // EVALSHA, NOSCRIPT, EVAL
		t.Fatal(err)
	}
	rdb.Ping(ctx)
	if _, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, "k")
		script.EvalSha(ctx, p, nil)
		script.EvalSha(ctx, p, nil)
		return nil
	}); err != nil && err != redis.Nil {
		t.Fatal(err)
	}
	if n := c.Scripts(); n != 4 {
		t.Errorf("%d scripts, want 4", n)
	}
}
