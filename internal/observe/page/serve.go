package page

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// Config says what to show.
type Config struct {
	Admin string // the path of the admin socket
	// Open returns the assembler that makes calls of a process's events, and the printer for [page.Render]. It gets
	// the header of the process's recording.
	Open func(*capture.FileHeader) (*calls.Printer, *calls.Assembler, error)
}

// A Site is served to the browser that has its link.
type Site struct {
	guard   *guard
	handler func(context.Context) http.Handler // ends what it starts with the context
	run     func(context.Context)              // runs beside it
}

func newSite(l net.Listener, handler func(context.Context) http.Handler, run func(context.Context)) *Site {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return &Site{newGuard(port), handler, run}
}

// URL returns the link. It works for one browser.
func (s *Site) URL() string { return "http://127.0.0.1:" + s.guard.port + "/?token=" + s.guard.token }

// Port returns the port of the link.
func (s *Site) Port() string { return s.guard.port }

// Serve answers browsers until ctx ends.
func (s *Site) Serve(ctx context.Context, l net.Listener) error {
	web := &http.Server{Handler: s.guard.wrap(s.handler(ctx)), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer background(ctx, s.run)()
	defer web.Close() // no request is worth waiting for
	defer context.AfterFunc(ctx, func() { _ = web.Close() })()
	err := web.Serve(l)
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving on %s: %w", l.Addr(), err)
}

// A server shows a running criproxy to browsers.
type server struct {
	cfg      Config
	title    string
	shown    atomic.Pointer[follower] // whose calls pages show
	older    chan struct{}            // gets a value when a page wants older calls
	loading  atomic.Bool              // a follower that reaches further back has not caught up yet
	browsers atomic.Int64
	patience time.Duration // how long a page waits for a status
}

const (
	perBatch    = 2000                   // calls sent at once
	statusEvery = 5 * time.Second        // not more often, because status asks the runtimes
	gather      = 200 * time.Millisecond // the least time between two batches, in which new calls gather
	maxBrowsers = 16
)

// Listen opens a TCP socket on the loopback. An address of another interface is an error.
func Listen(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("-listen %s: want an address such as 127.0.0.1:0, where 0 is any free port", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("-listen %s: ui listens only on the loopback, because calls name everything that runs on a node; to use it from another machine, give -listen 127.0.0.1:8080, and run ssh -L 8080:127.0.0.1:8080 HOST there", address)
	}
	return net.Listen("tcp", address)
}

// New returns a site, at l, that shows a running criproxy.
func New(cfg Config, l net.Listener) *Site {
	s := newServer(cfg, cfg.Admin)
	return newSite(l, func(context.Context) http.Handler { return s.handler() }, s.run)
}

func newServer(cfg Config, title string) *server {
	s := &server{cfg: cfg, title: title, older: make(chan struct{}, 1), patience: statusEvery}
	s.shown.Store(newFollower(cfg, title, latest))
	return s
}

// run follows criproxy until ctx ends. When a page wants older calls, another follower reads the recording from further
// back, and takes the place of the one before when it has caught up. So all that pages show comes from events in their order.
func (s *server) run(ctx context.Context) {
	f := s.shown.Load()
	stop := background(ctx, f.run)
	defer func() { stop() }()
	for {
		select {
		case <-s.older:
		case <-ctx.Done():
			return
		}
		s.loading.Store(true)
		f.history.nudge()
		next := newFollower(s.cfg, s.title, further*f.reach)
		stopNext := background(ctx, next.run)
		select {
		case <-next.caughtUp:
		case <-ctx.Done():
		}
		s.loading.Store(false)
		s.shown.Store(next)
		select {
		case <-s.older: // another page wanted the same
		default:
		}
		stop()
		f, stop = next, stopNext
	}
}

// handler answers browsers that the guard has let in.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	html, policy := Live()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { sendPage(w, html, policy) })
	mux.HandleFunc("GET /call", s.call)
	mux.HandleFunc("GET /stream", s.stream)
	mux.HandleFunc("GET /older", func(http.ResponseWriter, *http.Request) {
		select {
		case s.older <- struct{}{}:
		default: // another page has asked, too
		}
	})
	return mux
}

func sendPage(w http.ResponseWriter, html []byte, policy string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policy)
	_, _ = w.Write(html) // fails when the browser has gone
}

