package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/hook/plugin"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// history returns what criproxy events says of the second runtime.
func (m *machine) history() (all []capture.Change) {
	m.t.Helper()
	out, err := m.output("events", "-o", "json", "-admin", m.admin)
	require.NoError(m.t, err, out)
	for line := range strings.Lines(out) {
		var c capture.Change
		require.NoError(m.t, json.Unmarshal([]byte(line), &c), line)
		if c.Backend == "kata.io" {
			all = append(all, c)
		}
	}
	return all
}

func (m *machine) output(args ...string) (string, error) {
	cmd := m.command(args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err
}

// handOver replaces the process that serves the machine.
func (m *machine) handOver() {
	m.t.Helper()
	var before, now struct{ PID int }
	pid := func(into *struct{ PID int }) error {
		out, err := m.output("status", "-o", "json", "-admin", m.admin)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(out), into)
	}
	require.NoError(m.t, pid(&before))
	require.NoError(m.t, syscall.Kill(before.PID, syscall.SIGUSR2))
	testkit.Eventually(m.t, "another process serves", func() bool { return pid(&now) == nil && now.PID != before.PID })
	m.t.Cleanup(func() { _ = syscall.Kill(now.PID, syscall.SIGTERM) }) // it may have handed over, and ended
}

// The strip and Status kept the numbers of a report beside an event that said others, until the next report.
func TestAnOlderReportSaysNothingBesideAnEvent(t *testing.T) {
	m := start(t)
	for _, name := range []string{"one", "two"} {
		m.pod(name, "kata.io")
	}
	p := open(t, m.link, command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{ // only the first report comes
		Source: `let come = 0; const add = EventSource.prototype.addEventListener; EventSource.prototype.addEventListener = function (kind, f) { add.call(this, kind, kind === "status" ? (e) => come++ || f(e) : f); };`,
	}))
	is := func(words string) {
		t.Helper()
		p.see(fmt.Sprintf(`[...document.querySelectorAll("#strip .cond")].some((e) => /^kata.io %s/.test(e.textContent))`, words))
	}
	p.keys("6")
	is("up .*, 2 pods")
	p.see(`[...document.querySelectorAll(".card.up")].some((e) => /^kata.io.*list took/.test(e.textContent))`)
	m.vault.Kill()
	is("gone .*, 2 pods")
	m.vault.Replace(fakecri.Config{Name: "beta", Version: "1.0.0", Seed: 2})
	m.vault.Start()
	is("up .*, 0 pods")
	p.see(`/kata.io is up .*0 pods, 0 containers/.test(document.querySelector("#happened").textContent)`)
	p.see(`[...document.querySelectorAll(".card.up")].some((e) => /^kata.io.*pods0containers0(?!images)/.test(e.textContent))`)
}

// The page said nothing of plugins, which criproxy status lists.
func TestAPluginInTroubleIsAConditionOfThePage(t *testing.T) {
	hooks := t.TempDir()
	m := start(t, "-hooks", hooks)
	p := open(t, m.link, dark(false))
	p.keys("6")
	p.see(`document.querySelector("#link").className === "up" && document.querySelectorAll(".card").length > 2 && ![...document.querySelectorAll(".card, .cond")].some((e) => e.textContent.startsWith("plugin"))`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- plugin.Plugin{Name: "quiet", Folder: hooks, Socket: filepath.Join(m.dir, "quiet.sock"), PreStartContainer: func(context.Context, *plugin.Container) (*plugin.ContainerAnswer, error) { return nil, nil }}.Run(ctx)
	}()
	p.see(`[...document.querySelectorAll(".card.up")].some((e) => /^plugin quiet.jsonready.*asked0/.test(e.textContent)) && !document.querySelector("#strip").textContent.includes("plugin")`)
	dead := filepath.Join(hooks, "dead.json")
	require.NoError(t, os.WriteFile(dead, []byte(`{"remote-endpoint": "/run/nobody.sock", "runtime-hooks": ["PreStartContainer"]}`), 0o600))
	p.see(`/^plugin dead.json down.*\/run\/nobody.sock/.test(document.querySelector("#strip .cond.slow").textContent)`)
	p.see(`document.querySelector("#link").className === "slow" && /^plugin dead.jsondown.*\/run\/nobody.sock/.test(document.querySelector(".card.slow").textContent)`)
	require.NoError(t, os.Remove(dead))
	p.see(`document.querySelector("#link").className === "up" && !document.querySelector("#strip").textContent.includes("plugin")`)
	stop()
	require.NoError(t, <-ended)
}

