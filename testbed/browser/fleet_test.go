package browser

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A real criproxy is one of five hundred nodes, of which one has a runtime that is gone, and one does not answer.
func TestAFleetIsOnOnePage(t *testing.T) {
	m := start(t)
	m.pod("web", "")
	addresses := []string{m.admin, filepath.Join(m.dir, "lost.sock")}
	for i := range 498 {
		ahead := time.Duration(0) // the clock of the node
		if i == 300 {
			ahead = time.Hour
		}
		ago := func(d time.Duration) string { return time.Now().Add(ahead - d).Format(time.RFC3339) }
		kata, id := fmt.Sprintf(`{"name": "kata.io", "state": "up", "since": %q, "pods": 9}`, ago(time.Hour)), "41c20000"
		if i == 300 {
			id = "77aa0000"
			kata = fmt.Sprintf(`{"name": "kata.io", "state": "gone", "since": %q, "pods": 9, "error": "connection refused", "outages": [{"state": "gone", "from": %[1]q}, {"state": "slow", "from": %q, "to": %q}]}`,
				ago(12*time.Minute), ago(3*time.Hour), ago(2*time.Hour))
		}
		report := fmt.Sprintf(`{"version": "1.0.0", "ready": true, "config": {"id": %q, "loaded": %q}, "backends": [{"name": "primary", "state": "up", "since": %[2]q}, %s]}`, id, ago(time.Hour), kata)
		path := filepath.Join(m.dir, fmt.Sprintf("%d.sock", i))
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			_, _ = io.WriteString(w, report)
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
		addresses = append(addresses, path)
	}
	m.show("-node", strings.Join(addresses, ","))
	p := open(t, m.link)
	p.see(`document.querySelector("#link").textContent === "498 of 500 up"`)
	assert.Equal(t, 999, value[int](p, `document.querySelectorAll("#cells .square").length`), "one for each runtime, and one for the node without an answer")
	rows := p.texts("#rows tr")
	assert.Contains(t, rows[0], "lost.sock", "the worst first")
	assert.Contains(t, rows[0], "there is no admin socket at")
	assert.Regexp(t, `kata\.iogone connection refused1\d m \d\d s9`, rows[2], "by this machine's clock")
	assert.Equal(t, 2, value[int](p, `document.querySelectorAll("#rows tr:nth-child(3) .history :is(.gone, .slow)").length`))
	differs := p.texts("#differs li")
	require.NotEmpty(t, differs)
	assert.Regexp(t, `^1 node has configuration 77aa0000, and not 41c20000: .*/300.sock$`, differs[0])
	drawn := value[float64](p, `(() => { const t = performance.now(); document.querySelector("#find").dispatchEvent(new Event("input")); return performance.now() - t })()`)
	t.Logf("drawing 500 nodes takes %.0f ms", drawn)
	p.picture("fleet")
	p.do(telephone)
	p.none(beside)
	p.do(chromedp.EmulateViewport(1440, 900))

	// What the page of that node has is the calls of that node.
	value[bool](p, fmt.Sprintf(`(() => { const f = document.querySelector("#find"); f.value = %q; f.dispatchEvent(new Event("input")); document.querySelector("#rows a").click(); return true })()`, m.admin))
	p.see(`document.querySelector("#title")?.textContent.includes("admin.sock") && document.querySelectorAll(".row .about").length > 0`)
	p.see(`[...document.querySelectorAll(".row .about")].some((e) => e.textContent.includes("default/web"))`)
}

// The page of two nodes' recordings, on one of which a runtime was killed, has lanes by node.
func TestAReportOfSeveralNodesHasLanesByNode(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("../../testdata/why/runtime-killed.jsonl.zst")
	require.NoError(t, err)
	for _, name := range []string{"node-1", "node-2"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".jsonl.zst"), text, 0o600))
	}
	p := reportOfAll(t, filepath.Join(dir, "node-1.jsonl.zst"), filepath.Join(dir, "node-2.jsonl.zst"))
	assert.Equal(t, "2 nodes", value[string](p, `document.querySelector("#title").textContent`))
	value[bool](p, `(document.querySelector("#tab-pods").click(), true)`)
	p.see(`document.querySelectorAll(".lane").length === 6`)
	lanes := p.texts(".lane")
	for i, node := range []string{"node-1", "node-2"} {
		assert.True(t, strings.HasPrefix(lanes[3*i], node+"/primary 2 podsgone"), lanes)
		assert.True(t, strings.HasPrefix(lanes[3*i+1], "web-"), lanes)
	}
	assert.Contains(t, strings.Join(p.texts("#strip button"), " "), "node-2/primary up since")
	p.fill("backend", "node-2/*")
	p.see(`document.querySelectorAll(".lane").length === 3 && document.querySelector(".lane").textContent.startsWith("node-2/primary")`)
	value[bool](p, `(document.querySelector("#tab-findings").click(), true)`)
	p.see(`[...document.querySelectorAll("#view-findings .card p")].some((e) => e.textContent.startsWith("node-1: "))`)
}