// call answers with the details of a call.
func (s *server) call(w http.ResponseWriter, r *http.Request) {
	key, err := strconv.ParseUint(r.URL.Query().Get("key"), 10, 64)
	if err != nil {
		http.Error(w, "the key of a call must be a number", http.StatusBadRequest)
		return
	}
	d, ok := s.shown.Load().history.opened(key)
	if !ok {
		http.Error(w, "The messages of this call are no longer in memory: those of later calls have taken their place.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(d) // fails when the browser has gone
}

// sessionInfo is what a page of a server gets of [Info].
type sessionInfo struct {
	*Info
	Session  string `json:"session"`
	Loading  bool   `json:"loading,omitempty"` // older calls are on their way
	CaughtUp bool   `json:"caughtUp"`          // the page has the calls that had been recorded
}

// stream sends the calls so far and new ones, and the status, as server-sent events. A browser that reads too slowly
// misses calls that the history has forgotten meanwhile.
func (s *server) stream(w http.ResponseWriter, r *http.Request) {
	if s.browsers.Add(1) > maxBrowsers {
		s.browsers.Add(-1)
		http.Error(w, "too many pages of criproxy ui are open; close one", http.StatusTooManyRequests)
		return
	}
	defer s.browsers.Add(-1)
	ctx := r.Context()
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	send := func(event string, data []byte, id string) bool {
		_, err := fmt.Fprintf(w, "event: %s\n%sdata: %s\n\n", event, id, data)
		return err == nil && flush() == nil
	}
	var at place // zero if the browser has nothing yet
	_, _ = fmt.Sscanf(cmp.Or(r.Header.Get("Last-Event-ID"), r.FormValue("after")), "%d.%d", &at.seq, &at.ended)
	var version uint64 // of the story that the browser has; zero: send it
	f := s.shown.Load()
	compare := f.history.endedBetween(place{}, at) // entries of which the page may not know what was rewritten
	var shown link
	var info sessionInfo
	complete := false
	f.wanted.Store(true)
	status := poll(ctx, statusEvery, s.status)
	linked := time.NewTicker(again)
	defer linked.Stop()
	for {
		if next := s.shown.Load(); next != f {
			send("info", marshal(sessionInfo{Info: next.info.Load(), Session: next.session}), "") // makes the page begin anew
			return
		}
		if l := *f.link.Load(); l != shown {
			shown = l
			if !send("link", marshal(l), "") {
				return
			}
		}
		caughtUp, catchesUp := false, f.caughtUp
		select {
		case <-f.caughtUp:
			caughtUp, catchesUp = true, nil
		default:
		}
		b, last, changed := f.history.since(at, perBatch) // before the info, which is then at least as new as the calls
		if now := (sessionInfo{f.info.Load(), f.session, s.loading.Load(), complete}); now != info {
			info = now
			if !send("info", marshal(info), "") {
				return
			}
		}
		var story, wrong []byte
		if story, wrong, version = f.history.newer(version); story != nil && !send("story", story, "") || wrong != nil && !send("wrong", wrong, "") {
			return
		}
		if b.Len() > 0 {
			compare = append(compare, f.history.endedBetween(at, last)...)
			at = last
			if !send("calls", b.JSON(), fmt.Sprintf("id: %d.%d\n", at.seq, at.ended)) {
				return
			}
		}
		if changed == nil {
			continue
		}
		if caughtUp && !complete {
			complete = true
			continue
		}
		var more <-chan time.Time
		if complete && len(compare) > 0 { // before that, the latest calls would come later
			more = time.After(0)
		}
		select {
		case <-more:
			var found rewrites
			if found, compare = f.history.rewritten(compare, gather); !send("rewritten", marshal(found), "") {
				return
			}
		case <-ctx.Done():
			return
		case <-changed:
			if at == (place{}) {
				continue // the first rows do not wait for more
			}
			select {
			case <-time.After(gather):
			case <-ctx.Done():
				return
			}
		case <-catchesUp:
		case <-linked.C:
		case report := <-status:
			if report != nil && !send("status", report, "") {
				return
			}
			version = 0 // lists have shown again which pods there are
			f.wanted.Store(true)
		}
	}
}

// background runs run in the background. stop ends its context, and returns when it has ended.
func background(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() { cancel(); running.Wait() }
}

// poll asks now, and each time so long after an answer, until ctx ends. A runtime that hangs makes answers late: so whoever
// reads them does not wait for them.
func poll(ctx context.Context, pause time.Duration, ask func(context.Context) []byte) <-chan []byte {
	answers := make(chan []byte)
	go func() {
		for {
			select {
			case answers <- ask(ctx):
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	}()
	return answers
}

// status asks criproxy how it is doing. It returns nil if there is no answer. That makes criproxy list the pods of each
// runtime that is up, which is recorded. A list of a runtime that is not up comes from the cache, and is not: so the page
// gets criproxy's list of pods then.
func (s *server) status(ctx context.Context) []byte {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	f := s.shown.Load()
	var report admin.Report
	raw, err := f.client.Read(ctx, "status", &report)
	if err != nil {
		return nil
	}
	if slices.ContainsFunc(report.Backends, func(b admin.Backend) bool { return b.State != capture.Up }) {
		var all admin.Pods
		if _, err := f.client.Read(ctx, "pods", &all); err == nil { // another API than CRI has none
			f.history.pods(all.Pods)
		}
	}
	return marshal(json.RawMessage(raw)) // on one line
}
