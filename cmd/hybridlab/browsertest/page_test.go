package browsertest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
)

const anywhere = "127.0.0.1:0"

// asked is the figure of that name.
const asked = `Number([...document.querySelectorAll("#numbers div")].find((d) => d.querySelector("dt").textContent === "asked")?.querySelector("dd").textContent ?? 0)`

// tabTo presses Tab until the element with the id has the focus, and the focus can be seen.
func (p *tab) tabTo(id string) {
	p.Helper()
	for range 60 {
		p.press(kb.Tab)
		if js[string](p, `document.activeElement.id`) == id {
			if width := js[string](p, `getComputedStyle(document.activeElement).outlineWidth`); width != "3px" {
				p.Errorf("#%s has the focus, and an outline of %s", id, width)
			}
			return
		}
	}
	p.Fatalf("no number of Tabs leads to #%s", id)
}

// TestARunByKeyboardAlone sets a lease size, starts a run, breaks Redis and sees the end of it, without a mouse.
func TestARunByKeyboardAlone(t *testing.T) {
	p := serve(t, anywhere).open(1280, 900)
	if text := p.text("#verdicts"); !strings.Contains(text, "press Run") {
		t.Errorf("at first the page says %q", text)
	}
	if n := js[int](p, `[...document.querySelectorAll("#charts svg .empty")].length`); n != 5 {
		t.Errorf("%d empty charts, want 5", n)
	}
	p.shot("empty")
	p.tabTo("f-leaseSize")
	p.press("40")
	p.until(`document.getElementById("code").textContent.includes("LeaseSize: 40")`)
	p.tabTo("f-for")
	p.press("12s")
	p.press(kb.Enter)
	p.until(asked + " > 0")
	first := js[int](p, asked)
	p.until(asked + " > " + string(json.Number(js[string](p, "String("+asked+")"))))
	if first <= 0 || !js[bool](p, `document.getElementById("run").disabled`) {
		t.Error("the run is not under way")
	}
	p.tabTo("hang")
	p.press(" ")
	p.until(`document.getElementById("hang").getAttribute("aria-pressed") === "true"`)
	p.until(`document.getElementById("status").textContent.includes("Redis hangs")`)
	if js[string](p, `document.activeElement.id`) != "hang" {
		t.Error("the button has lost the focus")
	}
	p.until(`document.querySelectorAll("#charts .fault").length === 5`)
	p.press(" ")
	p.until(`document.getElementById("hang").getAttribute("aria-pressed") === "false"`)
	p.press(kb.Tab)
	p.press(" ") // kill instance 0
	p.until(`document.getElementById("status").textContent.includes("instance 0 dead")`)
	p.shot("running")
	p.press(" ")
	p.until(`document.body.dataset.phase === "done"`)
	if said := p.text("[role=status]"); !strings.HasPrefix(said, "Done. ") || !strings.Contains(said, "% of ideal") {
		t.Errorf("in the end it says %q", said)
	}
	p.shot("done")
}

// TestComparisonAndExports compares two lease sizes, in two tabs, and looks into the files.
func TestComparisonAndExports(t *testing.T) {
	l := serve(t, anywhere)
	p, other := l.open(1280, 900), l.open(1280, 900)
	p.set("f-leaseSize", "5")
	p.set("f-for", "3s")
	p.click(`[name="which"][value="1"]`)
	p.set("f-leaseSize", "100")
	p.set("f-for", "3s")
	p.click("#compare")
	other.until(`document.getElementById("status").textContent === "Running B, 2 of 2."`)
	for _, q := range []*tab{p, other} {
		q.until(`document.body.dataset.phase === "done"`)
		if text := q.text("#verdicts"); !strings.Contains(text, "What differs: lease size A 5 tokens, B 100 tokens.") {
			t.Errorf("verdicts %q", text)
		}
		if n := js[int](q, `document.querySelectorAll("#charts svg").length`); n != 7 {
			t.Errorf("%d charts, want 7", n)
		}
	}
	p.shot("comparison")

	text := js[string](p, `fetch(document.querySelector("#exports a[href$=json]").href).then((r) => r.text())`)
	var recs []fleet.Recording
	if err := json.Unmarshal([]byte(text), &recs); err != nil {
		t.Fatal(err)
	}
	if len(recs) != 2 || recs[0].Scenario.LeaseSize != 5 || recs[1].Scenario.LeaseSize != 100 {
		t.Fatalf("%d recordings", len(recs))
	}
	for i, rec := range recs {
		if !rec.Done || len(rec.Samples) < 5 || rec.Verdict.Excess != 0 {
			t.Errorf("recording %d: over %v, %d samples, excess %v", i, rec.Done, len(rec.Samples), rec.Verdict.Excess)
		}
	}
	if recs[0].Verdict.CallsEach <= recs[1].Verdict.CallsEach {
		t.Errorf("leases of 5 took %v calls per decision, of 100 %v", recs[0].Verdict.CallsEach, recs[1].Verdict.CallsEach)
	}

	file := filepath.Join(t.TempDir(), "report.html")
	html := js[string](p, `fetch(document.querySelector("#exports a[href$=html]").href).then((r) => r.text())`)
	if err := os.WriteFile(file, []byte(html), 0o644); err != nil {
		t.Fatal(err)
	}
	report := open(t, "file://"+file, 1280, 900)
	if n := js[int](report, `JSON.parse(document.getElementById("recordings").textContent).length`); n != 2 {
		t.Errorf("the report has %d recordings", n)
	}
	if n := js[int](report, `[...document.querySelectorAll("svg")].filter((s) => s.getBoundingClientRect().width > 300).length`); n != 7 {
		t.Errorf("the report shows %d charts, want 7", n)
	}
	report.shot("report")
	report.prefer("dark")
	report.shot("report-dark")
	phone := open(t, "file://"+file, 360, 740, chromedp.EmulateMobile)
	phone.fits("report")
	phone.shot("report-phone")
}

