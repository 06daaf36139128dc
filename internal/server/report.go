package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/plugins"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// StatusTime bounds how long a backend may take to answer for a report; slowTime, one that is known to be slow, for which
// the cache answers within that time.
const (
	StatusTime = 3 * time.Second
	slowTime   = time.Second
)

// started is the time when this process began.
var started = time.Now()

// Report asks every backend, and returns the state of the proxy and of all backends. It takes no lock for longer than a moment,
// and at most StatusTime in all: status must work best when something hangs.
func (p *Proxy) Report(ctx context.Context) admin.Report {
	s := p.now.Load()
	r := admin.Report{
		Version: config.Version, PID: os.Getpid(), Started: started, DataPath: p.began.DataPath, Admin: s.cfg.Admin,
		Backends: make([]admin.Backend, len(s.backends)), Errors: p.errors.List(), Recorder: p.record.Reach(), Export: p.export.State(), Panics: recovery.Count(), Config: *p.config.Load(),
	}
	ctx, cancel := context.WithTimeout(ctx, StatusTime)
	defer cancel()
	var wg sync.WaitGroup
	for i, b := range s.backends {
		wg.Go(func() { r.Backends[i] = b.report(ctx) })
	}
	wg.Wait()
	r.Ready, r.StaysFor = p.Health().Ready, p.staysFor()
	clients := p.clients()
	for _, one := range p.sockets() {
		l := reportListener(one)
		l.Connections = p.connectionsOf(one, clients[one])
		r.Listeners = append(r.Listeners, l)
	}
	r.Hooks = p.plugins()
	return r
}