// The report of criproxy waits for a runtime that hangs: until then a page had no plugins, a green sign, and opened on Calls.
func TestAPageKnowsThePluginsBeforeTheReport(t *testing.T) {
	hooks := t.TempDir()
	m := start(t, "-hooks", hooks)
	happened := func(what string) {
		t.Helper()
		testkit.Eventually(t, what, func() bool {
			out, err := m.output("events", "-admin", m.admin)
			return err == nil && strings.Contains(out, what)
		})
	}
	for _, name := range []string{"dead", "old"} {
		require.NoError(t, os.WriteFile(filepath.Join(hooks, name+".json"), []byte(`{"remote-endpoint": "/run/nobody.sock", "runtime-hooks": ["PreStartContainer"]}`), 0o600))
		happened("plugin " + name + ".json is down")
	}
	require.NoError(t, os.Remove(filepath.Join(hooks, "old.json")))
	happened("plugin old.json is removed")
	p := open(t, m.link, dark(false), command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{ // the report does not come
		Source: `const add = EventSource.prototype.addEventListener; EventSource.prototype.addEventListener = function (kind, f) { if (kind !== "status") add.call(this, kind, f); };`,
	}))
	p.see(`document.querySelector("#tab-status").getAttribute("aria-selected") === "true" && document.querySelector("#link").className === "slow"`)
	p.see(`((all) => all.length === 1 && /^plugin dead.json down since .*\/run\/nobody.sock/.test(all[0].textContent))([...document.querySelectorAll("#strip .cond")].filter((e) => e.textContent.startsWith("plugin")))`)
	p.see(`[...document.querySelectorAll(".card.slow")].some((e) => e.textContent.startsWith("plugin dead.json"))`)
}

