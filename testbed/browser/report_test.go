package browser

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/patterns"
)

// report writes a recording to a file, and makes criproxy turn it into a page. It returns the page's address.
func report(t *testing.T, n *node, flags ...string) (address, path string) {
	t.Helper()
	chromium(t)
	program, err := criproxy()
	require.NoError(t, err)
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "calls.binlog"))
	require.NoError(t, err)
	n.write(t, file)
	require.NoError(t, file.Close())
	path = filepath.Join(dir, "report.html")
	var errOut bytes.Buffer
	cmd := bounded.Command(t, program, append([]string{"view", "-html", path, file.Name()}, flags...)...)
	cmd.Stderr = &errOut
	require.NoError(t, cmd.Run(), errOut.String())
	return (&url.URL{Scheme: "file", Path: path}).String(), path
}

// tenMinutes is the page of ten minutes of a node, made once.
var tenMinutes struct {
	sync.Once
	path string
}

// openReport opens the page of tenMinutes.
func openReport(t *testing.T) *tab {
	t.Helper()
	chromium(t)
	tenMinutes.Do(func() {
		_, made := report(t, record(0))
		tenMinutes.path = filepath.Join(folder, "report.html")
		require.NoError(t, os.Rename(made, tenMinutes.path))
	})
	p := open(t, (&url.URL{Scheme: "file", Path: tenMinutes.path}).String())
	p.see(`document.body.dataset.ready`)
	p.see(`document.querySelectorAll(".row").length > 20`)
	return p
}

// count returns the number of calls that match the filters, from the tab of the table.
const count = `document.querySelector("#tab-calls .count").textContent`

func TestFiltersMatchThoseOfTail(t *testing.T) {
	p := openReport(t)
	for _, f := range []struct{ name, text, rows string }{
		{"method", "CreateContainer", `[...document.querySelectorAll(".row .method")].every((e) => e.textContent === "CreateContainer")`},
		{"method", "Run*|Stop*", `[...document.querySelectorAll(".row .method")].every((e) => /^(Run|Stop)/.test(e.textContent))`},
		{"backend", "kata.io", `[...document.querySelectorAll(".row .backend")].every((e) => e.textContent.includes("kata.io"))`},
		{"client", "crictl", `[...document.querySelectorAll(".row .client")].every((e) => e.textContent === "crictl")`},
		{"status", "!OK", `[...document.querySelectorAll(".row")].every((e) => e.classList.contains("failed"))`},
		{"status", "Unavailable|DeadlineExceeded", `[...document.querySelectorAll(".row .status")].every((e) => /^(Unavailable|DeadlineExceeded)/.test(e.textContent))`},
		{"pod", "vault-?", `[...document.querySelectorAll(".row .about")].every((e) => e.textContent.includes("secrets/vault-0"))`},
		{"slower", "1s", `[...document.querySelectorAll(".row .took")].every((e) => / s$|m/.test(e.textContent))`},
		{"find", "nginx tw8rp", `[...document.querySelectorAll(".row .about")].every((e) => e.textContent.includes("web-7fb4ddc5f9-tw8rp"))`},
	} {
		p.fill(f.name, f.text)
		p.see(count + `.includes(" of ")`)
		p.see(`document.querySelectorAll(".row").length > 0 && ` + f.rows)
		p.fill(f.name, "")
		p.see("!" + count + `.includes(" of ")`)
	}
	p.fill("method", "CreateContainer")
	p.fill("status", "Aborted")
	p.see(`document.querySelector(".empty b").textContent.startsWith("None of ")`)
	p.fill("status", "nonsense")
	p.see(`document.querySelector(".empty").textContent.includes('"nonsense" matches no code; want OK, ')`)
}

