package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
	"github.com/hybridlimit/hybrid/limit"
)

const ms = scenario.Duration(time.Millisecond)

// short is a scenario that is over soon and asks for more than there is.
func short(change func(s *scenario.Scenario)) scenario.Scenario {
	s := scenario.Default()
	s.Limit = limit.PerSecond(500).WithBurst(100)
	s.For = 500 * ms
	s.OnFailure = "closed" // so that nothing exceeds the limit, however busy the machine is
	if change != nil {
		change(&s)
	}
	if s.Mode.Windowed() {
		s.Limit = limit.Limit{Rate: 50, Period: 100 * time.Millisecond, Burst: 50}
	}
	return s
}

// begin starts a run, which the end of the test stops.
func begin(t *testing.T, s scenario.Scenario) *Fleet {
	t.Helper()
	r, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	f, err := Start(r, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	return f
}

// finish waits for the end and checks what holds of every run of requests that cost 1.
func finish(t *testing.T, f *Fleet) (rec Recording, total Sample) {
	t.Helper()
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	rec = f.Recording()
	if !rec.Done || rec.Terms == "" || rec.Every != 0.2 {
		t.Errorf("done %v, terms %q, every %v", rec.Done, rec.Terms, rec.Every)
	}
	last := 0.0
	for _, s := range rec.Samples {
		if s.At <= last || len(s.Held) != rec.Scenario.Instances || s.P50 > s.P99 {
			t.Errorf("after %v s: %+v", last, s)
		}
		last = s.At
		total.Asked += s.Asked
		total.Admitted += s.Admitted
		total.Ideal += s.Ideal
		total.Calls += s.Calls
		total.DeniedLocal += s.DeniedLocal
		total.DeniedRemote += s.DeniedRemote
		total.DeniedFallback += s.DeniedFallback
		total.Failed += s.Failed
	}
	if decided := total.Admitted + total.DeniedLocal + total.DeniedRemote + total.DeniedFallback + total.Failed; total.Asked != decided || total.Asked == 0 {
		t.Errorf("%d asked, %d decided", total.Asked, decided)
	}
	if v := rec.Verdict; v.Asked != total.Asked || v.Admitted != total.Admitted || v.Excess != rec.Samples[len(rec.Samples)-1].Excess {
		t.Errorf("%+v\nof %+v", v, total)
	}
	// What is admitted is decided a little after it is asked: the bucket gains meanwhile what the longest call lasts.
	l := rec.Scenario.Limit
	late := rec.Scenario.Timeout().Seconds() * 2 * float64(l.Rate) / l.Period.Seconds()
	if float64(total.Admitted) > float64(total.Ideal)+rec.Verdict.Excess+late+1 && !rec.Scenario.Mode.Windowed() {
		t.Errorf("admitted %d, which is more than the ideal %d and the excess %v", total.Admitted, total.Ideal, rec.Verdict.Excess)
	}
	if _, err := json.Marshal(rec); err != nil {
		t.Error(err)
	}
	return rec, total
}

// In every mode limiters admit something, deny something, ask Redis, and stay within their bound.
func TestModes(t *testing.T) {
	for _, m := range scenario.Modes() {
		t.Run(string(m), func(t *testing.T) {
			f := begin(t, short(func(s *scenario.Scenario) { s.Mode = m }))
			rec, total := finish(t, f)
			if rec.Verdict.Excess != 0 {
				t.Errorf("excess %v", rec.Verdict.Excess)
			}
			if total.Admitted == 0 || total.Calls == 0 || total.DeniedLocal+total.DeniedRemote == 0 {
				t.Errorf("%+v", total)
			}
			if !m.Hybrid() && total.DeniedLocal != 0 {
				t.Errorf("%d denied in memory by a mode that has none", total.DeniedLocal)
			}
			if m != scenario.Leased {
				for _, s := range rec.Samples {
					for _, n := range s.Held {
						if n != 0 {
							t.Fatalf("%d held by a mode without leases", n)
						}
					}
				}
			}
		})
	}
}

// Of a lease of the size that was set something is held, and there are fewer calls than requests.
func TestLeasesAreHeld(t *testing.T) {
	f := begin(t, short(func(s *scenario.Scenario) {
		s.Limit, s.LeaseSize = limit.PerSecond(1000), 50
	}))
	rec, total := finish(t, f)
	var held int64
	for _, s := range rec.Samples {
		for _, n := range s.Held {
			held = max(held, n)
		}
	}
	if held == 0 || held > 100 || !strings.Contains(rec.Terms, "leases of 50 tokens") {
		t.Errorf("at most %d held; terms %q", held, rec.Terms)
	}
	if total.Calls == 0 || total.Calls > total.Asked/2 {
		t.Errorf("%d calls for %d requests", total.Calls, total.Asked)
	}
}

// Redis that hangs makes the failure policy decide, and does not keep the run from ending.
func TestHang(t *testing.T) {
	hang := func(policy string) func(s *scenario.Scenario) {
		return func(s *scenario.Scenario) {
			s.Limit, s.For, s.OnFailure = limit.PerSecond(200), 900*ms, policy
			s.LeaseTTL = 10 * ms
			s.Demand = scenario.Demand{Pattern: scenario.Flood, PerInstance: 100}
			s.Faults = []scenario.Fault{{Kind: scenario.Hang, At: 200 * ms, For: 5000 * ms}}
		}
	}
	for policy, check := range map[string]func(rec Recording, total Sample) bool{
		"local":  func(_ Recording, total Sample) bool { return total.DeniedFallback > 0 },
		"closed": func(rec Recording, total Sample) bool { return total.Failed > 0 && rec.Verdict.Excess == 0 },
		"open":   func(rec Recording, _ Sample) bool { return rec.Verdict.Excess > 100 },
	} {
		rec, total := finish(t, begin(t, short(hang(policy))))
		if !check(rec, total) {
			t.Errorf("%s: %+v, excess %v", policy, total, rec.Verdict.Excess)
		}
		if last := rec.Samples[len(rec.Samples)-1]; last.Fault != "Redis hangs" {
			t.Errorf("%s: at last the fault is %q", policy, last.Fault)
		}
	}
}

// A killed instance is not asked and holds nothing; it comes back as another process.
func TestKillAndRevive(t *testing.T) {
	f := begin(t, short(func(s *scenario.Scenario) {
		s.Instances, s.For, s.LeaseSize = 2, scenario.Duration(time.Minute), 50
		s.Limit = limit.PerSecond(1000)
	}))
	first := f.procs[1]
	f.Kill(1)
	f.Kill(1)
	f.Kill(-1)
	f.Kill(2)
	f.Kill(0)
	first.wire.mu.Lock()
	if !first.wire.cut || len(first.wire.conns) > 0 {
		t.Error("a dead instance is connected")
	}
	first.wire.mu.Unlock()
	if n := first.own.Stats().Returned; n != 0 {
		t.Errorf("it gave %d tokens back", n)
	}
	until(t, "nobody is asked", func() bool {
		rec := f.Recording()
		if len(rec.Samples) == 0 || rec.Done {
			return false
		}
		last := rec.Samples[len(rec.Samples)-1]
		return last.Asked == 0 && last.Held[1] == 0 && last.Fault == "instances 0, 1 dead"
	})
	f.Revive(1)
	f.Revive(1)
	f.Revive(7)
	until(t, "a revived instance is asked", func() bool {
		rec := f.Recording()
		last := rec.Samples[len(rec.Samples)-1]
		return last.Asked > 0 && last.Fault == "instance 0 dead"
	})
	f.mu.Lock()
	if f.procs[1] == nil || f.procs[1] == first {
		t.Error("it is not another process")
	}
	f.mu.Unlock()
	f.Stop()
	rec, total := finish(t, f)
	if total.Admitted == 0 || rec.Verdict.Excess != 0 {
		t.Errorf("%+v, excess %v", total, rec.Verdict.Excess)
	}
}

// until waits for something to come true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not yet: %s", what)
		}
	}
}

