package page

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// begin serves an admin socket at path until stop. Whoever asks for the status gets no answer, as with a runtime that
// hangs, if asked is not nil; it is closed then.
func begin(t *testing.T, path string, pid int, asked chan struct{}) *process {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	p := &process{pid: pid, rec: capture.NewRecorder(capture.Config{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, json.NewEncoder(w).Encode(admin.Version{PID: pid}))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		if asked != nil {
			close(asked)
			<-r.Context().Done()
			return
		}
		assert.NoError(t, json.NewEncoder(w).Encode(admin.Report{PID: pid}))
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		enc := capture.NewEncoder(capture.Binlog, codec.NewSchema())
		recorded := p.rec.Recorded()
		last, err := strconv.ParseUint(r.FormValue("last"), 10, 64)
		assert.NoError(t, err)
		w.Header().Set(admin.RecordedHeader, strconv.FormatUint(recorded, 10))
		w.Header().Set(admin.OldestHeader, "1")
		f := p.rec.FollowWanted(capture.Want{From: recorded - min(last, recorded) + 1})
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

// rows returns all rows until one of a method comes, and how many they are.
func (s *stream) rows(method string) (all string, n int) {
	s.t.Helper()
	for !strings.Contains(all, method) {
		rows := s.until("calls")
		var batch struct{ R [][]any }
		require.NoError(s.t, json.Unmarshal([]byte(rows), &batch))
		all, n = all+rows, n+len(batch.R)
	}
	return all, n
}

// open is for [Config].
func open(*capture.FileHeader) (*calls.Printer, *calls.Assembler, error) {
	schema := codec.NewSchema()
	return &calls.Printer{Schema: schema}, calls.NewAssembler(schema, nil), nil
}

// follow has a server follow its process until the test ends, and returns where it serves browsers.
func follow(t *testing.T, s *server) (url string) {
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() { defer close(followed); s.run(ctx) }()
	web := httptest.NewServer(s.handler())
	t.Cleanup(func() {
		web.Close()
		cancel()
		<-followed
	})
	return web.URL
}

// client is a browser that does not wait for ever.
var client = &http.Client{Timeout: testkit.Patience}

// listen opens the stream of a page.
func listen(t *testing.T, url string) (page *stream, leave func()) {
	t.Helper()
	response, err := client.Get(url + "/stream")
	require.NoError(t, err)
	page = &stream{t: t, lines: bufio.NewScanner(response.Body)}
	page.lines.Buffer(nil, 1<<20)
	return page, func() { assert.NoError(t, response.Body.Close()) }
}

func TestAPageFollowsOneProcessAfterTheOther(t *testing.T) {
	dir := testkit.SocketDir(t)
	path := filepath.Join(dir, "a.sock")
	first := begin(t, path, 1, nil)
	first.call(t, "/a.B/Recorded")

	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	server := New(Config{Admin: path, Open: open}, l)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx, l) }()

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
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

	page.until("calls", "/a.B/Recorded")
	page.until("rewritten", `{"k":[1],"n":[0]}`)
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

	_, long := first.rec.Begin(t.Context(), capture.LegInfo{Method: "/a.B/Long", Client: true})
	page.until("calls", "/a.B/Long") // before it ends
	long.End(nil, nil)
	page.until("calls", "/a.B/Long")

	first.stop()
	page.until("link", `"up":false`)
	second := begin(t, path, 2, nil)
	page.until("link", `"up":true`, `"pid":2`)
	second.call(t, "/a.B/After")
	page.until("calls", "/a.B/After")
	page.until("wrong", `"calls":4`) // of both

	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, response.Body.Close())
}

// The page said that there were no calls yet, before it had those that were recorded.
func TestAPageKnowsWhenItHasTheRecordedCalls(t *testing.T) {
	path := filepath.Join(testkit.SocketDir(t), "a.sock")
	p := begin(t, path, 1, nil)
	p.call(t, "/a.B/Recorded")
	server := newServer(Config{Admin: path, Open: open}, "")
	f := server.shown.Load()
	upTo := f.upTo
	f.upTo = func() {
		rows, _, _ := f.history.since(place{}, perBatch)
		assert.Positive(t, rows.Len(), "it has them already")
		upTo()
	}
	page, leave := listen(t, follow(t, server))
	defer leave()
	page.until("info", `"caughtUp":false`)
	page.until("calls", "/a.B/Recorded")
	page.until("info", `"caughtUp":true`)
}

func TestAPageBeginsWithTheLatestCalls(t *testing.T) {
	path := filepath.Join(testkit.SocketDir(t), "a.sock")
	p := begin(t, path, 1, nil)
	p.rec.Change(capture.Change{What: capture.Serving, Time: time.Now()})
	for range 6 {
		p.call(t, "/a.B/Old")
	}
	_, long := p.rec.Begin(t.Context(), capture.LegInfo{Method: "/a.B/Long", Client: true})
	p.call(t, "/a.B/Latest")

	server := newServer(Config{Admin: path, Open: open}, "")
	server.shown.Store(newFollower(server.cfg, "", 5))
	url := follow(t, server)
	type told struct {
		From    float64
		Older   bool
		Session string
		Loading bool
	}
	info := func(s *stream, texts ...string) (i told) {
		require.NoError(t, json.Unmarshal([]byte(s.until("info", texts...)), &i))
		return i
	}
	page, leave := listen(t, url)
	first := info(page, `"older":true`)
	assert.Positive(t, first.From)
	rows, n := page.rows("/a.B/Latest")
	assert.Contains(t, rows, "/a.B/Old", "the last of the six")
	assert.LessOrEqual(t, n, 3)
	page.until("wrong", `"calls":3`)

	older, err := client.Get(url + "/older")
	require.NoError(t, err)
	require.NoError(t, older.Body.Close())
	long.End(nil, nil)
	next := first
	for next.Session == first.Session {
		next = info(page)
	}
	rest := 0
	for page.lines.Scan() {
		rest++
	}
	assert.Less(t, rest, 3, "the page comes again")
	leave()

	page, leave = listen(t, url)
	defer leave()
	whole := info(page, `"from"`)
	assert.Equal(t, next.Session, whole.Session)
	assert.False(t, whole.Older, "the first event is a change")
	_, n = page.rows("/a.B/Latest")
	assert.GreaterOrEqual(t, n, 7, "all calls, in the order in which they ended")
	page.until("wrong", `"calls":8`)
	p.call(t, "/a.B/After")
	page.until("calls", "/a.B/After")
}

// While a runtime was gone, a finding said for some seconds that it was slow. Nothing waits for a status that hangs.
func TestWhatIsWrongComesWithTheChangeThatItIsAbout(t *testing.T) {
	path := filepath.Join(testkit.SocketDir(t), "a.sock")
	asked := make(chan struct{})
	p := begin(t, path, 1, asked)
	server := newServer(Config{Admin: path, Open: open}, "")
	server.patience = testkit.Patience // and there is no status
	page, leave := listen(t, follow(t, server))
	defer leave()
	<-asked
	page.until("wrong", `"findings":[]`)
	for _, what := range []string{capture.Slow, capture.Gone} {
		p.rec.Change(capture.Change{What: what, Time: time.Now(), Backend: "beta.io"})
		page.until("story", `"`+what+`"`)
		for _, next := range []string{"", "event: wrong", "data: .*beta.io is " + what + " since"} {
			require.True(t, page.lines.Scan())
			require.Regexp(t, "^"+next, page.lines.Text())
		}
	}
}
