package browser

import (
	"bytes"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// The live page of a criproxy that does not record conditions says that bands are inferred, as the page of a file does.
func TestThePageOfAnOlderCriproxyInfersBands(t *testing.T) {
	chromium(t)
	program, err := criproxy()
	require.NoError(t, err)
	n := record(0)
	var recording bytes.Buffer
	n.write(t, &recording)
	mux := http.NewServeMux()
	answers := func(path, text string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }) // fails when the page has gone
	}
	answers("/version", `{"version":"0.9","pid":7}`)
	answers("/status", `{"version":"0.9","pid":7,"ready":true,"config":{},"listeners":[],"backends":[{"name":"primary","state":"up"},{"name":"kata.io","state":"up"}]}`)
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Criproxy-Recorded", strconv.Itoa(len(n.events)))
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
	p := open(t, m.link)
	p.see(`document.querySelectorAll(".row:not(.said)").length > 20`)
	p.see(`document.querySelector("#strip").textContent.includes("No conditions of runtimes are recorded here: bands are inferred from calls.")`)
}