// What a scenario says goes wrong does, and ends.
func TestFaultsOfAScenario(t *testing.T) {
	f := begin(t, short(func(s *scenario.Scenario) {
		s.For = 1000 * ms
		s.Faults = []scenario.Fault{
			{Kind: scenario.Kill, At: 250 * ms, For: 100 * ms, Instance: 2},
			{Kind: scenario.Hang, At: 250 * ms, For: 100 * ms},
		}
	}))
	rec, _ := finish(t, f)
	var seen strings.Builder
	for _, s := range rec.Samples {
		seen.WriteString(s.Fault)
	}
	if !strings.Contains(seen.String(), "Redis hangs; instance 2 dead") || rec.Samples[len(rec.Samples)-1].Fault != "" {
		t.Errorf("%q, at last %q", seen.String(), rec.Samples[len(rec.Samples)-1].Fault)
	}
}

// What is wrong is said whether the scenario or somebody did it.
func TestFaultsAreThoseOfNow(t *testing.T) {
	minute := scenario.Duration(time.Minute)
	f := begin(t, short(func(s *scenario.Scenario) {
		s.For = minute
		s.Faults = []scenario.Fault{{Kind: scenario.Kill, For: minute, Instance: 2}, {Kind: scenario.Hang, For: minute}}
	}))
	until(t, "what the scenario says is wrong", func() bool {
		hanging, dead := f.Faults()
		return hanging && slices.Equal(dead, []bool{false, false, true, false})
	})
	f.Hang(false)
	f.Revive(2)
	if hanging, dead := f.Faults(); hanging || slices.Contains(dead, true) {
		t.Errorf("hanging %v, dead %v", hanging, dead)
	}
}