// Flags and fields did not take the same patterns, nor select the same calls: !web* selected those about no pod, too.
func TestTheFieldsTakeThePatternsOfTheFlags(t *testing.T) {
	p := openReport(t)
	api, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	names, err := cri.NewNames(api.Profile, api.Schema, nil)
	require.NoError(t, err)
	a := calls.NewAssembler(api.Schema, names)
	var all []*calls.Call
	for _, ev := range record(0).events {
		if c, what := a.Add(&ev); what == calls.Done {
			all = append(all, c)
		}
	}
	all = append(all, a.UnderWay()...)
	for _, r := range patterns.Table(t, filepath.Join("..", "..", "internal", "observe", "calls", "testdata", "patterns.txt")) {
		p.fill(r.Flag, r.Patterns)
		p.see(fmt.Sprintf(`((label) => label.title === %q && label.classList.contains("wrong") === %t)(document.querySelector("input[name=%s]").parentElement)`, r.Says, r.Refused, r.Flag))
		if !r.Refused {
			selected := 0
			for _, c := range all {
				if r.Filter.Match(c) {
					selected++
				}
			}
			p.see(fmt.Sprintf(`%s.split(" of ")[0].replace(/\D/g, "") === "%d"`, count, selected))
		} else {
			p.see(fmt.Sprintf(`%s.startsWith("0 of ") && document.querySelector(".empty").textContent.includes(%q)`, count, r.Says))
		}
		p.fill(r.Flag, "")
	}
}

func TestTheFilterIsShownAsACommand(t *testing.T) {
	p := openReport(t)
	p.fill("slower", "100")
	for text, flag := range map[string]string{"Run*|Pull": "'Run*|*Pull*'", "!Run*,Pull": "'!Run*|*Pull*'"} {
		p.fill("method", text)
		p.see(`document.querySelector("#tabs .command").textContent === "criproxy view -method ` + flag + ` -slower 100ms calls.binlog"`)
	}
}

func TestACallOpensWithBothLegs(t *testing.T) {
	p := openReport(t)
	p.fill("find", "CreateContainer vault-0")
	p.keys(kb.Enter)
	p.see(`document.querySelectorAll(".row").length === 1`)
	value[bool](p, `(document.querySelector(".row").click(), true)`)
	p.see(`document.querySelectorAll("#detail mark").length === 3`)
	assert.Equal(t, []string{"kata.io__", "kata.io/", "kata.io__"}, p.texts("#detail mark"))
	legs := p.texts("#detail .legs > div")
	require.Len(t, legs, 2)
	assert.Contains(t, legs[0], "kubelet, process 812")
	assert.Contains(t, legs[0], `image: "kata.io/docker.io/hashicorp/vault:1.21"`)
	assert.Contains(t, legs[1], `image: "docker.io/hashicorp/vault:1.21"`)
	assert.Contains(t, legs[1], "value: [redacted]")
	assert.NotContains(t, strings.Join(legs, ""), secret)
	p.keys(kb.Escape)
	p.see(`document.querySelector("#detail").hidden`)
}

func TestKeysReachEverything(t *testing.T) {
	p := openReport(t)
	at := func(i int) { p.see(fmt.Sprintf(`document.querySelector(".row.at")?.dataset.i === "%d"`, i)) }
	p.keys("j")
	at(0)
	p.keys("jjk")
	at(1)
	p.keys("G")
	p.see(`document.querySelector(".row.at").dataset.i === String(document.querySelector("#grid").getAttribute("aria-rowcount") - 2)`)
	p.keys("g")
	at(0)
	p.keys(kb.Enter)
	p.see(`!document.querySelector("#detail").hidden`)
	p.keys("j") // the open call follows
	p.see(`document.querySelector("#detail h2").textContent.startsWith(document.querySelector(".row.at .method").textContent)`)
	p.keys(kb.Escape + "/")
	p.see(`document.activeElement.name === "find"`)
	p.keys("vault" + kb.Enter)
	p.see(`document.activeElement.id === "view-calls"`)
	p.keys("jxjjx5")
	p.see(`document.querySelector(".seqbar").textContent.startsWith("2 selected calls")`)
	p.keys("2")
	p.see(`document.querySelector("#tab-pods").getAttribute("aria-selected") === "true" && document.querySelectorAll(".lane").length > 1`)
	p.keys("?")
	p.see(`document.querySelector("#help").open`)
	p.keys(kb.Escape)
	p.see(`!document.querySelector("#help").open`)
	p.keys(kb.Escape) // clears the filters
	p.see("!" + count + `.includes(" of ")`)
}

