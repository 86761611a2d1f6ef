package remote_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/remote"
)

// parrot is a client that has one reply to everything.
type parrot struct{ reply any }

func (p parrot) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(interface{ SetVal(any) }).SetVal(p.reply)
	return nil
}

func (p parrot) Pipeline() redis.Pipeliner {
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}).Pipeline()
}

// elements turns fuzz input into a reply: a letter for what an element is, and digits.
func elements(text string) any {
	var reply []any
	for i := 0; i < len(text); {
		kind := text[i]
		j := i + 1
		for j < len(text) && (text[j] >= '0' && text[j] <= '9' || text[j] == '-' && j == i+1) {
			j++
		}
		number := text[i+1 : j]
		n, _ := strconv.ParseInt(number, 10, 64)
		switch kind {
		case 's':
			reply = append(reply, number)
		case 'i':
			reply = append(reply, n)
		case 'f':
			reply = append(reply, float64(n))
		case 'n':
			reply = append(reply, nil)
		case 'b':
			reply = append(reply, n != 0)
		case 'a':
			reply = append(reply, []any{n})
		case 'e':
			reply = append(reply, errors.New(number))
		case 'x':
			return number // not a list at all
		default:
			reply = append(reply, string(kind)+number)
		}
		i = j
	}
	return reply
}