// reportListener returns the state of a socket, with mode and owner as its file has them now: somebody may have changed them.
func reportListener(s *listen.Socket) admin.Listener {
	r := admin.Listener{Path: s.Path, Refused: s.Refused.Load()}
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

// userName returns the name of a user, or the number of one without a name.
func userName(uid uint32) string {
	if u, err := user.LookupId(strconv.Itoa(int(uid))); err == nil {
		return u.Username
	}
	return strconv.Itoa(int(uid))
}

// groupName returns the name of a group, or the number of one without a name.
func groupName(gid uint32) string {
	if g, err := user.LookupGroupId(strconv.Itoa(int(gid))); err == nil {
		return g.Name
	}
	return strconv.Itoa(int(gid))
}

// state returns the state of the backend that is known without a call: what the history has. Of a backend that is up, err is another
// problem, such as with the file of its cache.
func (b *stack) state() (state string, since time.Time, err error) {
	k := b.condition()
	switch {
	case k.State == "":
		return capture.Connecting, cmp.Or(k.Since, started), nil
	case k.Why != "":
		return k.State, k.Since, errors.New(k.Reason())
	case b.cached && k.State == capture.Up:
		return k.State, k.Since, b.backend.State().Err
	}
	return k.State, k.Since, nil
}

// report asks the backend for its version and its items, and returns its state. It asks as a client does, so where the backend is
// slow or gone, the numbers are those of the cache, and LastKnown says so. The state is that of after the calls, because they may
// have shown that the backend is gone.
func (b *stack) report(ctx context.Context) admin.Backend {
	r := admin.Backend{Name: b.String(), Address: b.cfg.Address, Policy: b.cfg.Policy}
	known, bound, process := b.condition(), StatusTime, b.servedBy()
	slow := known.State == capture.Slow || known.State == capture.Gone // without a cache, one that is gone may hang
	if slow {
		bound = slowTime
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	// All calls at once: one that hangs must not hide what the others say.
	var mu sync.Mutex // guards r
	var wg sync.WaitGroup
	// If several calls fail, the first error counts: the others would say the same.
	ask := func(method string, request, reply any, took func(time.Duration)) {
		if !b.cri {
			return // other APIs do not have these calls
		}
		wg.Go(func() {
			began := time.Now()
			err := b.ask(ctx, method, request, reply)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				took(time.Since(began))
			} else if r.Error == "" {
				r.Error = unanswered(ctx, bound, method, err)
			}
		})
	}
	var about runtimeapi.VersionResponse
	unknown := known.Runtime == "" // else each new connection asks for it, and for its API: the report need not wait
	if unknown {
		ask(runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}, &about, func(time.Duration) {
			r.Runtime = runtimeName(&about)
		})
	}
	var pods runtimeapi.ListPodSandboxResponse
	ask(runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, &runtimeapi.ListPodSandboxRequest{}, &pods, func(time.Duration) {
		r.Pods = new(len(pods.GetItems()))
		for _, one := range pods.GetItems() {
			r.PodIDs = append(r.PodIDs, b.prefix+one.GetId())
		}
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
	// What the calls have shown is in the history by now.
	var err error
	if r.State, r.Since, err = b.state(); err != nil {
		r.Error = err.Error()
	} else if r.Error != "" && r.State == backend.Up.String() {
		r.Error = "is connected, but " + r.Error
	}
	if b.cached {
		s := b.backend.State()
		if r.NeverSeen = s.Condition != backend.Up && !s.Seen; r.NeverSeen {
			r.Pods, r.Containers, r.Images = nil, nil, nil // nobody counted them
		}
	}
	r.LastKnown = r.State != backend.Up.String() && r.Pods != nil
	if r.State == backend.Up.String() {
		r.PodIDs = nil // nothing concerns them
	}
	for _, n := range b.answers.of(b.String()) {
		r.Remembered += n
	}
	if unknown && r.State != backend.Gone.String() {
		r.API, _ = b.conn.Versions(ctx) // Error already has the reason of a failure
	}
	b.is(r.Runtime, r.API, process)
	known = b.condition()
	r.Runtime, r.API, r.Outages = known.Runtime, known.API, known.Outages
	return r
}

// unanswered says which call for a report a backend has not answered, and why: because the report ended, or with its own error.
func unanswered(ctx context.Context, bound time.Duration, method string, err error) string {
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(deadline) { // a call may end before its context
		return fmt.Sprintf("has not answered %s within %s", path.Base(method), bound)
	}
	return fmt.Sprintf("%s fails: %s", path.Base(method), strings.TrimPrefix(status.Convert(err).Message(), "criproxy: "))
}

// Config returns the configuration in use. The caller must not change it.
func (p *Proxy) Config() *config.Config { return p.now.Load().cfg }

// Health returns whether the proxy answers calls. It is ready when it serves, clients can connect,
// and the primary takes calls. The other backends do not matter: the node works without them.
func (p *Proxy) Health() admin.Health {
	h := admin.Health{Stopping: p.draining.Load(), Unreachable: p.unreachable()}
	for _, b := range p.backends() {
		state, _, err := b.state()
		h.Backends = append(h.Backends, admin.BackendHealth{Name: b.String(), State: state, Err: err})
	}
	h.Ready = admin.TakesCalls(h.Backends[0].State) && !h.Stopping && h.Unreachable == nil
	return h
}

// served has what the admin socket answers, by path.
func (p *Proxy) served() map[string]admin.Answer {
	known := func(state func() any) admin.Answer {
		return func(context.Context) (any, error) { return state(), nil }
	}
	return map[string]admin.Answer{
		"/status":   func(ctx context.Context) (any, error) { return p.Report(ctx), nil },
		"/pods":     func(ctx context.Context) (any, error) { return p.Pods(ctx) },
		"/version":  known(func() any { return admin.Version{Version: config.Version, PID: os.Getpid(), StaysFor: p.staysFor()} }),
		"/config":   known(func() any { return p.config.Load() }),
		"/settings": known(func() any { return p.Config().Settings() }),
		"/drift":    known(func() any { return p.findings() }),
		"/hooks": known(func() any {
			return cmp.Or(p.plugins(), &plugins.State{Plugins: []plugins.PluginState{}, Known: map[string]int{}})
		}),
	}
}

// findings returns what calls had that the profile does not know.
func (p *Proxy) findings() []drift.Finding {
	if p.drift == nil {
		return nil
	}
	return p.drift.Findings()
}

// plugins returns the state of the plugins, or nil if they are turned off. One that cannot be asked has the reason of its
// event and, if that is another, the one of now.
func (p *Proxy) plugins() *plugins.State {
	if p.hooks == nil {
		return nil
	}
	s, known := p.hooks.State(), p.changes.Conditions().Plugins
	for i := range s.Plugins {
		one := &s.Plugins[i]
		if k := known[one.Name]; k.State == capture.PluginDown && (one.State == plugins.StateDown || one.State == plugins.StateBroken) {
			one.Error = k.Reason()
		}
	}
	return &s
}
