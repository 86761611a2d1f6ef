package limit_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/hybridlimit/hybrid/limit"
)

func TestAdmit(t *testing.T) {
	for _, tt := range []struct {
		lim  limit.Limit
		key  string
		n    int
		want error
	}{
		{limit.PerSecond(5), "k", 0, nil},
		{limit.PerSecond(5), "k", 5, nil},
		{limit.PerSecond(5), "k", 6, limit.ErrExceedsBurst},
		{limit.PerSecond(5), "k", math.MaxInt, limit.ErrExceedsBurst},
		{limit.PerSecond(5), "k", -1, limit.ErrInvalidTokens},
		{limit.PerSecond(5), "k", math.MinInt, limit.ErrInvalidTokens},
		{limit.PerSecond(5), "", 1, limit.ErrInvalidKey},
		{limit.PerSecond(5), "\x00\xff", 1, nil},
		{limit.PerSecond(5), strings.Repeat("k", limit.MaxKeyLen), 1, nil},
		{limit.PerSecond(5), strings.Repeat("k", limit.MaxKeyLen+1), 1, limit.ErrInvalidKey},
		{limit.Unlimited(), "k", math.MaxInt, nil},
		{limit.Unlimited(), "k", -1, limit.ErrInvalidTokens},
		{limit.Unlimited(), "", 1, limit.ErrInvalidKey},
		{limit.Blocked(), "k", 1, nil},
		{limit.Blocked(), "k", -1, limit.ErrInvalidTokens},
	} {
		err := tt.lim.Admit(tt.key, tt.n)
		if !errors.Is(err, tt.want) {
			t.Errorf("%v, key of %d bytes, n=%d: %v, want %v", tt.lim, len(tt.key), tt.n, err, tt.want)
		}
		if len(tt.key) > 1 && err != nil && strings.Contains(err.Error(), tt.key) {
			t.Errorf("the error %q holds the key", err)
		}
	}
}

func TestConstant(t *testing.T) {
	allowed := limit.Verdict{Allowed: true, Origin: limit.Local}
	for _, tt := range []struct {
		lim   limit.Limit
		n     int
		want  limit.Result
		known bool
	}{
		{limit.PerSecond(5), 1, limit.Result{}, false},
		{limit.Limit{}, 1, limit.Result{}, false},
		{limit.Unlimited(), 0, limit.Result{Verdict: allowed, Remaining: math.MaxInt}, true},
		{limit.Unlimited(), math.MaxInt, limit.Result{Verdict: allowed, Remaining: math.MaxInt}, true},
		{limit.Blocked(), 0, limit.Result{Verdict: allowed}, true},
		{limit.Blocked(), 1, limit.Result{Verdict: limit.Verdict{Origin: limit.Local}, RetryAfter: limit.Never}, true},
	} {
		if got, known := tt.lim.Constant(tt.n, limit.Local); got != tt.want || known != tt.known {
			t.Errorf("%v, n=%d: %+v, %v; want %+v, %v", tt.lim, tt.n, got, known, tt.want, tt.known)
		}
	}
}

func TestOrigin(t *testing.T) {
	for o, want := range map[limit.Origin]string{0: "none", limit.Remote: "remote", limit.Local: "local", limit.Fallback: "fallback", 99: "none"} {
		if got := o.String(); got != want {
			t.Errorf("Origin(%d): %q, want %q", o, got, want)
		}
	}
}

func TestKEY01_JoinKeepsPartsApart(t *testing.T) {
	seen := map[string][]string{}
	for _, parts := range [][]string{
		{"user@a.co", "mtest"}, {"user@a.com", "test"}, {"a:b", "c"}, {"a", "b:c"}, {"a", ""}, {"", "a"}, {"x:y", "z"}, {"x", "y:z"},
		{"a"}, {"a", "", ""}, {""}, {"", ""}, {"1:a"}, {"1", "a"}, {"11:"}, {"0:0:"}, {"1", "xxxx", "yyyyy"}, {"4xxxx5yyyyy"},
	} {
		key := limit.Join(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q are both %q", parts, other, key)
		}
		seen[key] = parts
	}
}

func FuzzJoin(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c")
	f.Add("1:", "", "", "1:")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		if same := a == c && b == d; same != (limit.Join(a, b) == limit.Join(c, d)) {
			t.Errorf("Join(%q, %q) and Join(%q, %q) should be the same: %v", a, b, c, d, same)
		}
		if limit.Join(a, b) == limit.Join(a) || limit.Join(a, b) == limit.Join(a, b, c) {
			t.Errorf("Join(%q, %q) is also the key of fewer or more parts", a, b)
		}
	})
}

func TestResultIsSmall(t *testing.T) {
	if strconv.IntSize != 64 {
		t.Skip("a 32-bit int is smaller still")
	}
	if got := unsafe.Sizeof(limit.Result{}); got != 32 {
		t.Errorf("a Result has %d bytes, want 32", got)
	}
}

// flat is what Result would be without Verdict.
type flat struct {
	Allowed    bool
	Origin     limit.Origin
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
}

//go:noinline
func returnResult(n int) (limit.Result, error) {
	return limit.Result{Verdict: limit.Verdict{Allowed: n > 0, Origin: limit.Local}, Remaining: n}, nil
}

//go:noinline
func returnFlat(n int) (flat, error) {
	return flat{Allowed: n > 0, Origin: limit.Local, Remaining: n}, nil
}

// BenchmarkResult compares a call that returns a Result with one that returns its five parts in one struct, which is
// too many for registers: result/flat is the ratio of their times.
func BenchmarkResult(b *testing.B) {
	sum := 0
	result, five := time.Duration(0), time.Duration(0)
	const batch = 1000
	for range b.N {
		begin := time.Now()
		for i := range batch {
			r, err := returnResult(i)
			if r.Allowed && err == nil {
				sum += r.Remaining
			}
		}
		middle := time.Now()
		for i := range batch {
			r, err := returnFlat(i)
			if r.Allowed && err == nil {
				sum += r.Remaining
			}
		}
		result += middle.Sub(begin)
		five += time.Since(middle)
	}
	b.ReportMetric(float64(result)/float64(b.N*batch), "result-ns")
	b.ReportMetric(float64(five)/float64(b.N*batch), "flat-ns")
	b.ReportMetric(float64(result)/float64(five), "result/flat")
	if sum < 0 {
		b.Log(sum)
	}
}
