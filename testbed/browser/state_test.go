package browser

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
)

func TestTheAddressHasTheState(t *testing.T) {
	p := openReport(t)
	p.fill("find", "CreateContainer vault-0")
	p.keys(kb.Enter + "j" + kb.Enter)
	p.see(`document.querySelector("#detail h2")?.textContent.startsWith("CreateContainer")`)
	p.see(`/find=CreateContainer.*call=\d+/.test(location.hash)`)
	assert.Equal(t, "criproxy view -find 'CreateContainer vault-0' calls.binlog", p.texts("#tabs .command")[0])
	address := value[string](p, `location.href`)
	p.do(chromedp.Reload())
	p.see(`document.querySelector("#detail h2")?.textContent.startsWith("CreateContainer")`)
	p.see(count + `.startsWith("1 of ")`)
	assert.Equal(t, address, value[string](p, `location.href`))

	linked := open(t, strings.Split(address, "#")[0]+"#view=pods&pod=vault-0&memory=1&from=1772420650000&to=1772420700000")
	linked.see(`document.querySelector("#tab-pods")?.getAttribute("aria-selected") === "true" && document.querySelector("input[name=pod]").value === "vault-0"`)
	linked.see(`document.querySelector("#only-memory").getAttribute("aria-pressed") === "true" && document.querySelector("#overview .brush")`)
}

// The page shows commands, and they must do what it says.
func TestACallCanBeReplayedAndCopied(t *testing.T) {
	address, path := report(t, record(0))
	p := open(t, address)
	p.see(`document.body.dataset.ready`)
	p.fill("find", "CreateContainer vault-0")
	p.keys(kb.Enter + "j" + kb.Enter)
	p.see(`document.querySelector(".replay code")`)
	command := p.texts(".replay code")[0]
	require.Regexp(t, `^criproxy replay calls.binlog -call \d+ -to /run/criproxy/criproxy.sock$`, command)
	program, err := criproxy()
	require.NoError(t, err)
	words := append(strings.Fields(command)[1:], "-dry-run")
	replay := bounded.Command(t, program, words...)
	replay.Dir = filepath.Dir(path)
	out, err := replay.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Regexp(t, `(?m)^\d+ +CreateContainer +changes$`, string(out))
	assert.Contains(t, string(out), "1 call: 1 to change something")

	value[bool](p, `([...document.querySelectorAll(".copy")].find((b) => b.textContent.includes("JSON")).click(), true)`)
	p.see(`[...document.querySelectorAll(".copy")].some((b) => b.dataset.copied && JSON.parse(b.dataset.copied).about.pod === "vault-0")`)
	number := regexp.MustCompile(`-call (\d+)`).FindStringSubmatch(command)[1]
	p.see(`[...document.querySelectorAll(".copy")].some((b) => b.dataset.copied && JSON.parse(b.dataset.copied).call === ` + number + `)`)
}

func TestTwoCallsAreCompared(t *testing.T) {
	p := openReport(t)
	p.fill("find", "CreateContainer sandbox-runner")
	p.keys(kb.Enter)
	p.see(`((rows) => rows.length > 1 && rows.every((row) => row.textContent.includes("sandbox-runner")))([...document.querySelectorAll(".row")])`)
	p.keys("jxjx5")
	p.see(`document.querySelector(".seqbar").textContent.includes("2 selected calls")`)
	value[bool](p, `([...document.querySelectorAll(".seqbar button")].find((b) => b.textContent === "Compare").click(), true)`)
	p.see(`document.querySelectorAll("#detail .compared tbody tr").length > 3 && document.querySelectorAll("#detail .legs > div").length === 2`)
	rows := strings.Join(p.texts("#detail .compared tbody tr"), "\n")
	assert.Contains(t, rows, "sandbox-runner-1")

	// The same call in another recording: here the same one, of which only the pod's calls were kept.
	_, other := report(t, record(0), "-pod", "sandbox-runner-1")
	require.NoError(t, os.Rename(other, filepath.Join(filepath.Dir(other), "other.html")))
	p.keys(kb.Escape + "1gj" + kb.Enter)
	p.see(`document.querySelector("#detail input[type=file]")`)
	value[bool](p, `(document.querySelector("#detail").scrollTop = 1e6, true)`)
	p.do(chromedp.SetUploadFiles(`#detail input[type=file]`, []string{filepath.Join(filepath.Dir(other), "other.html")}))
	p.see(`document.querySelector("#detail .compared h3")`)
	assert.Contains(t, strings.Join(p.texts("#detail .compared"), ""), "other.html")
	assert.Zero(t, value[int](p, `document.querySelector("#detail").scrollTop`), "the differences are in sight")
}