func TestPodsAreLanesWithOutages(t *testing.T) {
	p := openReport(t)
	p.keys("2")
	p.see(`document.querySelectorAll(".lane:not(.group)").length === 10`)
	lanes := p.texts(".lane > div")
	assert.Contains(t, strings.Join(lanes, "\n"), "primary")
	assert.Contains(t, strings.Join(lanes, "\n"), "vault-0")
	bands := p.texts(".lane.group text")
	assert.Contains(t, strings.Join(bands, "\n"), "gone 4", "kata.io was gone for 42 s")
	assert.Positive(t, value[int](p, `document.querySelectorAll(".lane rect.band.slow").length`), "the primary was slow")
	assert.Positive(t, value[int](p, `document.querySelectorAll(".lane path.failed").length`))
	assert.Contains(t, p.texts("#strip")[0], "No conditions of runtimes are recorded here: bands are inferred from calls.", "the recording is of an older criproxy")
}

// A list that one runtime makes slow was marked at the other one, too.
func TestTheLaneOfARuntimeHasWhatTheRuntimeTook(t *testing.T) {
	n := &node{random: rand.New(rand.NewPCG(1, 2))}
	list := func(string, string) proto.Message { return &runtimeapi.ListPodSandboxResponse{} }
	n.add(exchange{at: time.Second, took: 1050 * time.Millisecond, by: kubelet, method: runtimeService + "ListPodSandbox", backends: []string{primary, kata}, request: fixed(&runtimeapi.ListPodSandboxRequest{}), list: list,
		reply: fixed(&runtimeapi.ListPodSandboxResponse{})})
	address, _ := report(t, n)
	p := open(t, address+"#view=pods")
	p.see(`document.querySelectorAll(".lane.group").length === 2`)
	for runtime, marked := range map[string]bool{primary: true, kata: false} { // it took kata.io less than a second
		assert.Equal(t, marked, value[bool](p, fmt.Sprintf(`Boolean([...document.querySelectorAll(".lane.group")].find((l) => l.firstChild.textContent.startsWith(%q)).querySelector(".slowmark"))`, runtime)), runtime)
	}
}

// The page said that a runtime was up since before criproxy was started anew, and criproxy status since after that.
func TestARuntimeIsUpSinceTheProcessThatSaysSo(t *testing.T) {
	n := record(0)
	for _, after := range []time.Duration{0, time.Minute} {
		n.events = append(n.events, capture.Event{Kind: capture.Changed, Time: began.Add(after), Mono: after, Backend: kata, Change: &capture.Change{Time: began.Add(after), What: capture.Up, Backend: kata, PID: 1}})
	}
	address, _ := report(t, n)
	p := open(t, address)
	p.see(fmt.Sprintf(`[...document.querySelectorAll("#strip .cond.up")].some((e) => e.textContent.startsWith(%q))`, "kata.io up since "+began.Add(time.Minute).Format(time.TimeOnly)))
}

// The page said how many pods a runtime had when it became up, and in Pods that there were more.
func TestTheNumberOfPodsIsThatOfTheEnd(t *testing.T) {
	n := &node{random: rand.New(rand.NewPCG(1, 2))}
	since, two, three := began.Add(-time.Minute), 2, 3
	n.backends = []capture.HeaderBackend{{Name: primary, Address: "/run/containerd/containerd.sock", State: capture.Up, Since: since, Pods: &three}}
	n.events = append(n.events, capture.Event{Kind: capture.Changed, Time: since, Backend: primary, Change: &capture.Change{Time: since, What: capture.Up, Backend: primary, Pods: &two, PID: 1}})
	for i := range three {
		n.add(exchange{at: time.Second, took: time.Second, by: kubelet, method: runtimeService + "RunPodSandbox", backends: []string{primary},
			request: fixed(&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("web-", i), Namespace: "shop", Uid: fmt.Sprint(i)}}}),
			reply:   fixed(&runtimeapi.RunPodSandboxResponse{PodSandboxId: n.id()})})
	}
	n.inOrder()
	address, _ := report(t, n)
	p := open(t, address+"#view=pods")
	p.see(`document.querySelectorAll(".lane").length === 4`)
	assert.Equal(t, "primary 3 pods", p.texts(".lane.group > div")[0])
	assert.Equal(t, "primary up since "+since.Format(time.TimeOnly)+", 3 pods", p.texts("#strip .cond")[0])
}

