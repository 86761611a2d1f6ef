package httplimit

import (
	"sync"
	"time"
)

// pauses are the hosts to which nothing is sent for a while. Only a host that has asked for it is remembered.
type pauses struct {
	most int // hosts

	mu    sync.Mutex // guards the field below
	until map[string]time.Time
}

// left is how long the pause of a host still lasts; 0 if there is none.
func (p *pauses) left(host string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	end, ok := p.until[host]
	if !ok {
		return 0
	}
	d := time.Until(end)
	if d <= 0 {
		delete(p.until, host)
		return 0
	}
	return d
}

// extend makes the pause of a host last until end, if it does not last longer already.
func (p *pauses) extend(host string, end time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, ok := p.until[host]
	if ok && !end.After(before) {
		return
	}
	if !ok && len(p.until) >= p.most {
		p.makeRoomLocked()
	}
	p.until[host] = end
}

// makeRoomLocked forgets the pauses that are over, or else the one that ends first.
func (p *pauses) makeRoomLocked() {
	now := time.Now()
	var first string
	var firstEnd time.Time
	for host, end := range p.until {
		if !end.After(now) {
			delete(p.until, host)
		} else if firstEnd.IsZero() || end.Before(firstEnd) {
			first, firstEnd = host, end
		}
	}
	if len(p.until) >= p.most {
		delete(p.until, first)
	}
}
