package browser

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// telephone is the window of a telephone that is 844 pixels high, without the bars of the browser.
var telephone = chromedp.EmulateViewport(390, 664)

// head is what is above a view, if that is more than a part of the window. What is wrong is there, so it may take more during
// an outage.
func head(most float64) string {
	return fmt.Sprintf(`((above) => document.querySelector("main").getBoundingClientRect().top <= %v * innerHeight ? [] : above.map((e) => (e.id || e.tagName) + " " + e.offsetHeight))([...document.querySelectorAll("body > :is(header, form, div, nav)")].filter((e) => e.offsetHeight))`, most)
}

const calm, outage, scrolled = 2 / 5.0, 1 / 2.0, 1 / 8.0

// On a telephone the head took two thirds of the height. Issue 43.
func TestATelephoneShowsCalls(t *testing.T) {
	p := openReport(t)
	p.do(telephone)
	p.see(`document.documentElement.scrollWidth <= 390 && document.querySelectorAll(".row:not(.said)").length > 3`)
	p.none(head(calm))
	value[bool](p, `(document.querySelector("#more").click(), true)`)
	p.fill("pod", "vault-0")
	p.keys("\r")
	value[bool](p, `(document.querySelector("#more").click(), true)`)
	p.see(`((shown) => shown.join() === "find,pod")([...document.querySelectorAll("#filters input[type=text]")].filter((e) => e.checkVisibility()).map((e) => e.name))`)
	p.see(`document.querySelectorAll(".row:not(.said)").length > 3`)
	for _, about := range p.texts(".row:not(.said) .about") {
		assert.Contains(t, about, "vault-0")
	}
}

// The lines below the names of pods ended before what was wrong. The rows of filters and tabs, the sequence and the methods of
// each client went on beside the window, and the calls had a scroll bar beside that of the page.
func TestATelephoneShowsAllOfIt(t *testing.T) {
	p := openReport(t)
	p.do(telephone)
	p.keys("2")
	p.see(`document.querySelectorAll(".lane .sub .bad").length > 1`)
	p.see(`[...document.querySelectorAll(".lane > div")].every((e) => e.scrollWidth <= e.clientWidth + 1 && e.scrollHeight <= e.clientHeight + 1)`)
	p.see(`[...document.querySelectorAll(".lane .sub")].every((e) => !/\d failed/.test(e.textContent) || /^\d+ failed/.test(e.textContent))`)
	p.see(`document.querySelectorAll(".lanehead .axis span").length > 0`)
	value[bool](p, `(document.querySelector("#more").click(), true)`)
	for i := range 7 {
		p.keys(fmt.Sprint(i + 1))
		p.see(`[...document.querySelectorAll(".view")].filter((e) => e.checkVisibility()).map((e) => e.id).join() === "view-" + ["calls", "pods", "latency", "talk", "sequence", "status", "findings"][` + fmt.Sprint(i) + `]`)
		p.none(beside)
	}
	p.keys("1")
	p.see(`(scrollTo(0, 5e3), document.querySelector(".row[data-i='70']"))`)
	p.none(covers)
	p.none(`[...document.querySelectorAll(".row .about")].filter((e) => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).map((e) => e.textContent)`)
	value[bool](p, `(document.querySelector(".row:not(.said)[data-i='70'], .row:not(.said)[data-i='71']").click(), true)`)
	p.see(`document.querySelector("#detail .top")`)
	p.none(beside)
	p.see(`((top) => top >= 0 && top < 100)(document.querySelector("#detail .top").getBoundingClientRect().top)`)
	p.keys(kb.Escape)
	p.see(`Math.abs(scrollY - 5e3) < 200`)
	p.keys("2") // the head stays out of sight
	p.see(`document.querySelectorAll(".lane").length > 4 && ((tabs, legend) => tabs.top < 1 && legend.top >= tabs.bottom - 1)(document.querySelector("#tabs").getBoundingClientRect(), document.querySelector(".legend").getBoundingClientRect())`)
}

// beside are the elements that are not all in a window of 390 pixels, or that scroll within the page; not the message of a call.
const beside = `[...document.querySelectorAll("body :not(.patterns, .patterns *, svg *, .row .status *)")].filter((e) => e.checkVisibility() && (((r) => r.left < -1 || r.right > 391)(e.getBoundingClientRect()) || /auto|scroll/.test(getComputedStyle(e).overflow) && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1))).map((e) => e.tagName + "#" + e.id + "." + e.className)`

// covers is what covers more than its part of a view that is scrolled, from above.
var covers = fmt.Sprintf(`((lower) => lower <= %v * innerHeight ? [] : ["" + lower])([...document.querySelectorAll("#tabs, .head, .lanehead")].filter((e) => e.checkVisibility()).reduce((low, e) => Math.max(low, e.getBoundingClientRect().bottom), 0))`, scrolled)

