package tally

import (
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/puzpuzpuz/xsync/v4"

	"github.com/hybridlimit/hybrid/limit"
)

// classes are those that were seen so far.
type classes struct {
	name func(key string) string // nil if there is only one
	one  *class                  // then this

	byName *xsync.Map[string, *class]
	other  *class
	full   atomic.Bool // no more are made
	mu     sync.Mutex  // held to make one
	max    int
}

func newClasses(opts Options) classes {
	return classes{
		name: opts.Class, max: opts.MaxClasses,
		one: &class{}, other: &class{name: Other}, byName: xsync.NewMap[string, *class](),
	}
}

// of returns the class of a key.
func (c *classes) of(key string) *class {
	if c.name == nil {
		return c.one
	}
	name := c.name(key)
	if k, ok := c.byName.Load(name); ok {
		return k
	}
	if name == Other || c.full.Load() || !utf8.ValidString(name) {
		return c.other
	}
	return c.add(name)
}

// add makes a class, if there is room for one.
func (c *classes) add(name string) *class {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.byName.Load(name); ok {
		return k
	}
	if c.full.Load() {
		return c.other
	}
	k := &class{name: strings.Clone(name)} // it may be a part of a key
	c.byName.Store(k.name, k)
	c.full.Store(c.byName.Size() >= c.max)
	return k
}

func (c *classes) counts() []Count {
	all := c.one.counts(nil)
	all = c.other.counts(all)
	for _, k := range c.byName.All() {
		all = k.counts(all)
	}
	return all
}

// class has the counts of one class. Most kinds never occur, so each gets its counter when it first does.
type class struct {
	name  string
	cells [kinds]atomic.Pointer[xsync.Counter]
}

// The kinds of requests: allowed by each origin, denied by each, failed.
const (
	origins = int(limit.Fallback) + 1
	failed  = 2 * origins
	kinds   = failed + 1
)

func kindOf(v limit.Verdict, err error) int {
	origin := int(v.Origin)
	if origin >= origins {
		origin = 0
	}
	switch {
	case err != nil:
		return failed
	case v.Allowed:
		return origin
	}
	return origins + origin
}

func (k *class) add(v limit.Verdict, err error) {
	cell := &k.cells[kindOf(v, err)]
	c := cell.Load()
	if c == nil {
		cell.CompareAndSwap(nil, xsync.NewCounter())
		c = cell.Load()
	}
	c.Inc()
}

// counts appends those of the class.
func (k *class) counts(all []Count) []Count {
	for i := range k.cells {
		if c := k.cells[i].Load(); c != nil {
			all = append(all, Count{Class: k.name, Origin: limit.Origin(i % origins), Outcome: Outcome(i / origins), N: c.Value()})
		}
	}
	return all
}
