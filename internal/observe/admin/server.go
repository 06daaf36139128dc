// Package admin is the admin socket: the server, and the client that the commands use.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	_ "net/http/pprof" // adds its paths to http.DefaultServeMux
	"time"

	"k8s.io/klog/v2"
)

// Mode allows only the user that criproxy runs as to connect to the admin socket, because its answers are about all
// pods.
const Mode = 0o600

// Server is the HTTP server on the admin socket, for criproxy's own commands and for monitoring.
// The caller sets the listeners before Start.
type Server struct {
	Listener net.Listener // nil if there is no admin socket
	TCP      net.Listener // serves monitoring over TCP as well; nil if not configured
	TCPAt    string       // the address of TCP in the configuration

	mux    *http.ServeMux
	public *http.ServeMux // the paths that every client may read, over TCP
}

// An Answer returns what the admin socket answers with, as JSON.
type Answer func(context.Context) (any, error)

// New returns the admin server of a proxy. answers has what it answers, by path; monitoring adds the paths that are also public;
// events answers with the recorded events, changes with what happened to the proxy and its backends.
func New(answers map[string]Answer, monitoring func(*http.ServeMux), events, changes http.HandlerFunc) *Server {
	a := &Server{mux: http.NewServeMux(), public: http.NewServeMux()}
	a.mux.Handle("/debug/pprof/", http.DefaultServeMux) // for go tool pprof
	a.mux.HandleFunc("GET /events", events)
	a.mux.HandleFunc("GET /changes", changes)
	monitoring(a.mux)
	monitoring(a.public)
	for path, answer := range answers {
		a.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			v, err := answer(r.Context())
			if r.Context().Err() != nil { // what it says of backends is wrong; the client asks again, the process that serves now
				panic(http.ErrAbortHandler)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v) // fails when the client has gone
		})
	}
	return a
}

// Handler answers what the admin socket answers.
func (a *Server) Handler() http.Handler { return a.mux }

// Start serves the listeners that are set. stop ends the contexts of all requests, and returns when all handlers have
// returned.
func (a *Server) Start() (stop func()) {
	stopSocket, stopTCP := serveHTTP(a.Listener, a.mux), serveHTTP(a.TCP, a.public)
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
		ConnState:         new(crowd).note,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	s.RegisterOnShutdown(cancel) // when nobody can connect any more: a client that is cut off asks again at once
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "The admin socket is no longer served", "socket", l.Addr())
		}
	}()
	return func() {
		bounded, stopWaiting := context.WithTimeout(context.Background(), time.Second)
		defer stopWaiting()
		if s.Shutdown(bounded) != nil {
			_ = s.Close() // of a client that reads nothing
		}
		<-done
	}
}

// Close closes the listeners of a server that was not started.
func (a *Server) Close() {
	for _, l := range []net.Listener{a.Listener, a.TCP} {
		if l != nil {
			_ = l.Close()
		}
	}
}
