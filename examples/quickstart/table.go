package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hybridlimit/hybrid/lease"
	"github.com/hybridlimit/hybrid/limit"
)

func printHead(out io.Writer) {
	fmt.Fprintf(out, "%-22s %12s %9s %9s %9s %15s %8s %8s\n", "mode", "decisions/s", "admitted", "ideal", "of ideal", "calls/decision", "p50", "p99")
}

func printRow(out io.Writer, name string, t tally, lim limit.Limit) {
	ideal := idealOf(lim, t.elapsed)
	fmt.Fprintf(out, "%-22s %12s %9s %9s %8.1f%% %15.5f %8s %8s", name,
		thousands(int(float64(t.decided)/t.elapsed.Seconds())), thousands(t.admitted), thousands(ideal),
		100*float64(t.admitted)/float64(ideal), float64(t.calls)/float64(t.decided),
		short(t.latency.quantile(0.5)), short(t.latency.quantile(0.99)))
	if t.failed > 0 {
		fmt.Fprintf(out, "  %s calls failed: %s", thousands(t.failed), oneLine(t.err))
	}
	fmt.Fprintln(out)
}

// idealOf is what a perfect bucket, full at the start, would have admitted.
func idealOf(lim limit.Limit, elapsed time.Duration) int {
	return lim.Burst + int(float64(lim.Rate)*elapsed.Seconds())
}

// printLegend says how to read the table; terms are those of the leases that were used.
func printLegend(out io.Writer, cfg config, terms lease.Terms) {
	window := cfg.limitOf(mode{window: true})
	fmt.Fprintf(out, `
ideal is Burst + Rate * time, what a perfect bucket would have admitted under this load. The leased mode, token bucket
and GCRA never admit more in any window of time, however many instances share the limit.

The leased mode decides from tokens that it fetched before and remembers for a moment that the bucket is dry, so almost
no decision waits for Redis. The price: tokens that one instance holds, here at most %d of %d in all and for at most
%v, are not there for another.

In the other modes every decision waits for Redis, but the callers of an instance that wait at the same time share a
call. "One call per request" is the token bucket without that sharing.

The windows count %v. The log is exact in every window; the counter estimates the log; a fixed window
lets up to twice its limit pass around its edge, which may be more than the ideal.
`, terms.MaxLeased, cfg.limit.Burst, terms.TTL, window)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short rounds to three digits.
func short(d time.Duration) string {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
}

// oneLine makes sure of that: Redis may put line breaks in its errors.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// progress shows on a terminal what goes on.
type progress struct {
	out   io.Writer // nil if it is no terminal
	width int
}

func newProgress(w io.Writer) *progress {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return &progress{out: w}
		}
	}
	return &progress{}
}

func (p *progress) show(text string) {
	if p.out != nil {
		p.width = len(text)
		fmt.Fprint(p.out, "\r", text)
	}
}

func (p *progress) clear() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r", strings.Repeat(" ", p.width), "\r")
	}
}