// A tab showed nothing new while an open call covered the views, and Close left an empty page of a call as wide as the page.
func TestATabClosesWhatCoversIt(t *testing.T) {
	p := openReport(t)
	opened := func() {
		t.Helper()
		value[bool](p, `(document.querySelector(".row:not(.said)").click(), true)`)
		p.see(`document.querySelector("#detail .top")?.checkVisibility() && /call=/.test(location.hash)`)
	}
	click := func(selector string) {
		t.Helper()
		value[bool](p, `(document.querySelector("`+selector+`").click(), true)`)
	}
	shows := func(view string) {
		t.Helper()
		p.see(`document.querySelector("#view-` + view + `").checkVisibility() && !document.querySelector("#detail").checkVisibility() && location.hash === "#view=` + view + `"`)
	}
	for _, width := range []int64{390, 800, 1100} {
		p.do(chromedp.EmulateViewport(width, 664))
		click("#tab-calls")
		opened()
		click("#tab-pods")
		shows("pods")
		click("#tab-calls")
		opened()
		click("#tab-calls")
		shows("calls")
	}
	p.do(chromedp.Reload())
	p.see(`document.querySelectorAll(".row").length > 3`)
	shows("calls")
	p.do(chromedp.EmulateViewport(1440, 900))
	opened()
	click("#tab-pods") // beside it
	p.see(`document.querySelector("#view-pods").checkVisibility() && document.querySelector("#detail .top").checkVisibility() && /view=pods&call=/.test(location.hash)`)
	click("#detail [title$='(w)']")
	p.see(`!document.querySelector("#view-pods").checkVisibility()`)
	click("#detail [title$='(Esc)']")
	shows("pods")
	p.keys("1")
	opened()
	value[bool](p, `(location.hash = "#view=pods", true)`) // a link
	shows("pods")
}

// While both runtimes were gone, the second one and what was wrong were outside of the window, as was the tab of the view.
func TestATelephoneShowsAnOutage(t *testing.T) {
	m := start(t)
	m.pod("web", "")
	id := m.pod("vault", "kata.io")
	for range 12 {
		m.version()
	}
	p := open(t, m.link, dark(false))
	p.see(`document.querySelectorAll(".row").length > 2`)
	p.do(telephone)
	m.vault.Kill()
	p.see(`((gone) => gone && (gone.click(), true))(document.querySelector("#strip .cond.gone:not(.found)"))`)
	p.see(`((cards) => cards[1].matches(".gone") && cards[2].matches(".up"))(document.querySelectorAll("#view-status .card"))`) // trouble first, below criproxy
	m.web.Kill()
	p.see(`document.querySelectorAll("#strip .cond.gone:not(.found)").length === 2`)
	_, err := m.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	require.Error(t, err)
	p.see(`document.querySelector("#strip .found")`)
	const inside = `(e) => { const r = e.getBoundingClientRect(), s = e.parentElement.getBoundingClientRect(); return r.left >= 0 && r.right <= 390 && r.top >= s.top && r.bottom <= s.bottom && e.scrollWidth <= e.clientWidth + 1; }`
	for i := range 7 {
		p.keys(fmt.Sprint(i + 1))
		p.see(`((e) => { const r = e.getBoundingClientRect(); return r.left >= 0 && r.right <= 390; })(document.querySelector("#tabs [aria-selected=true]"))`)
		p.see(`document.documentElement.scrollWidth <= 390 && ((e) => e.clientWidth > 80 && e.scrollWidth <= e.clientWidth)(document.querySelector("#title")) && [...document.querySelectorAll("#strip > button")].every(` + inside + `)`)
		p.none(`(scrollTo(0, 0), ` + head(outage) + `)`)
	}
	p.see(`[...document.querySelectorAll("#strip .cond.gone:not(.found)")].every((e) => /gone since \d\d:\d\d:\d\d, /.test(e.innerText))`)
	p.see(`((found, ...others) => others.length > 1 && others.every((e) => e.getBoundingClientRect().top >= found.getBoundingClientRect().bottom))(document.querySelector("#strip .found"), ...document.querySelectorAll("#strip .cond:not(.found)"))`)
	base, _, _ := strings.Cut(m.link, "?")
	other := open(t, base, dark(false), telephone) // somebody is called at night
	other.see(`document.querySelector("#view-status .card.gone")?.checkVisibility() && /^Calls\d/.test(document.querySelector("#tab-calls").textContent)`)
	other.none(`scrollY ? ["the conditions are out of sight, by " + scrollY] : []`)
}