// Whatever a server answers, nobody panics and nobody is admitted who did not ask; an answer that passes makes sense.
func FuzzReply(f *testing.F) {
	for mode := range uint8(5) {
		for _, seed := range []string{
			"", "s1", "i1i2", "x", "n", "s1800000000000000s0s4s0s1", "s1800000000000000s0s-4s0s0", "s4s1s0s60000000", "i0i0i60000000i60000000",
			"s1800000000000000s0s60000000s0s1", "s5s1s0s0s1s0s0", "s1s0s9223372036854775807s0s0", "s0s0s9007199254740993s0s1", "s4s1s-1s-1",
			"s0s0s9223372036854775807s9223372036854775807s1", "s0s-9223372036854775808s-9223372036854775808s-9223372036854775808s-9223372036854775808",
			"s9223372036854775807s9223372036854775807s0s0", "s5s9223372036854775807s0s0", "f1f0f4f0f1", "s1ns4s0s1", "b1b0b1b0b1", "a1a2a3a4a5", "e1e2e3e4e5",
			// One element of a good answer is wrong: of a bucket, of a GCRA, of a window.
			"s0s1800000000000000s0s1s0s0s4s0s0s0s0s1", "s0s1800000000000000s0s1s0s0s0s0s0s0s1s0", "s4s0s0s1s0s0s4s0s0s0s0s1", "s-1s0s0s1s0s0s4s0s0s0s0s1",
			"s0s0s-1s1s0s0s0s0s0s0s0s0", "s0s0s9223372036854775s1s0s0s0s0s0s0s0s0", "s0s0s0s1s0s0s-9223372036854775808s0s0s0s0s0", "s0s0s0s1s0s0s0s-1s0s0s0s0",
			"s0s0s0s1s0s0s0s12000000s0s0s0s0", "s0s0s0s1s0s0s0s0s-1s0s0s0", "s0s0s0s1s0s0s0s0s0s-1s0s0", "s0s0s0s1s5s0s0s0s0s0s0s0", "s0s0s0s1s0s0s6s0s0s0s0s0", "s0s0s0s1s0s0s5s0s0s0s0s1",
			"s0s0s0s1s0s0s3s0s0s0s0s0", "s0s0s0s1s0s0s3s0s0s0s0s2", "s0s0s0s1s0s0s3s0s0s0s0s-1", "s1s0s0s1s0s0s4s0s0s0s0", "s2s0s0s1s0s0s4s0s0s0s0", "s0s0s0s1s0s0s4s0s0s0s0",
			"s0s9223372036854775s0s0s0", "s0s0s-1s0s0", "s0s0s0s-1s0", "s0s0s0s1s0", "s0s0s60000000s0s1", "s0s0s48000000s0s0", "s0s0s48000000s0s2",
			"s0s0s0s1s0s0s0s0s0s0s0s2s0", "s0s0s0s1s0s0s0s0s0s0s0s0s9", "s0s0s0s1s5s0s0s0s0s0s0s0s0", "s0s0s0s1s0s0s0s0s0s0s0s0s3", "s0s0s0s0s2s0", "s9s1s0s0", "s-3s0s5s5", "s4s0s5s5", "s0s1s0s0", "s4s1s0s-1", "s0s0s-1s0", "s4s2s0s0", "s4s-1s0s0",
			"sss", "s 1s2", "s1800000000000000s0s5s0s0", "s1800000000000000s0s0s0s0s0", "s1e5s0s0s0", "s0s0s0s0s0s0s0s0",
		} {
			f.Add(mode, seed, uint16(1), uint16(1))
			f.Add(mode, seed, uint16(0), uint16(2))
			f.Add(mode, seed, uint16(5), uint16(math.MaxUint16))
		}
	}
	f.Fuzz(func(t *testing.T, mode uint8, text string, n, count uint16) {
		m := allModes[int(mode)%len(allModes)]
		lim := limit.Limit{Rate: 5, Period: seconds(60), Burst: 5}
		rdb := parrot{elements(text)}
		l, err := m.make(rdb, lim, remote.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		sane := func(cost int, got limit.Result) {
			t.Helper()
			if got.Origin != limit.Remote || got.Remaining < 0 || got.Remaining > lim.Burst || got.ResetAfter < 0 ||
				got.Allowed != (got.RetryAfter == 0) || got.RetryAfter < 0 || !got.Allowed && got.Remaining >= cost {
				t.Errorf("%s: a reply of %q gives %+v", m.name, text, got)
			}
		}
		cost := int(n) % (lim.Burst + 1)
		got, err := l.AllowN(ctx, "k", cost)
		switch {
		case err == nil:
			sane(cost, got)
		case !errors.Is(err, limit.ErrUnavailable) || got != (limit.Result{}):
			t.Errorf("%s: %+v, %v; want the zero Result, ErrUnavailable", m.name, got, err)
		}

		costs := []lease.Run{{Cost: cost, Count: 1 + int(count)%100}, {Cost: 1, Count: 2}}
		results, err := l.(interface {
			Decide(context.Context, string, []lease.Run) ([]limit.Result, error)
		}).Decide(ctx, "k", costs)
		taken := 0
		for i, got := range results {
			c := costs[min(i/costs[0].Count, 1)].Cost
			if sane(c, got); got.Allowed {
				taken += c
			}
		}
		if taken > lim.Burst || (err == nil) != (len(results) > 0) {
			t.Errorf("%s: %d tokens admitted from a burst of 5, %v", m.name, taken, err)
		}

		var g [1]lease.Grant
		remote.NewSource(rdb, remote.Options{Timeout: patience}).Acquire(ctx, []lease.Request{{Key: "k", Limit: lim, Costs: costs}}, g[:])
		if g[0].Err != nil {
			if !errors.Is(g[0].Err, limit.ErrUnavailable) || g[0].Admitted != nil || g[0].Level != 0 {
				t.Errorf("grant %+v", g[0])
			}
			return
		}
		sum := 0
		for i, c := range costs {
			if a := g[0].Admitted[i]; a < 0 || a > c.Count {
				t.Errorf("%d of %d admitted", a, c.Count)
			}
			sum += g[0].Admitted[i] * c.Cost
		}
		if sum > lim.Burst || g[0].Level > int64(lim.Burst) || g[0].Lag < 0 || g[0].Frac < 0 || g[0].Granted != 0 {
			t.Errorf("grant %+v for %v", g[0], costs)
		}
	})
}