func TestAPluginThatIsDownAtTheEndIsACondition(t *testing.T) {
	n := record(0)
	at := began.Add(9 * time.Minute)
	n.events = append(n.events, capture.Event{Kind: capture.Changed, Time: at, Mono: at.Sub(began), Change: &capture.Change{Time: at, What: capture.PluginDown, Plugin: "koordlet", Why: "connection refused", PID: 1}})
	n.inOrder()
	address, _ := report(t, n)
	p := open(t, address+"#view=status")
	p.see(`document.querySelector("#link.slow").textContent === "down at the end"`)
	down := "plugin koordlet down since " + at.Format(time.TimeOnly) + "connection refused"
	p.see(fmt.Sprintf(`[...document.querySelectorAll("#strip .cond.slow")].some((e) => e.textContent === %q)`, down)) // with a date until it has the calls
	assert.Contains(t, p.texts(".card.slow"), "plugin koordletdowndownsince "+at.Format(time.TimeOnly)+"connection refused")
}

func TestLatencyAndTalkCountCalls(t *testing.T) {
	p := openReport(t)
	p.keys("3")
	p.see(`document.querySelectorAll(".dist").length > 5`)
	rows := strings.Join(p.texts("#view-latency tbody tr"), "\n")
	assert.Contains(t, rows, "ListPodSandbox599")
	assert.Contains(t, rows, "PullImage177")
	p.keys("4")
	p.see(`document.querySelectorAll(".talk g.who").length === 4`)
	who := strings.Join(p.texts(".talk g.who"), "\n")
	assert.Contains(t, who, "kubelet")
	assert.Contains(t, who, "84 from cache")
	memory := `[...document.querySelectorAll(".ways tbody tr")].reduce((n, tr) => n + Number(tr.lastChild.textContent.replaceAll(",", "")), 0)`
	assert.Equal(t, p.texts(".hub text")[3], fmt.Sprintf("%d from cache", value[int](p, memory)), "the table has the calls that the picture has")
	value[bool](p, `(document.querySelector(".talk g.who").dispatchEvent(new MouseEvent("click")), true)`)
	p.see(`document.querySelector("input[name=client]").value === "kubelet"`)
}

func TestThePageIsLightAndDark(t *testing.T) {
	p := openReport(t)
	light := `(getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number)[0] > 200)`
	p.do(dark(true))
	p.see("!" + light)
	p.do(dark(false))
	p.see(light)
	p.keys("t")
	p.see("!" + light)
	p.keys("t")
	p.see(light)
}

func TestATimeIsChosenByDragging(t *testing.T) {
	p := openReport(t)
	value[bool](p, `(() => { const o = document.querySelector("#overview"), r = o.getBoundingClientRect();
		const at = (type, share) => o.dispatchEvent(new PointerEvent(type, { clientX: r.left + r.width * share, clientY: r.top + 9, pointerId: 1, bubbles: true }));
		o.setPointerCapture = () => {}; at("pointerdown", 0.5); at("pointermove", 0.6); at("pointerup", 0.6); return true; })()`)
	p.see(count + `.includes(" of ")`)
	p.see(`document.querySelector("#overview .brush")`)
	p.keys(kb.Escape)
	p.see("!" + count + `.includes(" of ")`)
}