// What was wrong was cut in the middle of a line, one had to scroll within the strip, and a list of runtimes was cut.
func TestATelephoneCutsNothingInAnOutage(t *testing.T) {
	n := &node{random: rand.New(rand.NewPCG(1, 2))}
	pods := 12
	for _, name := range []string{primary, kata, "gvisor.example.com"} {
		n.backends = append(n.backends, capture.HeaderBackend{Name: name, Address: "/run/" + name + ".sock", State: capture.Gone, Since: began, Pods: &pods,
			Why: "its process ended or was killed: dial unix /run/a-long-folder/of-the-runtime/" + name + ".sock: connect: connection refused"})
	}
	n.add(exchange{at: time.Second, took: time.Millisecond, by: kubelet, method: runtimeService + "ListPodSandbox", backends: []string{primary, kata, "gvisor.example.com"},
		memory: []string{primary, kata, "gvisor.example.com"}, request: fixed(&runtimeapi.ListPodSandboxRequest{}),
		list: func(string, string) proto.Message { return &runtimeapi.ListPodSandboxResponse{} }})
	n.inOrder()
	address, _ := report(t, n)
	p := open(t, address)
	p.do(telephone)
	p.see(`document.body.dataset.ready && document.documentElement.scrollWidth <= 390 && document.querySelectorAll("#strip .cond.gone:not(.found)").length === 3`)
	const whole = `(e) => e.scrollWidth <= e.clientWidth + 1 && e.scrollHeight <= e.clientHeight + 1`
	p.see(`[document.querySelector("#strip"), ...document.querySelectorAll("#strip > button")].every(` + whole + `)`)
	p.see(`((e) => e.clientHeight / parseFloat(getComputedStyle(e).lineHeight))(document.querySelector("#strip .found .why")).toFixed(1).match(/^[12]\.0$/)`) // whole lines
	p.none(head(outage))
	p.see(`((row) => row.querySelector(".backend").textContent === "primary, gvisor.example.com, kata.io" && [...row.children].every((e) => e.scrollWidth <= e.clientWidth + 1))(document.querySelector(".row:not(.said)"))`)
	p.see(`[...document.querySelectorAll(".row.said")].length === 3 && [...document.querySelectorAll(".row.said > *")].every(` + whole + `)`)
	p.keys("2")
	for _, width := range []int64{1440, 800, 390} {
		p.do(chromedp.EmulateViewport(width, 800))
		p.see(`((heads) => heads.length === 3 && heads.every((e) => e.textContent.endsWith("12 pods, none of them in these calls") && (` + whole + `)(e)))([...document.querySelectorAll(".lane.group > div")])`)
	}
}

// The kernel gives a process up to 15 letters.
func TestTheNamesOfClientsAreWhole(t *testing.T) {
	n := &node{random: rand.New(rand.NewPCG(1, 2))}
	n.add(exchange{took: time.Millisecond, by: capture.Peer{PID: 9, Name: "containerd-shim"}, method: runtimeService + "Version", backends: []string{primary}, request: fixed(&runtimeapi.VersionRequest{}), reply: fixed(&runtimeapi.VersionResponse{})})
	n.inOrder()
	address, _ := report(t, n)
	p := open(t, address)
	for _, width := range []int64{1440, 1040, 800, 390} {
		p.do(chromedp.EmulateViewport(width, 800))
		p.see(`((e) => e.textContent === "containerd-shim" && e.scrollWidth <= e.clientWidth)(document.querySelector(".row .client"))`)
	}
}

// A long finding, with the filters and tabs, took two thirds of the height.
func TestALongFindingLeavesRoomForTheCalls(t *testing.T) {
	p := reportOf(t, "pull-hangs.jsonl.zst")
	p.do(chromedp.EmulateViewport(800, 844))
	p.see(`document.querySelector("#strip .found .why")`)
	p.see(`((e) => { e.textContent = "gone since 03:00:00. ".repeat(60); return e.scrollHeight > 5 * parseFloat(getComputedStyle(e).lineHeight) && e.clientHeight <= 2.1 * parseFloat(getComputedStyle(e).lineHeight); })(document.querySelector("#strip .found .why"))`)
}

// "criproxy serves" had the sign of "gone". Issue 43.
func TestOnlyRuntimesHaveTheSignOfACondition(t *testing.T) {
	m := start(t)
	p := open(t, m.link, dark(false))
	p.see(`[...document.querySelectorAll(".row.said .note")].some((e) => e.textContent.startsWith("criproxy serves"))`)
	p.see(`[...document.querySelectorAll(".row.said .note")].every((e) => Boolean(e.querySelector(".dot")) === /^(primary|kata\.io) /.test(e.textContent))`)
}
