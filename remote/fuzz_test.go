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
			"", "i1", "i1i2", "x", "n", "i1800000000000000i0i4i0i1", "i1800000000000000i0i-4i0i0", "i4i1i0i60000000", "i0i0i60000000i60000000",
			"i1800000000000000i0i60000000i0i1", "i1800000000000000i0i4i0s1", "i5i1i0i0i1i0i0", "i1i0i9223372036854775807i0i0", "i0i0i9007199254740993i0i1", "i4i1i-1i-1",
			"i0i0i9223372036854775807i9223372036854775807i1", "i0i-9223372036854775808i-9223372036854775808i-9223372036854775808i-9223372036854775808",
			"i9223372036854775807i9223372036854775807i0i0", "i5i9223372036854775807i0i0", "f1f0f4f0f1", "i1ni4i0i1", "b1b0b1b0b1", "a1a2a3a4a5", "e1e2e3e4e5",
			// One element of a good answer is wrong: of a bucket, of a GCRA, of a window.
			"i0i1800000000000000i0i1i0i0i4i0i0i0i0i1", "i0i1800000000000000i0i1i0i0i0i0i0i0i1i0", "i4i0i0i1i0i0i4i0i0i0i0i1", "i-1i0i0i1i0i0i4i0i0i0i0i1",
			"i0i0i-1i1i0i0i0i0i0i0i0i0", "i0i0i9223372036854775i1i0i0i0i0i0i0i0i0", "i0i0i0i1i0i0i-9223372036854775808i0i0i0i0i0", "i0i0i0i1i0i0i0i-1i0i0i0i0",
			"i0i0i0i1i0i0i0i12000000i0i0i0i0", "i0i0i0i1i0i0i0i0i-1i0i0i0", "i0i0i0i1i0i0i0i0i0i-1i0i0", "i0i0i0i1i5i0i0i0i0i0i0i0", "i0i0i0i1i0i0i6i0i0i0i0i0", "i0i0i0i1i0i0i5i0i0i0i0i1",
			"i0i0i0i1i0i0i3i0i0i0i0i0", "i0i0i0i1i0i0i3i0i0i0i0i2", "i0i0i0i1i0i0i3i0i0i0i0i-1", "i1i0i0i1i0i0i4i0i0i0i0", "i2i0i0i1i0i0i4i0i0i0i0", "i0i0i0i1i0i0i4i0i0i0i0",
			"i0i9223372036854775i0i0i0", "i0i0i-1i0i0", "i0i0i0i-1i0", "i0i0i0i1i0", "i0i0i60000000i0i1", "i0i0i48000000i0i0", "i0i0i48000000i0i2",
			"i0i0i0i1i0i0i0i0i0i0i0i2i0", "i0i0i0i1i0i0i0i0i0i0i0i0i9", "i0i0i0i1i5i0i0i0i0i0i0i0i0", "i0i0i0i1i0i0i0i0i0i0i0i0i3", "i0i0i0i0i2i0", "i9i1i0i0", "i-3i0i5i5", "i4i0i5i5", "i0i1i0i0", "i4i1i0i-1", "i0i0i-1i0", "i4i2i0i0", "i4i-1i0i0",
			"sss", "s 1i2", "i1800000000000000i0i5i0i0", "i1800000000000000i0i0i0i0i0", "i1e5i0i0i0", "i0i0i0i0i0i0i0i0",
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