// The document must not grow with the recording. The test prints how long the browser was busy at a time,
// but does not judge it, because other processes use the machine.
func TestAHundredThousandCallsAreFew(t *testing.T) {
	start := time.Now()
	n := record(100_000)
	t.Log(time.Since(start), "to make up the calls")
	require.GreaterOrEqual(t, n.calls, 100_000)
	address, path := report(t, n)
	t.Log(time.Since(start), "until they are a page")
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(64<<20))
	p := open(t, address)
	p.see(`document.body.dataset.ready`)
	value[bool](p, `(window.long = [], new PerformanceObserver((l) => window.long.push(...l.getEntries().map((e) => Math.round(e.duration)))).observe({ entryTypes: ["longtask"] }), true)`)
	elements := `document.querySelectorAll("*").length`
	bounded := func(what string) {
		t.Helper()
		n := value[int](p, elements)
		t.Logf("%s: %d elements", what, n)
		assert.Less(t, n, 6000, what) // of all views so far
	}
	p.see(`document.querySelectorAll(".row").length > 20`)
	assert.Equal(t, n.calls, value[int](p, `Number(`+count+`.replaceAll(",", ""))`), "none is left out")
	bounded("the table")
	t.Log(time.Since(start), "until the table is there")
	for _, share := range []string{"0.25", "0.5", "1"} {
		value[bool](p, `((v) => { v.scrollTop = v.scrollHeight * `+share+`; return true; })(document.querySelector("#view-calls"))`)
		p.see(`Number(document.querySelector(".row").dataset.i) > ` + fmt.Sprint(n.calls) + ` * ` + share + ` * 0.9 - 100`)
	}
	bounded("the end of the table")
	p.keys("G" + kb.Enter)
	p.see(`document.querySelectorAll("#detail .leg").length > 0`)
	p.keys(kb.Escape)
	p.fill("method", "StartContainer")
	p.see(count + `.includes(" of ")`)
	// A filter runs while somebody types. What it costs is compared with looking through as many texts.
	const typed = `((name, value) => { const i = document.querySelector("input[name=" + name + "]"), from = performance.now(); i.value = value; i.dispatchEvent(new Event("input")); return performance.now() - from; })`
	plain := value[float64](p, `(() => { const texts = Array.from({ length: 100_000 }, (_, i) => "ListPodSandbox kubelet kata.io default/vault-0/vault 7f OK " + i), from = performance.now(); let n = 0; for (const t of texts) if (t.toLowerCase().includes("notfound")) n++; return performance.now() - from; })()`)
	for name, text := range map[string]string{"find": "vault-0 unavailable", "method": "Start*|Stop*", "status": "!OK"} {
		took := value[float64](p, typed+fmt.Sprintf(`(%q, %q)`, name, text))
		t.Logf("filter %s: %.0f ms, %.1f times as long as a search in as many texts, which took %.0f ms", name, took, took/plain, plain)
		assert.Less(t, took, 14*max(plain, 5), name)
		value[float64](p, typed+fmt.Sprintf(`(%q, "")`, name))
	}
	t.Logf("the page has %.0f MB of heap", value[float64](p, `performance.memory.usedJSHeapSize`)/1e6)
	p.keys(kb.Escape + kb.Escape)
	for i, view := range []string{"pods", "latency", "talk", "sequence"} {
		p.keys(fmt.Sprint(i + 2))
		p.see(`document.querySelector("#view-` + view + `").children.length > 0`)
		bounded(view)
	}
	t.Logf("%d calls, %.1f MB, the browser was busy for so many milliseconds at a time: %v", n.calls, float64(info.Size())/1e6, value[[]int](p, `window.long`))
}

func TestThePageHoldsOnlyRequestedCalls(t *testing.T) {
	address, _ := report(t, record(0), "-pod", "vault-0")
	p := open(t, address)
	p.see(`document.body.dataset.ready`)
	p.see(`document.querySelectorAll(".row").length > 20`)
	assert.Contains(t, p.texts("#title")[0], "-pod=vault-0")
	p.see(`[...document.querySelectorAll(".row .about")].every((e) => e.textContent.includes("vault-0"))`)
}