// TestInvalidSettingIsShownAtItsField, in the words of the server.
func TestInvalidSettingIsShownAtItsField(t *testing.T) {
	p := serve(t, anywhere).open(1280, 900)
	wrong := func(id string) string {
		return `document.getElementById("` + id + `").closest("[data-field]").querySelector(".wrong").textContent`
	}
	p.set("f-instances", "0")
	p.until(wrong("f-instances") + ` === "0 must be 1 to 64"`)
	p.set("f-limit", "plenty")
	p.until(wrong("f-limit") + `.includes("plenty")`)
	p.press(kb.Enter)
	p.until(`document.activeElement.id === "f-limit" && document.activeElement.getAttribute("aria-invalid") === "true"`)
	p.shot("error")
	if phase := js[string](p, `document.body.dataset.phase`); phase != "idle" {
		t.Errorf("the lab is %s", phase)
	}
	p.set("f-limit", "500/s")
	p.set("f-instances", "3")
	p.until(`[...document.querySelectorAll(".wrong")].every((w) => w.textContent === "") && !document.querySelector("[aria-invalid]")`)

	p.run(`for (const d of document.querySelectorAll("details")) d.open = true`)
	p.click("#add")
	p.until(`document.activeElement.dataset.key === "kind"`)
	p.press(kb.Tab)
	p.press("1h")
	p.until(`document.querySelector("[data-field=faults] .wrong").textContent.startsWith("fault 1, at: 1h0m0s is not within the run")`)
	if got := js[string](p, `document.querySelector("[aria-invalid]").dataset.key`); got != "at" {
		t.Errorf("marked as wrong is %q", got)
	}
	p.shot("error-fault")
	p.click("#faults .remove")
	p.until(`document.querySelector("[data-field=faults] .wrong").textContent === ""`)
	if seen := p.forgive(); strings.Count(seen, "422") != strings.Count(seen, "\n")+1 { // the browser notes each answer of that kind
		t.Errorf("in the console:\n%s", seen)
	}
}

// TestAddressHoldsTheSettings: who opens the address sees the same.
func TestAddressHoldsTheSettings(t *testing.T) {
	l := serve(t, anywhere)
	p := l.open(1280, 900)
	p.do(chromedp.SetValue(chromedp.CSS("#preset"), js[string](p, `[...document.querySelectorAll("#preset option")].find((o) => o.textContent === "An instance dies").value`)))
	p.click("#load")
	p.click(`[name="which"][value="1"]`)
	p.set("f-leaseSize", "123")
	p.until(`document.getElementById("code").textContent.includes("LeaseSize: 123")`)
	q := open(t, js[string](p, `location.href`), 1280, 900)
	q.until(`document.getElementById("code").textContent.includes("LeaseSize: 50")`)
	if got := js[string](q, `document.querySelector("#faults [data-key=instance]").value`); got != "1" {
		t.Errorf("the fault is of instance %s", got)
	}
	q.click(`[name="which"][value="1"]`)
	if got := js[string](q, `document.getElementById("f-leaseSize").value`); got != "123" {
		t.Errorf("settings B have lease size %q", got)
	}
	// One that somebody has broken is no reason not to work.
	open(t, "http://"+l.addr+`/#a={"limit":5,"demand":null&b=<b>`, 1280, 900).until(`document.body.dataset.phase === "idle"`)
	for _, broken := range []string{`{"faults":5}`, `{"faults":[null,{"at":5}],"demand":7}`} {
		q := open(t, "http://"+l.addr+"/#a="+broken, 1280, 900)
		q.until(`document.body.dataset.phase === "idle"`)
		q.until(`[...document.querySelectorAll(".wrong")].some((w) => w.textContent !== "")`)
		q.forgive() // the browser notes that the server refused it
	}
}

