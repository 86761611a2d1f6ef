package tally_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/lease/leasetest"
	"github.com/hybridlimit/hybrid/limit"
	"github.com/hybridlimit/hybrid/local"
	"github.com/hybridlimit/hybrid/remote"
	"github.com/hybridlimit/hybrid/tally"
)

var (
	_ limit.Limiter   = (*tally.Limiter)(nil)
	_ limit.Describer = (*tally.Limiter)(nil)
)

// scripted decides by the key, which is "allowed local" and the like; anything else is an error.
type scripted struct{ calls []int }

var errScripted = errors.New("scripted")

func (s *scripted) Allow(ctx context.Context, key string) (limit.Result, error) {
	return s.AllowN(ctx, key, 1)
}

func (s *scripted) AllowN(_ context.Context, key string, n int) (limit.Result, error) {
	s.calls = append(s.calls, n)
	outcome, where, _ := strings.Cut(key, " ")
	for o := range limit.Fallback + 1 {
		if o.String() == where {
			return limit.Result{Verdict: limit.Verdict{Allowed: outcome == "allowed", Origin: o}, Remaining: 7}, nil
		}
	}
	return limit.Result{}, errScripted
}

func wrap(t testing.TB, l limit.Limiter, opts tally.Options) *tally.Limiter {
	t.Helper()
	counted, err := tally.New(l, opts)
	if err != nil {
		t.Fatal(err)
	}
	return counted
}

// text is the counts as lines, sorted.
func text(l *tally.Limiter) string {
	counts := l.Counts()
	slices.SortFunc(counts, func(a, b tally.Count) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Origin, b.Origin))
	})
	var b strings.Builder
	for _, c := range counts {
		fmt.Fprintf(&b, "%q %v %v %d\n", c.Class, c.Outcome, c.Origin, c.N)
	}
	return b.String()
}

func wantText(t *testing.T, l *tally.Limiter, want string) {
	t.Helper()
	if got := text(l); got != want {
		t.Errorf("counted:\n%swant:\n%s", got, want)
	}
}

func TestCounts(t *testing.T) {
	inner := &scripted{}
	l := wrap(t, inner, tally.Options{})
	wantText(t, l, "")
	for i, key := range []string{"allowed local", "allowed remote", "allowed fallback", "denied local", "denied remote", "denied fallback", "error", "allowed none"} {
		for range i + 1 {
			res, err := l.Allow(t.Context(), key)
			if want := key == "error"; (err == errScripted) != want || (res.Remaining == 7) == want {
				t.Errorf("%s: %+v, %v is not what the limiter inside returned", key, res, err)
			}
		}
	}
	wantText(t, l, `"" allowed none 8
"" allowed remote 2
"" allowed local 1
"" allowed fallback 3
"" denied remote 5
"" denied local 4
"" denied fallback 6
"" failed none 7
`)
}

func TestLooksAreNotCounted(t *testing.T) {
	inner := &scripted{}
	l := wrap(t, inner, tally.Options{Class: func(string) string { panic("asked for the class of a look") }})
	for _, key := range []string{"allowed local", "error"} {
		l.AllowN(t.Context(), key, 0)
	}
	wantText(t, l, "")

	l = wrap(t, inner, tally.Options{})
	l.AllowN(t.Context(), "allowed local", 1000) // one request
	l.AllowN(t.Context(), "bad", -1)
	wantText(t, l, "\"\" allowed local 1\n\"\" failed none 1\n")
	if want := []int{0, 0, 1000, -1}; !slices.Equal(inner.calls, want) {
		t.Errorf("the limiter inside was asked for %v, want %v", inner.calls, want)
	}
}

func TestMET01_ClassesAreBounded(t *testing.T) {
	user := func(key string) string { return key[:strings.IndexByte(key, '/')] }
	l := wrap(t, &scripted{}, tally.Options{MaxClasses: 3, Class: user})
	for i := range 10_000 {
		l.Allow(t.Context(), fmt.Sprintf("user-%d/error", i))
		l.Allow(t.Context(), "user-1/error") // has its place already
	}
	l.Allow(t.Context(), "other/error")
	wantText(t, l, `"other" failed none 9998
"user-0" failed none 1
"user-1" failed none 10001
"user-2" failed none 1
`)

	// What is asked for first gets the places, and what cannot be a label gets none.
	l = wrap(t, &scripted{}, tally.Options{MaxClasses: 1, Class: user})
	for _, key := range []string{"other/", "\xff/", "/", "a/"} {
		l.Allow(t.Context(), key)
	}
	wantText(t, l, `"" failed none 1
"other" failed none 3
`)

	l = wrap(t, &scripted{}, tally.Options{Class: user})
	for i := range 150 {
		l.Allow(t.Context(), strconv.Itoa(i)+"/")
	}
	if n := len(l.Counts()); n != 101 {
		t.Errorf("%d classes by default, want 100 and the others", n)
	}
}

