package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid/benchmarks/peers/internal/measure"
	"github.com/hybridlimit/hybrid/limit"
)

// The accuracy run: a limit that is really reached.
var accuracyLimit = limit.PerSecond(1000)

const accuracyGoroutines = 64

// table holds the passes of some limiters under some loads.
type table struct {
	peers    []Peer
	loads    []load
	redis    bool        // calls are timed, single ones are paired
	passes   [][][]*pass // by peer, load and round; no rounds where the load does not fit the peer
	verdicts []verdict
}

const loopName = "(the loop alone)"

// loop is a limiter that does nothing: what the loop itself costs is in every row of the table in memory.
func loop() Peer {
	return Peer{Name: loopName, New: func(*redis.Client, limit.Limit) (allowFunc, func(), error) {
		return func(context.Context, string) (bool, error) { return true, nil }, nothing, nil
	}}
}

// fill measures. Passes that are compared follow each other closely: first all limiters under one load, then the
// next load, and all of it again in the next round, begun at another limiter.
//
// That is not enough for one goroutine over Redis. Here a round trip takes 25 µs while client and server keep two
// processors awake and 60 µs when they do not, and the machine may change from one to the other after a second or
// after ten. So each of these passes is cut up and takes turns with the yardstick.
func (t *table) fill(ctx context.Context, b *measure.Backend, c config) error {
	subjects := make([]*subject, len(t.peers))
	t.passes = make([][][]*pass, len(t.peers))
	for i, p := range t.peers {
		s, err := p.open(b, p.speed())
		if err != nil {
			return err
		}
		defer s.closer()
		if !p.OneKey {
			s.touch(ctx)
		}
		if p.Warm > 0 {
			s.run(t.loads[len(t.loads)-1], p.Warm, 0)
		}
		subjects[i] = s
		t.passes[i] = make([][]*pass, len(t.loads))
	}
	for round := range c.rounds {
		for j, l := range t.loads {
			for k := range subjects {
				i := (k + round) % len(subjects)
				if subjects[i].OneKey && !l.hot {
					continue
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				var p *pass
				var err error
				if yard := t.find(redisYardstick); t.redis && l.goroutines == 1 && i != yard {
					p, err = subjects[i].beside(ctx, subjects[yard], b, l, c.pass)
				} else {
					p, err = subjects[i].measure(ctx, b, l, c.pass, t.redis)
				}
				if err != nil {
					return err
				}
				t.passes[i][j] = append(t.passes[i][j], p)
			}
		}
	}
	t.verdicts = make([]verdict, len(t.peers))
	for i, p := range t.peers {
		s, err := p.open(b, accuracyLimit)
		if err != nil {
			return err
		}
		key := fmt.Sprintf("accuracy:%d", time.Now().UnixNano()) // fresh on a server that was there before
		t.verdicts[i] = s.probe(ctx, accuracyLimit, key, accuracyGoroutines, c.offered*float64(accuracyLimit.Rate), c.accuracy)
		s.closer()
	}
	return ctx.Err()
}

// median of f over the rounds.
func median(ps []*pass, f func(*pass) float64) float64 {
	xs := make([]float64, len(ps))
	for i, p := range ps {
		xs[i] = f(p)
	}
	return measure.Median(xs)
}

// ratio is the median over the rounds of f of one limiter over f of the yardstick: in the pass beside it, else in
// the same round.
func ratio(ps, yard []*pass, f func(*pass) float64) float64 {
	xs := make([]float64, len(ps))
	for i, p := range ps {
		y := yard[i]
		if p.yard != nil {
			y = p.yard
		}
		xs[i] = f(p) / f(y)
	}
	return measure.Median(xs)
}

func (t *table) find(name string) int {
	return slices.IndexFunc(t.peers, func(p Peer) bool { return p.Name == name })
}

// remarks says what a reader must know to believe a row that shows the loads js.
func (t *table) remarks(i int, js []int) string {
	var out []string
	p := t.peers[i]
	if p.Speed != (limit.Limit{}) {
		out = append(out, "at "+short(p.Speed))
	}
	if p.Windows {
		out = append(out, "windows")
	}
	for _, j := range js {
		l := t.loads[j]
		var asked, denied, failed int
		for _, q := range t.passes[i][j] {
			asked += q.asked
			denied += q.denied
			failed += q.failed
		}
		if failed > 0 {
			out = append(out, fmt.Sprintf("%s: %s %% errors", l.name, percent(failed, asked)))
		}
		if denied > 0 {
			out = append(out, fmt.Sprintf("%s: %s %% denied", l.name, percent(denied, asked)))
		}
	}
	if v := t.verdicts[i]; v.failed > 0 {
		out = append(out, fmt.Sprintf("accuracy run: %s %% errors", percent(v.failed, v.offered)))
	}
	return strings.Join(out, "; ")
}

func (t *table) accuracy(i int) (admitted, offered string) {
	v := t.verdicts[i]
	if t.peers[i].Name == loopName {
		return "-", "-"
	}
	return fmt.Sprintf("%.3f", float64(v.admitted)/v.ideal), fmt.Sprintf("%.1f", float64(v.offered)/v.ideal)
}

func row(w io.Writer, cells ...string) {
	fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
}

// writeRedis writes the loads on one key or on many.
func (t *table) writeRedis(w io.Writer, title string, hot bool) {
	fmt.Fprintf(w, "## %s\n\n", title)
	head, rule := []string{"limiter"}, []string{"---"}
	var js []int
	for j, l := range t.loads {
		if l.hot == hot {
			js = append(js, j)
			head = append(head, fmt.Sprintf("g=%d /s", l.goroutines), "x")
			rule = append(rule, "---:", "---:")
		}
	}
	mid := js[len(js)/2]
	head = append(head, fmt.Sprintf("p50 / p99, g=%d", t.loads[mid].goroutines), "trips "+gs(t.loads, js), "commands", "allocs", "admitted / ideal", "offered / ideal", "remarks")
	rule = append(rule, "---:", "---:", "---:", "---:", "---:", "---:", "---")
	row(w, head...)
	row(w, rule...)
	yard := t.find(redisYardstick)
	for i, p := range t.peers {
		cells := []string{p.Name}
		var trips []string
		for _, j := range js {
			ps := t.passes[i][j]
			cells = append(cells, measure.Thousands(median(ps, (*pass).perSecond)), measure.Figure(ratio(ps, t.passes[yard][j], (*pass).perSecond)))
			trips = append(trips, measure.Figure(median(ps, func(p *pass) float64 { return p.per(float64(p.trips)) })))
		}
		ps := t.passes[i][mid]
		commands := median(ps, func(p *pass) float64 { return p.per(float64(p.commands)) })
		shown := measure.Figure(commands)
		if commands < 0 {
			shown = "-"
		}
		admitted, offered := t.accuracy(i)
		cells = append(cells,
			measure.Duration(median(ps, func(p *pass) float64 { return float64(p.latency.quantile(0.5)) }))+" / "+
				measure.Duration(median(ps, func(p *pass) float64 { return float64(p.latency.quantile(0.99)) })),
			strings.Join(trips, " / "), shown,
			measure.Figure(median(ps, func(p *pass) float64 { return p.per(float64(p.allocs)) })),
			admitted, offered, t.remarks(i, js))
		row(w, cells...)
	}
	fmt.Fprintln(w)
}

// gs names the goroutines of some loads: "1 / 64 / 256".
func gs(ls []load, js []int) string {
	var names []string
	for _, j := range js {
		names = append(names, fmt.Sprint(ls[j].goroutines))
	}
	return strings.Join(names, " / ")
}

func (t *table) writeMemory(w io.Writer) {
	fmt.Fprintf(w, "## In memory\n\nWall time per decision; with all CPUs busy, perfect scaling divides it by their number.\n\n")
	head, rule := []string{"limiter"}, []string{"---"}
	var all []int
	for j, l := range t.loads {
		all = append(all, j)
		head = append(head, l.name+" ns", "x")
		rule = append(rule, "---:", "---:")
	}
	row(w, append(head, "allocs", "admitted / ideal", "offered / ideal", "remarks")...)
	row(w, append(rule, "---:", "---:", "---:", "---")...)
	for i, p := range t.peers {
		cells := []string{p.Name}
		for j, l := range t.loads {
			ps := t.passes[i][j]
			if len(ps) == 0 {
				cells = append(cells, "", "")
				continue
			}
			yard := t.find(memoryYardstick)
			if !l.hot {
				yard = t.find(mapYardstick)
			}
			cells = append(cells, fmt.Sprintf("%.1f", median(ps, (*pass).nanos)), measure.Figure(ratio(ps, t.passes[yard][j], (*pass).nanos)))
		}
		admitted, offered := t.accuracy(i)
		cells = append(cells, measure.Figure(median(t.passes[i][0], func(p *pass) float64 { return p.per(float64(p.allocs)) })),
			admitted, offered, t.remarks(i, all))
		row(w, cells...)
	}
	fmt.Fprintln(w)
}

func percent(part, whole int) string { return measure.Figure(100 * float64(part) / float64(whole)) }

// short is the text of a limit with its large numbers as powers of ten.
func short(lim limit.Limit) string {
	return strings.NewReplacer("1000000000", "1e9", "1000000", "1e6").Replace(lim.String())
}
