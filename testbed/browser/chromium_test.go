package browser

import (
	"context"
	"fmt"
	"net/url"
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
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// patience bounds a whole test. It measures nothing.
const patience = bounded.Patience

// sight bounds the wait for one thing.
const sight = time.Minute

// A tab is a page in the browser. By the end of the test, it must have logged nothing to the console, and
// have made requests only to its own server.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	said     []string // on the console
	requests []string // URLs that are not of the page itself
	expected []string // parts of what may be on the console
}

// chromium returns the path of the browser. Without one, the test is skipped.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	untested.Skip(t, "there is no chromium: apt-get install chromium")
	return ""
}

// browser is one process of Chromium for all tests, begun with the first.
var browser struct {
	sync.Once
	ctx  context.Context
	stop func()
}

func startBrowser(t *testing.T) context.Context {
	path := chromium(t)
	browser.Do(func() {
		dir, err := os.MkdirTemp("", "chromium-")
		require.NoError(t, err)
		options := append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1440, 900),
			chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-dev-shm-usage", true),
			chromedp.Flag("font-render-hinting", "none"), chromedp.Env("TZ=UTC"), chromedp.WSURLReadTimeout(patience))
		allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, cancel := chromedp.NewContext(allocated)
		browser.ctx = ctx
		browser.stop = func() {
			cancel()
			stop()
			os.RemoveAll(dir) // of the browser, which has ended
		}
		late := time.AfterFunc(patience, stop) // a deadline of ctx would end the browser later
		defer late.Stop()
		require.NoError(t, chromedp.Do(ctx))
	})
	return browser.ctx
}

// An action is a step of a tab.
type action = chromedp.Action[chromedp.Void]

// open opens a page in a new tab.
func open(t *testing.T, address string, before ...action) *tab {
	t.Helper()
	parent := startBrowser(t)
	p := &tab{t: t}
	own, err := url.Parse(address)
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(parent, chromedp.WithListener(func(ev any) { p.note(own, ev) }))
	ctx, stop := context.WithTimeout(ctx, patience)
	p.ctx = ctx
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		assert.Empty(t, p.said, "the console has nothing")
		assert.Empty(t, p.requests, "no request leaves the machine")
		stop()
		cancel()
	})
	p.do(chromedp.EmulateViewport(1440, 900), command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}))
	p.do(before...)
	p.do(chromedp.Navigate(address))
	return p
}

func (p *tab) note(own *url.URL, ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	say := func(text string) {
		for _, part := range p.expected {
			if strings.Contains(text, part) {
				return
			}
		}
		p.said = append(p.said, text)
	}
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		to, err := url.Parse(ev.Request.URL)
		if err != nil || to.Scheme != "data" && to.Scheme != "blob" && (to.Scheme != own.Scheme || to.Host != own.Host) {
			p.requests = append(p.requests, ev.Request.URL)
		}
	case *runtime.EventConsoleAPICalled:
		var words []string
		for _, a := range ev.Args {
			words = append(words, string(a.Value)+a.Description)
		}
		say(fmt.Sprintf("console.%s: %s", ev.Type, strings.Join(words, " ")))
	case *runtime.EventExceptionThrown:
		text := ev.ExceptionDetails.Text
		if ev.ExceptionDetails.Exception != nil {
			text += " " + ev.ExceptionDetails.Exception.Description
		}
		say(text)
	case *log.EventEntryAdded:
		say(fmt.Sprintf("%s: %s %s", ev.Entry.Level, ev.Entry.Text, ev.Entry.URL))
	case *page.EventJavascriptDialogOpening:
		say("a dialog: " + ev.Message)
	}
}

func (p *tab) do(actions ...action) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, actions...))
}

// command is a command of the protocol as an action.
func command[P, R any](c cdp.Command[P, R], params P) action {
	return func(ctx context.Context, target *chromedp.Target) (void chromedp.Void, err error) {
		_, err = cdp.Call(ctx, target, c, params)
		return void, err
	}
}

// see waits until a JavaScript expression is true; an expression that fails counts as false. It does not make the page
// evaluate text, which the page's policy forbids. A page that is being left for another may say that, or not answer at all.
func (p *tab) see(expression string) {
	p.t.Helper()
	for until := time.Now().Add(sight); ; {
		ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("(() => { try { return Boolean("+expression+") } catch { return false } })()"))
		left := ctx.Err() != nil || err != nil && strings.Contains(err.Error(), "navigated")
		cancel()
		if p.ctx.Err() != nil || !left {
			require.NoError(p.t, err, "%s is not so", expression)
		}
		if ok {
			return
		}
		require.True(p.t, time.Now().Before(until), "%s is not so", expression)
		p.mu.Lock()
		said := p.said
		p.mu.Unlock()
		require.Empty(p.t, said, "waiting until %s", expression)
		time.Sleep(10 * time.Millisecond)
	}
}

// none waits until a JavaScript expression is an empty list, and fails soon, with what is in the list. It is for what depends
// on no other process.
func (p *tab) none(expression string) {
	p.t.Helper()
	var last []string
	for begun := time.Now(); time.Since(begun) < 20*time.Second; time.Sleep(20 * time.Millisecond) {
		if last = value[[]string](p, expression); len(last) == 0 {
			return
		}
	}
	require.Empty(p.t, last, expression)
}

// value evaluates an expression of JavaScript.
func value[T any](p *tab, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	require.NoError(p.t, err, expression)
	return v
}

// texts returns the texts of all elements that match a selector.
func (p *tab) texts(selector string) []string {
	p.t.Helper()
	return value[[]string](p, fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => e.textContent)`, selector))
}

// keys presses keys.
func (p *tab) keys(keys string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// fill types into one of the filters.
func (p *tab) fill(name, text string) {
	p.t.Helper()
	value[bool](p, fmt.Sprintf(`((i) => { i.focus(); i.select(); return true; })(document.querySelector("input[name=%s]"))`, name))
	if text == "" {
		text = kb.Backspace
	}
	p.keys(text)
}

// dark makes the browser prefer dark pages, or light ones.
func dark(yes bool) action {
	scheme := "light"
	if yes {
		scheme = "dark"
	}
	return command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// criproxy is the program under test, built once.
var criproxy = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "criproxy")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/criproxy")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building criproxy: %w\n%s", err, out)
	}
	return path, nil
})

// folder holds files that all tests share.
var folder string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if folder, err = os.MkdirTemp("", "browser-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(folder) // at the end, where an error has no consequence
		code := bounded.Run(m)
		if browser.stop != nil {
			browser.stop()
		}
		return code
	}())
}