// In each place of the page an outage must have the one history that criproxy tells.
func TestEveryPlaceOfThePageTellsTheSameStory(t *testing.T) {
	for name, handsOver := range map[string]bool{"one process": false, "over handovers": true} {
		t.Run(name, func(t *testing.T) {
			m := start(t, "-list-budget", "1500ms", "-gone-after", "4s") // a busy machine must not be slow by itself
			m.pod("vault", "kata.io")
			p := open(t, m.link, dark(false))
			p.see(`document.querySelectorAll(".row:not(.said)").length >= 2`)
			polled := make(chan struct{})
			go func() { // as kubelet does
				defer close(polled)
				for t.Context().Err() == nil {
					_, _ = m.client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}) // fails when the test ends
					time.Sleep(100 * time.Millisecond)
				}
			}()
			t.Cleanup(func() { <-polled })
			clock := func(c capture.Change) string { return c.Time.UTC().Format(time.TimeOnly) }
			is := func(want string) {
				t.Helper()
				testkit.Eventually(t, "the second runtime is "+want, func() bool { all := m.history(); return len(all) > 0 && all[len(all)-1].What == want })
				if handsOver {
					m.handOver()
				}
				all := m.history()
				p.see(fmt.Sprintf(`[...document.querySelectorAll("#strip .cond.%s")].some((e) => e.textContent.startsWith("kata.io %[1]s since %s, ") && e.textContent.includes(", 1 pod"))`, want, clock(all[len(all)-1])))
				p.see(fmt.Sprintf(`document.querySelector("#link").className === %q`, want))
			}
			is(capture.Up)
			m.vault.Freeze()
			is(capture.Gone)
			base, _, _ := strings.Cut(m.link, "?")
			other := open(t, base, dark(false)) // somebody is called at night
			other.see(`document.querySelector("#tab-status").getAttribute("aria-selected") === "true" && /kata.io.*gone/.test(document.querySelector(".card.gone").textContent)`)
			other.see(`/^[1-9]/.test(document.querySelector("#tab-calls").textContent.replace("Calls", "").trim())`)
			other.picture("trouble")
			m.vault.Thaw()
			is(capture.Up)
			m.vault.Kill()
			is(capture.Gone)
			m.vault.When(testkit.Slowing(2*time.Second, "ListContainers", "ListPodSandbox"))
			m.vault.Start()
			is(capture.Slow)
			m.vault.When(nil)
			is(capture.Up)

			history := m.history()
			var what, bands []string
			for _, c := range history {
				what = append(what, c.What)
				if c.What != capture.Up {
					bands = append(bands, "band "+c.What)
				}
			}
			require.Equal(t, []string{"up", "slow", "gone", "up", "gone", "slow", "up"}, what)
			tells := func(p *tab) {
				p.keys("2")
				p.see(`[...document.querySelectorAll(".lane")].some((l) => l.textContent.startsWith("vault"))`)
				const kata = `[...document.querySelectorAll(".lane.group")].find((l) => l.firstChild.textContent.startsWith("kata.io"))`
				p.see(kata + `.querySelectorAll("rect.band").length === 4`)
				assert.Equal(t, bands, value[[]string](p, `[...`+kata+`.querySelectorAll("rect.band")].map((r) => r.getAttribute("class"))`), "Pods")
				assert.Contains(t, value[string](p, kata+`.firstChild.textContent`), "1 pod")
				p.keys("6")
				p.see(`document.querySelector("#happened")`)
				var happened []string
				for _, c := range history {
					happened = append(happened, c.Time.UTC().Format(time.DateTime)+c.String())
				}
				slices.Reverse(happened)
				shown := p.texts("#happened tr")
				assert.Equal(t, happened, slices.DeleteFunc(shown, func(s string) bool { return !strings.Contains(s, "kata.io is ") }), "Status")
				p.keys("1")
				p.fill("backend", "kata.io")
				p.see(`document.querySelector("#only-memory")`)
				value[bool](p, `(document.querySelector("#only-memory").click(), true)`)
				p.see(`document.querySelectorAll(".row").length > 3 && [...document.querySelectorAll(".row")].every((r) => r.querySelector(".chip.memory"))`)
				assert.Contains(t, p.texts("#tabs .command")[0], "-memory")
			}
			tells(p)

			dump, html := filepath.Join(m.dir, "calls.jsonl"), filepath.Join(m.dir, "calls.html")
			for _, args := range [][]string{{"dump", "-admin", m.admin, dump}, {"view", "-html", html, dump}} {
				out, err := m.output(args...)
				require.NoError(t, err, out)
			}
			mailed := open(t, (&url.URL{Scheme: "file", Path: html}).String())
			mailed.see(`document.body.dataset.ready`)
			mailed.see(`[...document.querySelectorAll("#strip .cond.up")].some((e) => e.textContent.startsWith("kata.io up since ` + clock(history[len(history)-1]) + `"))`)
			tells(mailed)
			mailed.keys("\r") // leaves the field that has the focus
			const inside = `(e) => { const r = e.getBoundingClientRect(); return r.width > 0 && r.left >= 0 && r.right <= innerWidth && e.scrollWidth <= e.clientWidth + 1; }`
			for _, width := range []int64{1280, 800, 390} {
				mailed.do(chromedp.EmulateViewport(width, 800))
				for i := range 6 {
					mailed.keys(fmt.Sprint(i + 1))
					mailed.see(fmt.Sprintf(`document.documentElement.scrollWidth <= %d`, width))
				}
				mailed.keys("1")
				mailed.see(`document.querySelectorAll(".row").length > 3 && [...document.querySelectorAll(".row")].every((r) => [...r.children, r.querySelector(".chip.memory")].every(` + inside + `))`)
				mailed.keys("4")
				mailed.see(`[...document.querySelectorAll(".talk g.who")].every((e) => { const r = e.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth; })`)
			}
			mailed.keys("1\x1b") // without filters
			mailed.see(`document.querySelector(".row.said.slow .note") || scrollTo(0, scrollY + innerHeight + 1 < document.documentElement.scrollHeight ? scrollY + 300 : 0)`)
			mailed.see(`[...document.querySelectorAll(".row.said .note")].every((e) => e.scrollHeight <= e.clientHeight && e.scrollWidth <= e.clientWidth)`)
		})
	}
}