// With Redis far away limiters still reach it.
func TestFarRedis(t *testing.T) {
	for _, m := range []scenario.Mode{scenario.TokenBucket, scenario.Leased} {
		f := begin(t, short(func(s *scenario.Scenario) {
			s.Mode, s.Delay, s.For = m, 40*ms, 900*ms
			s.Limit = limit.PerSecond(500).WithBurst(1000)
			s.Demand.PerInstance = 50
		}))
		rec, total := finish(t, f)
		if total.Admitted == 0 || rec.Verdict.P99 < 40_000 || !strings.HasSuffix(rec.Terms, ", timeout 200ms") {
			t.Errorf("%s: %+v, p99 %v µs, terms %q", m, total, rec.Verdict.P99, rec.Terms)
		}
	}
}

// More than may wait are turned away, counted as asked and failed.
func TestTooManyInFlight(t *testing.T) {
	f := begin(t, short(func(s *scenario.Scenario) {
		s.OnFailure, s.Mode = "closed", scenario.TokenBucket
		s.Demand.PerInstance = 50_000
		s.For = 150 * ms
	}))
	f.inFlight.Add(maxInFlight) // as if so many waited
	_, total := finish(t, f)
	if total.Failed < total.Asked/2 {
		t.Errorf("%+v", total)
	}
}

func TestStop(t *testing.T) {
	f := begin(t, short(func(s *scenario.Scenario) { s.For = scenario.Duration(time.Minute) }))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := f.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	f.Hang(true)
	f.Stop()
	f.Stop()
	f.Hang(true)
	f.Kill(0)
	f.Revive(0)
	rec, _ := finish(t, f)
	if len(rec.Samples) == 0 || rec.Samples[len(rec.Samples)-1].At > 30 {
		t.Errorf("%d samples", len(rec.Samples))
	}
}

func TestStartRefusesAnInvalidScenario(t *testing.T) {
	r, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var bad *scenario.Error
	if _, err := Start(r, scenario.Scenario{}); !errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
}

// Runs do not meet, on a server that has something else on it, and leave what they did not make.
func TestAt(t *testing.T) {
	own, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	own.embedded.Set("other", "here")
	for _, addr := range []string{own.opts.Addr, "redis://" + own.opts.Addr + "/0"} {
		r, err := At(addr)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Start(r, short(func(s *scenario.Scenario) { s.Limit, s.For = limit.PerHour(5), 150*ms }))
		if err != nil {
			t.Fatal(err)
		}
		if _, total := finish(t, f); total.Admitted != 5 {
			t.Errorf("admitted %d of 5: the run is not alone", total.Admitted)
		}
		f.Stop()
		if !strings.HasPrefix(r.String(), "Redis at 127.0.0.1:") {
			t.Errorf("%q", r)
		}
		r.Close()
	}
	if got, err := own.embedded.Get("other"); err != nil || got != "here" {
		t.Errorf("%q, %v", got, err)
	}
	for _, k := range own.embedded.Keys() {
		if k != "other" && own.embedded.TTL(k) == 0 {
			t.Errorf("%s does not expire", k)
		}
	}
	for _, addr := range []string{"127.0.0.1:1", "redis://user:secret@127.0.0.1:1/x", "rediss://user:secret@" + own.opts.Addr} {
		if _, err := At(addr); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v", err)
		}
	}
	if _, err := At("rediss://" + own.opts.Addr); err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("%v, want that there is no TLS", err)
	}
}