func TestMET01_WithoutClassKeysDoNotMatter(t *testing.T) {
	bucket, err := local.NewTokenBucket(limit.PerHour(1), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := wrap(t, bucket, tally.Options{})
	for i := range 10_000 {
		l.Allow(t.Context(), strconv.Itoa(i))
	}
	for i := range 5 {
		l.Allow(t.Context(), strconv.Itoa(i))
	}
	wantText(t, l, "\"\" allowed local 10000\n\"\" denied local 5\n")
}

func TestManyAtOnce(t *testing.T) {
	l := wrap(t, &still{}, tally.Options{MaxClasses: 8, Class: func(key string) string { return key }})
	const workers, each = 8, 2000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				l.Allow(context.Background(), strconv.Itoa((w+i)%20))
			}
		})
	}
	last := int64(0)
	for range 100 {
		n := total(l)
		if n < last {
			t.Fatalf("%d after %d: a count has gone down", n, last)
		}
		last = n
	}
	wg.Wait()
	if n := total(l); n != workers*each {
		t.Errorf("%d counted of %d", n, workers*each)
	}
	if n := len(l.Counts()); n != 9 {
		t.Errorf("%d classes, want 8 and the others", n)
	}
}

// still allows everything.
type still struct{}

func (*still) Allow(context.Context, string) (limit.Result, error) { return limit.Result{}, nil }
func (*still) AllowN(context.Context, string, int) (limit.Result, error) {
	return limit.Result{Verdict: limit.Verdict{Allowed: true, Origin: limit.Local}}, nil
}

func total(l *tally.Limiter) (n int64) {
	for _, c := range l.Counts() {
		n += c.N
	}
	return n
}

func TestLimitOf(t *testing.T) {
	bucket, err := local.NewTokenBucket(limit.PerHour(5), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := wrap(t, bucket, tally.Options{}).LimitOf("k"); got != limit.PerHour(5) {
		t.Errorf("%v", got)
	}
	if got := wrap(t, &scripted{}, tally.Options{}).LimitOf("k"); got != (limit.Limit{}) {
		t.Errorf("%v of a limiter that describes none", got)
	}
}

func TestBadInput(t *testing.T) {
	var none *remote.TokenBucket
	for name, f := range map[string]func() (*tally.Limiter, error){
		"nil":        func() (*tally.Limiter, error) { return tally.New(nil, tally.Options{}) },
		"typed nil":  func() (*tally.Limiter, error) { return tally.New(none, tally.Options{}) },
		"MaxClasses": func() (*tally.Limiter, error) { return tally.New(&scripted{}, tally.Options{MaxClasses: -1}) },
	} {
		if l, err := f(); l != nil || !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}

// leased is a limiter with a key "k" that is decided from memory throughout.
func leased(tb testing.TB) *hybrid.Limiter {
	tb.Helper()
	l, err := hybrid.NewFrom(leasetest.NewSource(), limit.PerSecond(1e6).WithBurst(2e9), hybrid.Options{LeaseSize: 4e8})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close(context.Background()) })
	if _, err := l.Allow(context.Background(), "k"); err != nil {
		tb.Fatal(err)
	}
	return l
}

func plan(string) string { return "free" }

func TestCountingDoesNotAllocate(t *testing.T) {
	if underRace {
		t.Skip("the race detector makes pools forget")
	}
	inner := leased(t)
	for name, opts := range map[string]tally.Options{"one class": {}, "by class": {Class: plan}} {
		l, ctx := wrap(t, inner, opts), t.Context()
		if n := testing.AllocsPerRun(1000, func() { l.Allow(ctx, "k") }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkAllow is what counting adds to a decision from memory.
func BenchmarkAllow(b *testing.B) {
	ctx := context.Background()
	for _, c := range []struct {
		name string
		wrap func(l limit.Limiter) limit.Limiter
	}{
		{"bare", func(l limit.Limiter) limit.Limiter { return l }},
		{"counted", func(l limit.Limiter) limit.Limiter { return wrap(b, l, tally.Options{}) }},
		{"by_class", func(l limit.Limiter) limit.Limiter { return wrap(b, l, tally.Options{Class: plan}) }},
	} {
		b.Run(c.name+"/serial", func(b *testing.B) {
			l := c.wrap(leased(b))
			b.ReportAllocs()
			for b.Loop() {
				if res, err := l.Allow(ctx, "k"); err != nil || !res.Allowed {
					b.Fatal(res, err)
				}
			}
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			l := c.wrap(leased(b))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if res, err := l.Allow(ctx, "k"); err != nil || !res.Allowed {
						b.Error(res, err)
						return
					}
				}
			})
		})
	}
}
