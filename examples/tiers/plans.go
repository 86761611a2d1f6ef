package main

import (
	"sync"

	"github.com/hybridlimit/hybrid"
)

// plan is what customers pay for.
type plan string

// limits are what a customer of each plan may do in a minute and in a day. The zero Limit, of a plan that is not known, is
// that of the limiter, which is that of free.
var limits = map[plan]struct{ perMinute, perDay hybrid.Limit }{
	"free":       {hybrid.PerMinute(6), hybrid.PerDay(4)},
	"trial":      {hybrid.PerMinute(6).WithBurst(3), hybrid.PerDay(100)},
	"pro":        {hybrid.PerMinute(60), hybrid.PerDay(10_000)},
	"enterprise": {hybrid.Unlimited(), hybrid.Unlimited()},
	"blocked":    {hybrid.Blocked(), hybrid.Blocked()},
}

// plans are those of all customers: a table of a database, or a copy of it that is kept up to date. LimitFor is called by
// many goroutines and must be quick, so no query is made there.
type plans struct {
	mu sync.RWMutex // guards the field below
	of map[string]plan
}

func (p *plans) set(customer string, to plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[customer] = to
}

func (p *plans) get(customer string) plan {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.of[customer]
}

// perMinute and perDay are each a LimitFor.
func (p *plans) perMinute(customer string) hybrid.Limit { return limits[p.get(customer)].perMinute }
func (p *plans) perDay(customer string) hybrid.Limit    { return limits[p.get(customer)].perDay }
