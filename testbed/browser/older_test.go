package browser

import (
	"bytes"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// adminOf serves an admin socket with a recording, and starts criproxy ui. If older is true, the recording has events from
// before those that the socket sends.
func adminOf(t *testing.T, n *node, older bool) *machine {
	t.Helper()
	chromium(t)
	program, err := criproxy()
	require.NoError(t, err)
	if older {
		for i := range n.events {
			n.events[i].Seq += 1000
		}
	}
	var recording bytes.Buffer
	n.write(t, &recording)
	mux := http.NewServeMux()
	answers := func(path, text string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }) // fails when the page has gone
	}
	answers("/version", `{"version":"0.9","pid":7}`)
	answers("/status", `{"version":"0.9","pid":7,"ready":true,"config":{},"listeners":[],"backends":[{"name":"primary","state":"up"},{"name":"kata.io","state":"up"}]}`)
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(admin.RecordedHeader, strconv.FormatUint(n.events[len(n.events)-1].Seq, 10))
		w.Header().Set(admin.OldestHeader, "1")
		_, _ = w.Write(recording.Bytes()) // likewise
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	dir := testkit.SocketDir(t)
	m := &machine{t: t, dir: dir, program: program, admin: filepath.Join(dir, "admin.sock")}
	l, err := net.Listen("unix", m.admin)
	require.NoError(t, err)
	s := &http.Server{Handler: mux}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { assert.NoError(t, s.Close()); <-served })
	m.show("-admin", m.admin)
	return m
}

// The live page of a criproxy that does not record conditions says that bands are inferred, as the page of a file does.
func TestThePageOfAnOlderCriproxyInfersBands(t *testing.T) {
	p := open(t, adminOf(t, record(0), false).link)
	p.see(`document.querySelectorAll(".row:not(.said)").length > 20`)
	p.see(`document.querySelector("#strip").textContent.includes("No conditions of runtimes are recorded here: bands are inferred from calls.")`)
}

// A call that began before what the page had loaded was called overwritten.
func TestWhatIsNotLoadedIsNotOverwritten(t *testing.T) {
	m := adminOf(t, cutOff(t), true)
	p := open(t, m.link)
	p.see(`document.querySelectorAll(".row:not(.said)").length > 20`)
	p.fill("method", "Version")
	p.keys("\r")
	p.see(`document.querySelectorAll(".row:not(.said)").length === 1`)
	assert.Contains(t, p.texts(".row:not(.said)")[0], "beginning not loaded")
	value[bool](p, `(document.querySelector(".row:not(.said)").click(), true)`)
	p.see(`document.querySelectorAll("#detail .replay code").length === 2`)
	opened := p.texts("#detail")[0]
	assert.Contains(t, opened, "its beginning is not loaded")
	assert.NotContains(t, opened, "overwritten")
	assert.NotContains(t, opened, "Not compared")
	assert.Regexp(t, `^criproxy tail -past -call \d+ -full -admin `+regexp.QuoteMeta(m.admin)+`$`, p.texts("#detail .replay code")[0])
	p.keys("4")
	p.see(`document.querySelector("#view-talk .caption").textContent.endsWith(" not loaded.")`)
}