func TestModesWithoutLeasesCloseTheirFields(t *testing.T) {
	p := serve(t, anywhere).open(1280, 900)
	p.set("f-leaseSize", "40")
	p.run(`{ const m = document.getElementById("f-mode"); m.value = "gcra"; m.dispatchEvent(new Event("input", { bubbles: true })); }`)
	p.until(`document.getElementById("code").textContent.includes("remote.NewGCRA")`)
	if !js[bool](p, `document.getElementById("f-leaseSize").matches(":disabled")`) {
		t.Error("the lease size can be set")
	}
}

// TestPhone: one column, and nothing to be found at the side.
func TestPhone(t *testing.T) {
	p := serve(t, anywhere).open(360, 740, chromedp.EmulateMobile)
	p.fits("at first")
	p.run(`for (const d of document.querySelectorAll("details")) d.open = true`)
	p.click("#add")
	p.run(`{ const k = document.querySelector("#faults select"); k.value = "kill"; k.dispatchEvent(new Event("change")); }`)
	p.fits("with a fault")
	p.shot("phone-form")
	p.click("#faults .remove")
	p.set("f-for", "4s")
	p.press(kb.Enter)
	p.until(asked + " > 0")
	p.until(`document.querySelector("#kills button") !== null`)
	p.fits("running")
	if left, right := js[float64](p, `document.getElementById("form").getBoundingClientRect().left`), js[float64](p, `document.getElementById("results").getBoundingClientRect().left`); left != right {
		t.Errorf("two columns, at %v and %v", left, right)
	}
	p.until(`Math.abs(document.querySelector("#charts svg").viewBox.baseVal.width - document.querySelector("#charts svg").getBoundingClientRect().width) < 9`)
	p.shot("phone-running")
	p.until(`document.body.dataset.phase === "done"`)
	p.fits("done")
	p.shot("phone-done")
}

// TestDark: the page and its charts follow what the browser prefers.
func TestDark(t *testing.T) {
	p := serve(t, anywhere).open(1280, 900)
	const light = `(() => { const of = (e, what) => getComputedStyle(e)[what].match(/\d+/g).map(Number).slice(0, 3).reduce((a, b) => a + b) / 3;
		return [of(document.body, "backgroundColor"), of(document.body, "color"), of(document.querySelector("#charts .title"), "fill")]; })()`
	for scheme, dark := range map[string]bool{"light": false, "dark": true} {
		p.prefer(scheme)
		for i, v := range js[[]float64](p, light) {
			if wantDark := dark == (i == 0); wantDark != (v < 128) {
				t.Errorf("%s: colour %d has brightness %.0f", scheme, i, v)
			}
		}
	}
	p.prefer("dark")
	p.set("f-for", "5s")
	p.press(kb.Enter)
	p.until(asked + " > 300")
	p.click("#hang")
	p.until(`document.querySelectorAll("#charts .fault").length === 5`)
	p.shot("dark-running")
	p.until(`document.body.dataset.phase === "done"`)
	p.shot("dark-done")
}

// TestConnectionLost: the page says so, and finds the lab when it is back.
func TestConnectionLost(t *testing.T) {
	l := serve(t, anywhere)
	p := l.open(1280, 900)
	l.stop()
	p.until(`!document.getElementById("lost").hidden`)
	p.shot("lost")
	serve(t, l.addr)
	p.until(`document.getElementById("lost").hidden`)
	p.set("f-for", "500ms")
	p.press(kb.Enter)
	p.until(`document.body.dataset.phase === "done"`)
	p.forgive() // the browser may note that it was refused
}

// TestEverythingHasAName: what can be operated says what it is, and text stands out from what is behind it.
func TestEverythingHasAName(t *testing.T) {
	p := serve(t, anywhere).open(1280, 900)
	p.run(`for (const d of document.querySelectorAll("details")) d.open = true; document.getElementById("add").click()`)
	nameless := js[string](p, `[...document.querySelectorAll("input, select, button, progress, a")].filter((e) =>
		!e.textContent.trim() && !e.getAttribute("aria-label") && ![...(e.labels ?? [])].some((l) => l.textContent.trim()) ||
		["INPUT", "SELECT"].includes(e.tagName) && !e.labels.length).map((e) => e.outerHTML).join("\n")`)
	if nameless != "" {
		t.Errorf("without a name:\n%s", nameless)
	}
	for _, scheme := range []string{"light", "dark"} {
		p.prefer(scheme)
		faint := js[string](p, `(() => {
			const rgb = (c) => c.match(/[\d.]+/g).map(Number);
			const lum = (c) => rgb(c).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
			const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return "rgb(255, 255, 255)"; };
			return [...document.querySelectorAll("body *")].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && e.checkVisibility() && !e.closest("svg, :disabled, option")).map((e) => {
				const a = lum(getComputedStyle(e).color), b = lum(behind(e));
				return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 90)];
			}).filter(([c]) => c < 4.5).map(([c, e]) => c.toFixed(2) + " " + e).join("\n");
		})()`)
		if faint != "" {
			t.Errorf("%s: contrast below 4.5:\n%s", scheme, faint)
		}
	}
}
