package runtimes

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// RegistryConfig configures a registry: its images, and the clients that may pull them.
type RegistryConfig struct {
	// App is the program in the standard images, from [build.Get]. Empty means an empty registry.
	App string
	// Username and Password, if set, are required from all clients (HTTP basic authentication).
	Username, Password string
	// Log, if not nil, gets a line for each request.
	Log io.Writer
}

// A Registry is an image registry on a loopback port that keeps everything in memory. Runtimes pull from
// it over plain HTTP without any configuration, because they do not expect TLS on loopback addresses.
//
// It starts with these images, each of which holds its own name in /etc/image:
//
//	testbed/pause:1   the sandbox image
//	testbed/app:1     the test program
//	testbed/app:2     like testbed/app:1, with another digest
//	testbed/other:1   like testbed/app:1, under another name
//	testbed/user:1    runs as uid 1000
//
// A Registry is safe for concurrent use.
type Registry struct {
	Addr string // host and port, the first part of its images' names

	config RegistryConfig
	server *http.Server
	done   chan struct{}

	mu       sync.Mutex
	requests []Request
}

// A Request is a request that a registry has answered.
type Request struct {
	Method, Path string
	Status       int
	UserAgent    string
	Username     string // from the request; may be empty
}

// pusher is the user agent of Push, whose requests are not recorded.
const pusher = "criproxy-testbed"

// StartRegistry starts a registry and fills it. Close ends it.
func StartRegistry(config RegistryConfig) (*Registry, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("testbed: starting the registry: %w", err)
	}
	r := &Registry{Addr: listener.Addr().String(), config: config, done: make(chan struct{})}
	silent := log.New(io.Discard, "", 0)
	r.server = &http.Server{Handler: r.guard(registry.New(registry.Logger(silent))), ErrorLog: silent}
	go func() {
		defer close(r.done)
		r.server.Serve(listener)
	}()
	if config.App != "" {
		if err := r.fill(); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

func (r *Registry) fill() error {
	for _, image := range []string{"pause:1", "app:1", "app:2", "other:1", "user:1"} {
		spec := imageSpec{App: r.config.App, Files: map[string]string{"/etc/image": "testbed/" + image + "\n"}}
		switch image {
		case "pause:1":
			spec.Cmd = []string{"pause"}
		case "user:1":
			spec.User = "1000"
		}
		built, err := newImage(spec)
		if err != nil {
			return err
		}
		if err := r.Push("testbed/"+image, built); err != nil {
			return err
		}
	}
	return nil
}

// Image returns the full reference of an image of this registry: Image("testbed/app:1").
func (r *Registry) Image(image string) string { return r.Addr + "/" + image }

// Push stores an image under a name such as "testbed/app:3".
func (r *Registry) Push(image string, content v1.Image) error {
	ref, err := name.ParseReference(r.Image(image), name.Insecure)
	if err != nil {
		return fmt.Errorf("testbed: pushing %s: %w", image, err)
	}
	err = remote.Write(ref, content, remote.WithUserAgent(pusher),
		remote.WithAuth(&authn.Basic{Username: r.config.Username, Password: r.config.Password}))
	if err != nil {
		return fmt.Errorf("testbed: pushing %s: %w", image, err)
	}
	return nil
}

// Requests returns the requests so far, without those of Push. They prove that a pull went over the wire.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// Close ends the registry and all transfers under way.
func (r *Registry) Close() error {
	err := r.server.Close()
	<-r.done
	return err
}

// guard checks credentials, if they are required, and records each request.
func (r *Registry) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		username, password, _ := req.BasicAuth()
		answered := r.note(req, username)
		if r.config.Username != "" && (username != r.config.Username || password != r.config.Password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="testbed"`)
			answered(http.StatusUnauthorized)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(&statusWriter{ResponseWriter: w, status: answered}, req)
	})
}

// note records a request before it is answered, so that Requests has it when the client gets the answer. It returns a
// function that fills in the status.
func (r *Registry) note(req *http.Request, username string) (answered func(status int)) {
	if strings.HasPrefix(req.UserAgent(), pusher) {
		return func(int) {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.requests)
	r.requests = append(r.requests, Request{
		Method: req.Method, Path: req.URL.Path, Status: http.StatusOK, UserAgent: req.UserAgent(), Username: username,
	})
	return func(status int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.requests[i].Status = status
		if r.config.Log != nil {
			fmt.Fprintf(r.config.Log, "%s %s %s %d %s\n", time.Now().Format(time.RFC3339), req.Method, req.URL.Path, status, req.UserAgent())
		}
	}
}

type statusWriter struct {
	http.ResponseWriter
	status func(int)
}

func (w *statusWriter) WriteHeader(status int) {
	w.status(status)
	w.ResponseWriter.WriteHeader(status)
}
