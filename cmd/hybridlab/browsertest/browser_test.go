package browsertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/fleet"
	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/page"
)

// browser is the one that all tests share; each has tabs of its own.
var browser context.Context

// patience is for anything that the page has to show.
const patience = 60 * time.Second

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	logging.Disable() // go-redis would report the connections that faults break
	path := os.Getenv("HYBRID_BROWSER")
	if path == "" {
		path = "/usr/bin/chromium"
	}
	if _, err := exec.LookPath(path); err != nil {
		fmt.Println("no browser at", path, "(HYBRID_BROWSER names another one)")
		if os.Getenv("HYBRID_REQUIRE_BROWSER") == "1" {
			return 1
		}
		return 0
	}
	profile, err := os.MkdirTemp("", "hybridlab-browser-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(profile)
	alloc, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.Flag("hide-scrollbars", false),
	)
	defer stop()
	var cancel context.CancelFunc
	browser, cancel = chromedp.NewContext(alloc)
	defer cancel()
	if err := chromedp.Do(browser); err != nil {
		fmt.Println("the browser does not start:", err)
		return 1
	}
	code := m.Run()
	if err := chromedp.Cancel(browser); err != nil {
		fmt.Println("the browser does not end:", err)
		code = 1
	}
	stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Println(err)
		code = 1
	}
	return code
}

// lab is a page that is served.
type lab struct {
	*testing.T
	addr string
	stop func() // ends it, and waits
}

// serve serves a lab, with a Redis of its own, until the end of the test. addr is "127.0.0.1:0" but for one that comes
// back where it was.
func serve(t *testing.T, addr string) lab {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r, err := fleet.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- page.Serve(ctx, ln, r, io.Discard) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Errorf("Serve: %v", err)
		}
		r.Close()
	})
	t.Cleanup(stop)
	return lab{t, ln.Addr().String(), stop}
}

// tab is a page in the browser.
type tab struct {
	*testing.T
	ctx context.Context

	mu     sync.Mutex
	errors []string // what the console showed
}

// open opens a tab with a window of that size. Anything that the console reports fails the test.
func open(t *testing.T, url string, width, height int64, opts ...chromedp.EmulateViewportOption) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	p := &tab{T: t, ctx: ctx}
	var listeners sync.WaitGroup
	thrown, logged := chromedp.Events(ctx, runtime.ExceptionThrown), chromedp.Events(ctx, log.EntryAdded)
	listeners.Go(func() {
		for e, err := range thrown {
			if err == nil {
				p.note(fmt.Sprintf("%s, %s:%d", e.ExceptionDetails.Text, e.ExceptionDetails.URL, e.ExceptionDetails.LineNumber+1))
			}
		}
	})
	listeners.Go(func() {
		for e, err := range logged {
			if err == nil && e.Entry.Level == log.EntryLevelError {
				p.note(e.Entry.Text + " " + e.Entry.URL)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		listeners.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.errors) > 0 {
			t.Errorf("in the console:\n%s", strings.Join(p.errors, "\n"))
		}
	})
	p.do(chromedp.EmulateViewport(width, height, opts...), chromedp.Navigate(url))
	return p
}

func (l lab) open(width, height int64, opts ...chromedp.EmulateViewportOption) *tab {
	l.Helper()
	p := open(l.T, "http://"+l.addr+"/", width, height, opts...)
	p.until(`document.body.dataset.phase !== undefined`) // the first event has come
	return p
}

// note keeps what the console showed.
func (p *tab) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errors = append(p.errors, text)
}

// forgive drops what the console has shown, after something that had to go wrong. It returns it.
func (p *tab) forgive() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := strings.Join(p.errors, "\n")
	p.errors = nil
	return all
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.Fatal(err)
	}
}

// js returns what an expression gives.
func js[T any](p *tab, expression string) T {
	p.Helper()
	return get(p, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// run runs statements.
func (p *tab) run(statements string) {
	p.Helper()
	p.do(chromedp.Evaluate[chromedp.Void](statements))
}

// get returns what an action gives.
func get[T any](p *tab, a chromedp.Action[T]) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		p.Fatal(err)
	}
	return v
}

// until waits until an expression is true.
func (p *tab) until(expression string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(patience))); err != nil {
		p.shot("failed-" + strings.ReplaceAll(p.Name(), "/", "-"))
		p.Fatalf("%s: %v; status %q", expression, err, js[string](p, `document.getElementById("status")?.textContent ?? ""`))
	}
}

func (p *tab) text(selector string) string {
	p.Helper()
	return js[string](p, fmt.Sprintf(`document.querySelector(%q).textContent.trim()`, selector))
}

// set gives an input a value as somebody who types it does.
func (p *tab) set(id, value string) {
	p.Helper()
	p.run(fmt.Sprintf(`{ const e = document.getElementById(%q); e.closest("details").open = true; e.focus(); e.select?.(); }`, id))
	if value == "" {
		p.press("\b")
		return
	}
	p.press(value)
}

func (p *tab) press(keys string) {
	p.Helper()
	p.do(chromedp.KeyEvent(keys))
}

func (p *tab) click(selector string) {
	p.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

// prefer emulates a colour scheme.
func (p *tab) prefer(scheme string) {
	p.Helper()
	get(p, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
	})
}

// fits fails the test if the page is wider than its window.
func (p *tab) fits(when string) {
	p.Helper()
	if over := js[int](p, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
		wide := js[string](p, `[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("svg, pre, .scroll")).map((e) => e.outerHTML.slice(0, 80)).slice(0, 5).join("\n")`)
		p.Errorf("%s: the page is %d pixels wider than its window; beyond it\n%s", when, over, wide)
	}
}

// shot leaves a picture of the whole page, if pictures are wanted.
func (p *tab) shot(name string) {
	dir := os.Getenv("HYBRID_SCREENSHOTS")
	if dir == "" {
		return
	}
	p.Helper()
	png := get(p, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		p.Error(err)
	}
}
