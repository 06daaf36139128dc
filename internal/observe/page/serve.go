package page

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
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

// A Server shows a running criproxy to a browser.
type Server struct {
	follower *follower
	guard    *guard
	session  string // by which a page notices that the server has restarted
	browsers atomic.Int64
}

const (
	perBatch     = 2000            // calls sent at once
	statusEvery  = 5 * time.Second // not more often, because status asks the runtimes
	metricsEvery = 2 * time.Second
	gather       = 200 * time.Millisecond // the least time between two batches, in which new calls gather
	maxBrowsers  = 16
	maxMetrics   = 16 << 20 // bytes
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

// New returns a server whose link leads to l.
func New(cfg Config, l net.Listener) *Server {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	f := &follower{client: admin.NewClient(cfg.Admin), open: cfg.Open, history: newHistory(), changed: make(chan struct{}, 1)}
	f.link.Store(&link{Error: "connecting"})
	f.info.Store(&Info{Title: cfg.Admin, Live: true})
	return &Server{follower: f, guard: newGuard(port), session: rand.Text()}
}

// URL returns the link. It works for one browser.
func (s *Server) URL() string {
	return "http://127.0.0.1:" + s.guard.port + "/?token=" + s.guard.token
}

// Port returns the port of the link.
func (s *Server) Port() string { return s.guard.port }

// Serve follows criproxy and answers browsers until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mux := http.NewServeMux()
	html, policy := Live()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write(html) // fails when the browser has gone
	})
	mux.HandleFunc("GET /call", s.call)
	mux.HandleFunc("GET /stream", s.stream)
	web := &http.Server{Handler: s.guard.wrap(mux), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		s.follower.run(ctx)
	}()
	context.AfterFunc(ctx, func() { _ = web.Close() }) // no request is worth waiting for
	err := web.Serve(l)
	stopped := ctx.Err() != nil
	cancel()
	<-followed
	if stopped || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving on %s: %w", l.Addr(), err)
}

// call answers with the details of a call.
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	key, err := strconv.ParseUint(r.URL.Query().Get("key"), 10, 64)
	if err != nil {
		http.Error(w, "the key of a call must be a number", http.StatusBadRequest)
		return
	}
	d, ok := s.follower.history.opened(key)
	if !ok {
		http.Error(w, "The messages of this call are no longer in memory: those of later calls have taken their place.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(d) // fails when the browser has gone
}

// stream sends the calls so far and new ones, the status and the metrics, as server-sent events. A browser that reads
// too slowly misses calls that the history has forgotten meanwhile.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
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
	var told uint64
	if !send("panels", marshal(Panels()), "") {
		return
	}
	var shown link
	var info *Info
	var meter Meter
	status, metrics := time.NewTimer(0), time.NewTimer(0)
	defer status.Stop()
	defer metrics.Stop()
	linked := time.NewTicker(again)
	defer linked.Stop()
	for {
		if l := *s.follower.link.Load(); l != shown {
			shown = l
			if !send("link", marshal(l), "") {
				return
			}
		}
		if now := s.follower.info.Load(); now != info {
			info = now
			if !send("info", marshal(struct {
				*Info
				Session string `json:"session"`
			}{info, s.session}), "") {
				return
			}
		}
		b, last, changed := s.follower.history.since(at, perBatch)
		var story []byte
		if story, told = s.follower.history.tell(told); story != nil && !send("story", story, "") {
			return
		}
		if b.Len() > 0 {
			at = last
			if !send("calls", b.JSON(), fmt.Sprintf("id: %d.%d\n", at.seq, at.ended)) {
				return
			}
		}
		if b.Len() == perBatch {
			continue // there may be more
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			select {
			case <-time.After(gather):
			case <-ctx.Done():
				return
			}
		case <-linked.C:
		case <-status.C:
			if report := s.status(ctx); report != nil && !send("status", report, "") {
				return
			}
			told = 0 // lists have shown again which pods there are
			status.Reset(statusEvery)
		case <-metrics.C:
			if point := s.metrics(ctx, &meter); point != nil && !send("metrics", point, "") {
				return
			}
			metrics.Reset(metricsEvery)
		}
	}
}

// status asks criproxy how it is doing. It returns nil if there is no answer.
func (s *Server) status(ctx context.Context) []byte {
	ctx, cancel := context.WithTimeout(ctx, statusEvery)
	defer cancel()
	var any json.RawMessage
	if _, err := s.follower.client.Read(ctx, "status", &any); err != nil {
		return nil
	}
	return marshal(any) // on one line
}

// metrics asks criproxy for its metrics, and returns the names and values of the series of each panel. It returns nil
// if there is no answer.
func (s *Server) metrics(ctx context.Context, meter *Meter) []byte {
	ctx, cancel := context.WithTimeout(ctx, statusEvery)
	defer cancel()
	response, err := s.follower.client.Get(ctx, "/metrics")
	if err != nil {
		return nil
	}
	defer response.Body.Close() // it is only read
	now := time.Now()
	scrape, err := Read(io.LimitReader(response.Body, maxMetrics), now)
	if err != nil {
		return nil
	}
	point := struct {
		Time   int64     `json:"t"` // Unix time, in milliseconds
		Panels [][][]any `json:"panels"`
	}{Time: now.UnixMilli()}
	for _, values := range meter.Next(scrape) {
		pairs := [][]any{}
		for _, v := range values {
			pairs = append(pairs, []any{v.Series, v.Value})
		}
		point.Panels = append(point.Panels, pairs)
	}
	return marshal(point)
}
