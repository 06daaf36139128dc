package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process stands in for a criproxy: an admin socket with a recorder.
type process struct {
	pid  int
	rec  *capture.Recorder
	stop func()
}

// begin serves an admin socket at path until stop.
func begin(t *testing.T, path string, pid int) *process {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	p := &process{pid: pid, rec: capture.NewRecorder(capture.Config{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, json.NewEncoder(w).Encode(admin.Version{PID: pid}))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, json.NewEncoder(w).Encode(admin.Report{PID: pid}))
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, err := fmt.Fprintf(w, "# TYPE criproxy_ready gauge\ncriproxy_ready 1\n# TYPE go_goroutines gauge\ngo_goroutines %d\n", pid)
		assert.NoError(t, err)
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		enc := capture.NewEncoder(capture.Binlog, codec.NewSchema())
		f := p.rec.Follow(true)
		buf := enc.Begin(nil, &capture.FileHeader{Version: capture.Version})
		var ev capture.Event
		for {
			_, _ = w.Write(buf)
			_ = http.NewResponseController(w).Flush() // both fail when the test is over
			if f.Next(r.Context(), &ev) != nil {
				return
			}
			buf = enc.Append(buf[:0], &ev)
		}
	})
	web := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(l) // until it is closed
	}()
	var stopped atomic.Bool
	p.stop = func() {
		if !stopped.Swap(true) {
			p.rec.Close()
			_ = web.Close()
			<-done
		}
	}
	t.Cleanup(p.stop)
	return p
}

func (p *process) call(t *testing.T, method string) {
	_, leg := p.rec.Begin(t.Context(), capture.LegInfo{Method: method, Client: true})
	leg.End(nil, nil)
}

// A stream is what a page gets.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
}

// until returns the data of the first event of a kind that has all texts.
func (s *stream) until(event string, texts ...string) string {
	s.t.Helper()
	kind := ""
	for s.lines.Scan() {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		if name == "event" {
			kind = value
		}
		found := name == "data" && kind == event
		for _, text := range texts {
			found = found && strings.Contains(value, text)
		}
		if found {
			return value
		}
	}
	s.t.Fatal("the stream ended before ", event, texts, s.lines.Err())
	return ""
}

func TestAPageFollowsOneProcessAfterTheOther(t *testing.T) {
	dir := testkit.SocketDir(t)
	path := filepath.Join(dir, "a.sock")
	first := begin(t, path, 1)
	first.call(t, "/a.B/Recorded")

	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	server := New(Config{Admin: path, Open: func(*capture.FileHeader) (*calls.Printer, *calls.Assembler, error) {
		schema := codec.NewSchema()
		return &calls.Printer{Schema: schema}, calls.NewAssembler(schema, nil), nil
	}}, l)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx, l) }()

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(url string) *http.Response {
		r, err := client.Get(url)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.StatusCode, url)
		return r
	}
	base, _, _ := strings.Cut(server.URL(), "?")
	html := get(server.URL())
	assert.Contains(t, html.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
	require.NoError(t, html.Body.Close())
	response := get(base + "stream")
	page := &stream{t: t, lines: bufio.NewScanner(response.Body)}
	page.lines.Buffer(nil, 1<<20)

	page.until("panels", `"title":"Ready"`)
	page.until("calls", "/a.B/Recorded")
	first.call(t, "/a.B/Next")
	rows := page.until("calls", "/a.B/Next")
	var batch struct{ R [][]any }
	require.NoError(t, json.Unmarshal([]byte(rows), &batch))
	opened := get(base + "call?key=2")
	var d struct{ Legs []any }
	require.NoError(t, json.NewDecoder(opened.Body).Decode(&d))
	require.NoError(t, opened.Body.Close())
	assert.Len(t, d.Legs, 1)
	assert.InDelta(t, 2, batch.R[0][0], 0)

	_, open := first.rec.Begin(t.Context(), capture.LegInfo{Method: "/a.B/Long", Client: true})
	page.until("calls", "/a.B/Long") // before it ends
	open.End(nil, nil)
	page.until("calls", "/a.B/Long")

	page.until("metrics", `[["",1]]`)
	first.stop()
	page.until("link", `"up":false`)
	second := begin(t, path, 2)
	page.until("link", `"up":true`, `"pid":2`)
	second.call(t, "/a.B/After")
	page.until("calls", "/a.B/After")
	page.until("metrics", `[["",2]]`)

	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, response.Body.Close())
}
