package tally

import (
	"context"
	"fmt"
	"reflect"

	"github.com/hybridlimit/hybrid/limit"
)

// Options of a Limiter. The zero value is ready to use.
type Options struct {
	// Class says under which name a key is counted, for example the plan of a customer. It is called for every request,
	// so it must be quick, safe for concurrent use, and of few different answers. Default: all are counted together.
	Class func(key string) string
	// MaxClasses is how many classes are told apart, Other not included. Requests of all that come later are counted as
	// Other, so that no caller can make the counts grow. Default 100.
	MaxClasses int
}

// Other is the class of requests that have none of their own: there are MaxClasses already, or its name is no UTF-8,
// which no metrics can have.
const Other = "other"

const defaultMaxClasses = 100

// Outcome is what became of a request.
type Outcome uint8

// The outcomes.
const (
	// Allowed: it was.
	Allowed Outcome = iota
	// Denied: there were no tokens.
	Denied
	// Failed: the limiter returned an error, and nothing was decided.
	Failed
)

// String returns "allowed", "denied" or "failed".
func (o Outcome) String() string {
	switch o {
	case Allowed:
		return "allowed"
	case Denied:
		return "denied"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Count is how many requests of one kind there were.
type Count struct {
	// Class is "" unless Options.Class says otherwise.
	Class string
	// Origin is where they were decided; the zero Origin if they were not.
	Origin  limit.Origin
	Outcome Outcome
	// N only grows.
	N int64
}

// Limiter counts what the limiter inside it decides, and changes nothing. It is safe for concurrent use; make it with New.
type Limiter struct {
	inner   limit.Limiter
	limits  limit.Describer // nil if inner is none
	classes classes
}

// New returns a Limiter around l. Errors wrap limit.ErrInvalid.
func New(l limit.Limiter, opts Options) (*Limiter, error) {
	if v := reflect.ValueOf(l); l == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("%w: the limiter is nil", limit.ErrInvalid)
	}
	if opts.MaxClasses < 0 {
		return nil, fmt.Errorf("%w: Options.MaxClasses %d is negative", limit.ErrInvalid, opts.MaxClasses)
	}
	if opts.MaxClasses == 0 {
		opts.MaxClasses = defaultMaxClasses
	}
	t := &Limiter{inner: l, classes: newClasses(opts)}
	t.limits, _ = l.(limit.Describer)
	return t, nil
}

// Allow is shorthand for AllowN(ctx, key, 1).
func (t *Limiter) Allow(ctx context.Context, key string) (limit.Result, error) {
	return t.AllowN(ctx, key, 1)
}

// AllowN is that of the limiter inside. It is counted once, whatever n, but for n = 0, which only looks.
func (t *Limiter) AllowN(ctx context.Context, key string, n int) (limit.Result, error) {
	res, err := t.inner.AllowN(ctx, key, n)
	if n != 0 {
		t.classes.of(key).add(res.Verdict, err)
	}
	return res, err
}

// LimitOf is that of the limiter inside; the zero Limit if it describes none.
func (t *Limiter) LimitOf(key string) limit.Limit {
	if t.limits == nil {
		return limit.Limit{}
	}
	return t.limits.LimitOf(key)
}

// Counts returns the counts that are not zero, in no order. They are not taken at one instant.
func (t *Limiter) Counts() []Count { return t.classes.counts() }
