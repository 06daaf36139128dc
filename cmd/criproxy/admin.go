package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/drift"
)

// adminMode lets nobody but the user that criproxy runs as connect to the admin
// socket: what is to be had there tells of all pods.
const adminMode = 0o600

// admin is the HTTP server on the admin socket, for criproxy's own commands and for
// whoever watches over it.
type admin struct {
	mux      *http.ServeMux
	listener net.Listener // nil if there is no admin socket

	public *http.ServeMux // what everybody may know
	tcp    net.Listener   // where that is served as well; nil if nobody asked for it
	tcpAt  string         // what that is called in the configuration
}

// newAdmin returns the admin server of a proxy. A file that adds something to it has
// a function with its handlers, which is called here.
func newAdmin(p *proxy) *admin {
	a := &admin{mux: http.NewServeMux(), public: http.NewServeMux()}
	a.mux.HandleFunc("GET /version", serveVersion)
	servePprof(a.mux)
	if p != nil {
		serveMonitoring(a.mux, p)
		serveMonitoring(a.public, p)
		a.mux.HandleFunc("GET /events", p.record.serveEvents)
	}
	return a
}

// start serves the admin socket and the address for monitoring, as far as there are
// any. The function that it returns stops that, and returns when nothing of it is left;
// handlers see their requests' context end.
func (a *admin) start() (stop func()) {
	stopSocket, stopTCP := serveHTTP(a.listener, a.mux), serveHTTP(a.tcp, a.public)
	return func() {
		stopTCP()
		stopSocket()
	}
}

func serveHTTP(l net.Listener, handler http.Handler) (stop func()) {
	if l == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "The admin socket is no longer served", "socket", l.Addr())
		}
	}()
	return func() {
		cancel()
		bounded, stopWaiting := context.WithTimeout(context.Background(), time.Second)
		defer stopWaiting()
		if s.Shutdown(bounded) != nil {
			_ = s.Close() // somebody who reads nothing
		}
		<-done
	}
}

// close closes what an admin server that is not started listens on.
func (a *admin) close() {
	for _, l := range []net.Listener{a.listener, a.tcp} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// versionInfo is the answer to GET /version.
type versionInfo struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
}

func serveVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, versionInfo{Version: version, PID: os.Getpid()})
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails when the client has gone
}

// adminClient is a client of the admin socket at path.
type adminClient struct {
	path string
	http *http.Client
}

func newAdminClient(path string) *adminClient {
	return &adminClient{path: path, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}}
}

// get asks for a path, such as "/version?a=b". The body is the caller's to close.
func (c *adminClient) get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://criproxy"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no admin socket at %s; is criproxy running, and with this -admin?", c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("nobody serves the admin socket %s any more; start criproxy", c.path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("the admin socket %s is only for the user that criproxy runs as; run this as root", c.path)
	case err != nil:
		return nil, fmt.Errorf("asking criproxy at %s: %w", c.path, err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close() // an error's, which is read below
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if response.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("the criproxy at %s does not know %s; it may be an older one", c.path, path)
	}
	return nil, fmt.Errorf("criproxy at %s: %s", c.path, strings.TrimSpace(string(text)))
}

// serveSettings adds the configuration in use to the admin socket.
func (a *admin) serveSettings(p *proxy) {
	a.mux.HandleFunc("GET /settings", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.now.Load().cfg.Settings()) })
}

// serveDrift answers GET /drift with what was seen.
func (a *admin) serveDrift(w *drift.Watch) {
	a.mux.HandleFunc("GET /drift", func(rw http.ResponseWriter, _ *http.Request) { writeJSON(rw, w.Findings()) })
}
