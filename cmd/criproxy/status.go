package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/hook"
	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/listen"
	"github.com/criproxy/criproxy/internal/recovery"
)

// statusTime bounds how long a backend may take to say how it is.
const statusTime = 3 * time.Second

// statusReport is how a running criproxy is doing. Its JSON is stable.
type statusReport struct {
	Version   string           `json:"version"`
	PID       int              `json:"pid"`
	Started   time.Time        `json:"started"`
	Ready     bool             `json:"ready"` // the primary is up, and clients can connect
	Listeners []listenerStatus `json:"listeners"`
	Admin     string           `json:"admin,omitempty"`
	Backends  []backendStatus  `json:"backends"` // the primary first
	Hooks     *hook.State      `json:"hooks,omitempty"`
	Errors    []callError      `json:"errors"` // that clients got, the latest first
	Panics    uint64           `json:"panics"` // that were contained; each is in the log
	Config    configState      `json:"config"`
}

// listenerStatus is a socket that clients connect to. Its JSON is stable.
type listenerStatus struct {
	Path    string              `json:"path"`
	Mode    string              `json:"mode,omitempty"`  // octal; none if the file is gone
	Owner   string              `json:"owner,omitempty"` // USER:GROUP
	Access  []config.AccessRule `json:"access,omitempty"`
	Refused int64               `json:"refused"`         // calls, by the access list
	Lost    int64               `json:"lost"`            // how often the file was gone, and made anew
	Error   string              `json:"error,omitempty"` // why nobody can connect
}

// backendStatus is a runtime. Its JSON is stable.
type backendStatus struct {
	Name       string        `json:"name"` // "primary" if it has none
	Address    string        `json:"address"`
	State      string        `json:"state"` // "up", "slow", "gone", or "connecting": not yet known
	Since      time.Time     `json:"since"`
	Error      string        `json:"error,omitempty"`
	Policy     string        `json:"policy,omitempty"`
	Runtime    string        `json:"runtime,omitempty"`    // "containerd v2.4.2", as far as known
	API        []string      `json:"api,omitempty"`        // packages of CRI, the one that is used first
	Remembered uint64        `json:"remembered"`           // answers from memory, since this process began
	LastKnown  bool          `json:"lastKnown"`            // what follows is as it was last known
	Pods       *int          `json:"pods,omitempty"`       // missing
	Containers *int          `json:"containers,omitempty"` // if it
	Images     *int          `json:"images,omitempty"`     // does not say
	Took       time.Duration `json:"took"`                 // of the list of containers, in nanoseconds
}

// started is when this process began.
var started = time.Now()

// report asks every backend, and returns how all is.
func (p *proxy) report(ctx context.Context) statusReport {
	s := p.now.Load()
	r := statusReport{
		Version: version, PID: os.Getpid(), Started: started, Admin: s.cfg.Admin,
		Backends: make([]backendStatus, len(s.backends)), Errors: p.errors.list(), Panics: recovery.Count(), Config: p.configState(),
	}
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	var wg sync.WaitGroup
	for i, b := range s.backends {
		wg.Go(func() { r.Backends[i] = b.report(ctx) })
	}
	wg.Wait()
	r.Ready = p.ready()
	for _, one := range *p.shown.Load() {
		r.Listeners = append(r.Listeners, reportListener(one))
	}
	if p.hooks != nil {
		state := p.hooks.State()
		r.Hooks = &state
	}
	return r
}

// reportListener says how a socket is.
func reportListener(s *listen.Socket) listenerStatus {
	r := listenerStatus{Path: s.Path, Refused: s.Refused.Load()}
	var err error
	if r.Lost, err = s.FileState(); err != nil {
		r.Error = err.Error()
	}
	if rules := s.Access.Load(); rules != nil {
		r.Access = *rules
	}
	if info, err := os.Stat(s.Path); err == nil {
		r.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			r.Owner = userName(st.Uid) + ":" + groupName(st.Gid)
		}
	}
	return r
}

func userName(uid uint32) string {
	if u, err := user.LookupId(strconv.Itoa(int(uid))); err == nil {
		return u.Username
	}
	return strconv.Itoa(int(uid))
}

func groupName(gid uint32) string {
	if g, err := user.LookupGroupId(strconv.Itoa(int(gid))); err == nil {
		return g.Name
	}
	return strconv.Itoa(int(gid))
}

// state returns how the backend is doing, as far as that is known without asking.
func (b *backend) state() (state string, since time.Time, err error) {
	if b.known != nil {
		s := b.known.State()
		return s.Condition.String(), s.Since, s.Err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.since.IsZero():
		return "connecting", started, nil
	case b.lost != nil:
		return lastknown.Gone.String(), b.since, b.lost
	}
	return lastknown.Up.String(), b.since, nil
}

// report asks the backend how it is.
func (b *backend) report(ctx context.Context) backendStatus {
	r := backendStatus{Name: b.String(), Address: b.cfg.Address, Policy: b.cfg.Policy}
	var mu sync.Mutex // guards r
	var wg sync.WaitGroup
	// One of them that fails says why; the others would say the same.
	ask := func(method string, request, reply any, took func(time.Duration)) {
		if !b.cri {
			return // nobody has said what there is to count
		}
		wg.Go(func() {
			began := time.Now()
			err := b.top.Invoke(ctx, method, request, reply)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				took(time.Since(began))
			} else if r.Error == "" {
				r.Error = strings.TrimPrefix(status.Convert(err).Message(), "criproxy: ")
			}
		})
	}
	var about runtimeapi.VersionResponse
	ask(runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}, &about, func(time.Duration) {
		r.Runtime = strings.TrimSpace(about.GetRuntimeName() + " " + about.GetRuntimeVersion())
	})
	var pods runtimeapi.ListPodSandboxResponse
	ask(runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, &runtimeapi.ListPodSandboxRequest{}, &pods, func(time.Duration) {
		r.Pods = new(len(pods.GetItems()))
	})
	var containers runtimeapi.ListContainersResponse
	ask(runtimeapi.RuntimeService_ListContainers_FullMethodName, &runtimeapi.ListContainersRequest{}, &containers, func(took time.Duration) {
		r.Containers, r.Took = new(len(containers.GetContainers())), took
	})
	var images runtimeapi.ListImagesResponse
	ask(runtimeapi.ImageService_ListImages_FullMethodName, &runtimeapi.ListImagesRequest{}, &images, func(time.Duration) {
		r.Images = new(len(images.GetImages()))
	})
	wg.Wait()
	var err error
	if r.State, r.Since, err = b.state(); err != nil {
		r.Error = err.Error()
	}
	r.LastKnown = r.State != lastknown.Up.String() && r.Pods != nil
	b.remembered.each(func(_ string, n uint64) { r.Remembered += n })
	if r.State != lastknown.Gone.String() {
		r.API, _ = b.conn.Versions(ctx) // what it failed for stands in Error
	}
	return r
}

// serveStatus adds how the proxy is doing to the admin socket.
func (a *admin) serveStatus(p *proxy) {
	a.mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, p.report(r.Context())) })
	a.mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.configState()) })
}

// configState returns how the configuration is doing.
func (p *proxy) configState() configState {
	if r := p.reloader.Load(); r != nil {
		return r.current()
	}
	return configState{Loaded: started} // the demo's
}
