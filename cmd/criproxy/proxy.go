package main

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/access"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/hook"
	"github.com/criproxy/criproxy/internal/limits"
	"github.com/criproxy/criproxy/internal/listen"
	"github.com/criproxy/criproxy/internal/recovery"
)

// proxy is a director with its backends and its server.
type proxy struct {
	director     *director.Director
	server       *grpc.Server
	admin        *admin
	hooks        *hook.Plugins // nil if there are to be none
	calls        *generations
	record       *recording
	drift        *drift.Watch
	memory       *limits.Memory // for messages
	memories     *memories
	errors       lastErrors
	metrics      *metrics
	spans        spans
	began        *config.Config           // with what it was built
	draining     atomic.Bool              // no new calls are taken
	disconnected atomic.Bool              // no calls are left: only its own goroutines are
	reloader     atomic.Pointer[reloader] // nil if there is none
	now          atomic.Pointer[setup]
	filter       access.VerboseFilter

	shown atomic.Pointer[[]*listen.Socket] // the sockets, for who only looks

	handedOver chan struct{} // closed when another process serves
	failed     chan error    // a socket could not be served; has room for one
	failing    chan struct{} // closed when that ends the process
	parts      parts         // what the end waits for
	onServing  func()        // is called when clients can connect
	stderr     io.Writer     // of who takes over; nil: nothing

	reloading sync.Mutex       // one reload or handover at a time; guards what follows
	running   context.Context  // of the backends; nil until run
	group     sync.WaitGroup   // what run waits for
	sockets   []*listen.Socket // the main one first; see show
	stopped   bool             // nothing is to be reloaded or handed over any more
	successor *exec.Cmd        // who serves, when handedOver is closed
}

// A setup is a configuration and what was made of it. It is immutable.
type setup struct {
	cfg      *config.Config
	backends []*backend // the primary first
}

// newProxy builds all of it, and starts nothing.
func newProxy(cfg *config.Config) (*proxy, error) { return newSuccessor(cfg, nil) }

// newSuccessor is newProxy for a process that takes over from another, with what that
// remembers: name of a backend → its encoded memory.
func newSuccessor(cfg *config.Config, handed map[string][]byte) (*proxy, error) {
	p := &proxy{began: cfg, memories: newMemories(handed), metrics: newMetrics(), calls: newGenerations(), handedOver: make(chan struct{}), failed: make(chan error, 1), failing: make(chan struct{}), onServing: func() {}}
	p.show()
	recovery.Notify(logPanic)
	a, err := readAPI(cfg)
	if err != nil {
		return nil, err
	}
	if p.record, err = newRecording(cfg, a); err != nil {
		return nil, err
	}
	redactor, err := access.NewRedactor(cfg, a.Profile, a.Schema)
	if err != nil {
		return nil, err
	}
	p.filter.Set(redactor)
	p.memory = limits.New(cfg, a.Profile, p.record.schema)
	p.metrics.watchLimits(p.memory.Usage)
	if p.drift, err = drift.New(driftConfig(cfg, a.Config)); err != nil {
		return nil, err
	}
	s, d, err := p.build(cfg, a, nil)
	if err != nil {
		return nil, err
	}
	p.now.Store(s)
	p.metrics.know(d)
	if p.hooks, err = newHooks(cfg); err != nil {
		p.close()
		return nil, err
	}
	if p.hooks != nil {
		d.Around = p.hooks.Around
	}
	if p.director, err = director.New(d); err != nil {
		p.close()
		return nil, err
	}
	p.calls.endless = p.director.Endless
	p.server = grpc.NewServer(
		grpc.ForceServerCodecV2(codec.Raw),
		grpc.UnknownServiceHandler(p.director.Handler()),
		grpc.MaxRecvMsgSize(cfg.MaxMessageBytes),
		grpc.Creds(listen.Credentials{TransportCredentials: insecure.NewCredentials()}),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.ChainUnaryInterceptor(containUnary, access.InterceptUnary),
		grpc.ChainStreamInterceptor(containStream, access.InterceptStream, p.memory.Intercept, p.calls.intercept, p.filter.Intercept),
		// Goroutines that have done a call have the stack for the next one.
		grpc.NumStreamWorkers(streamWorkers),
		// Static windows: the estimate that would be made otherwise costs a ping for
		// each reply, and a unix socket has no bandwidth to find out about.
		grpc.InitialWindowSize(director.StreamWindow),
		grpc.InitialConnWindowSize(director.ConnWindow),
		// A connection that says nothing takes 18 KB, not 70.
		grpc.ReadBufferSize(4<<10),
		// Whatever keepalive a client likes: the socket is local.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	if !strings.HasPrefix(healthgrpc.Health_ServiceDesc.ServiceName, a.Profile.Versions[0].Package+".") { // or it is what the backends are asked for
		healthgrpc.RegisterHealthServer(p.server, &healthService{proxy: p})
	}
	p.metrics.registry.MustRegister(newGauges(p))
	p.admin = newAdmin(p)
	p.admin.serveHooks(p.hooks)
	p.admin.serveStatus(p)
	p.admin.serveSettings(p)
	p.admin.serveDrift(p.drift)
	return p, nil
}

// tracer returns what is shown the calls.
func (p *proxy) tracer() director.Tracer {
	all := observers{&p.spans, p.metrics, &p.errors, p.drift} // the first says what is sent on
	if t := p.record.tracer(); t != nil {
		all = append(all, t)
	}
	return all
}

// streamWorkers is how many calls at once find a goroutine that is there already.
const streamWorkers = 32

// build makes the backends of cfg, those of old where nothing about them has
// changed, and what the director needs to know.
func (p *proxy) build(cfg *config.Config, a api, old *setup) (*setup, director.Config, error) {
	s := &setup{cfg: cfg}
	d := a.Config
	d.MaxMessage = cfg.MaxMessageBytes
	d.NativeNames = cfg.IDs == config.NativeIDs
	d.NewTo = cfg.NewPodsTo
	d.LookInterval = cfg.EventInterval
	d.Withheld = logWithheld()
	d.Mended = logMended()
	d.Tracer = p.tracer()
	for i := range cfg.Backends {
		b := old.reuse(cfg, i)
		if b == nil {
			var err error
			if b, err = newBackend(cfg, i, d, p.memories); err != nil {
				s.discard(old)
				return nil, d, err
			}
		}
		s.backends = append(s.backends, b)
		d.Backends = append(d.Backends, b.director(cfg.Backends[i]))
	}
	return s, d, nil
}

// reuse returns the backend of s that is as the i-th of cfg would be, nil if there
// is none.
func (s *setup) reuse(cfg *config.Config, i int) *backend {
	if s == nil {
		return nil
	}
	key := stackKey(cfg, i)
	for _, b := range s.backends {
		if b.key == key {
			return b
		}
	}
	return nil
}

// discard closes the backends of s, which were never run, but those that are old's
// as well.
func (s *setup) discard(old *setup) {
	for _, b := range s.backends {
		if old == nil || !slices.Contains(old.backends, b) {
			_ = b.conn.Close() // nothing has used it
		}
	}
}

// close releases what newProxy made, if it is not run.
func (p *proxy) close() {
	if p.server != nil {
		p.server.Stop() // it has goroutines from the beginning
	}
	if p.hooks != nil {
		p.hooks.Close()
	}
	p.now.Load().discard(nil)
}

// backends are the runtimes, the primary first.
func (p *proxy) backends() []*backend { return p.now.Load().backends }

// reload makes the proxy work by cfg, from the next call on. Calls under way finish
// as they began. If cfg cannot be used nothing changes.
func (p *proxy) reload(cfg *config.Config) error {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	if err := p.changeable(); err != nil {
		return err
	}
	old := p.now.Load()
	a, err := readAPI(cfg)
	if err != nil {
		return err
	}
	redactor, err := access.NewRedactor(cfg, a.Profile, a.Schema)
	if err != nil {
		return err
	}
	opened, err := p.openNew(cfg)
	if err != nil {
		return err
	}
	s, d, err := p.build(cfg, a, old)
	if err == nil {
		if err = p.director.Reload(d); err != nil {
			s.discard(old)
		}
	}
	if err != nil {
		for _, one := range opened {
			_ = one.Close() // nobody has connected
		}
		return err
	}
	// From here on nothing can fail.
	p.filter.Set(redactor) // before a socket has rules that need it
	p.now.Store(s)
	p.memory.Configure(cfg)
	p.metrics.know(d)
	if err := p.drift.Update(driftConfig(cfg, d)); err != nil { // the director has taken the same profile
		klog.ErrorS(err, "What clients and backends send is still compared with the old profile")
	}
	p.replaceSockets(cfg, opened)
	p.replaceBackends(old, s)
	p.memories.keepOnly(cfg)
	return nil
}

// replaceBackends starts those of s that are new, and stops those of old that s has
// no more when the last call that may use them has ended.
func (p *proxy) replaceBackends(old, s *setup) {
	var gone []*backend
	for _, b := range old.backends {
		if !slices.Contains(s.backends, b) {
			if b.known != nil {
				b.known.Retire()
			}
			gone = append(gone, b)
		}
	}
	for _, b := range s.backends {
		p.start(b)
	}
	if slices.Equal(old.backends, s.backends) {
		return
	}
	before := p.calls.next()
	p.goDo("keeping runtimes that are no longer in the configuration", func() {
		select {
		case <-before:
		case <-time.After(retireTime):
		case <-p.running.Done():
		}
		for _, b := range gone {
			b.stop()
		}
	})
}

// What is asked too late, or too early, of a proxy.
var (
	errStopped   = errors.New("this process is stopping")
	errNotServes = errors.New("this process does not serve yet; try again when it does")
)

// changeable returns why nothing can be reloaded or handed over, nil if it can.
// p.reloading is held.
func (p *proxy) changeable() error {
	switch {
	case p.stopped:
		return errStopped
	case p.running == nil:
		return errNotServes
	}
	return nil
}

// retireTime bounds how long a runtime that is no longer in the configuration is
// kept for calls that began before.
const retireTime = 10 * time.Minute

// start runs a backend, if it is not running.
func (p *proxy) start(b *backend) {
	if b.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(p.running)
	b.stop = cancel
	p.group.Go(func() { b.run(ctx, &p.parts) })
}

// logWithheld returns what logs, once for each backend, that credentials did not
// go along with a pull.
func logWithheld() func(director.Backend, string, string) {
	var told sync.Map
	return func(b director.Backend, method, name string) {
		if _, twice := told.LoadOrStore(b.Name, true); !twice {
			klog.InfoS("Credentials are not sent along: kubelet found them for the image with its prefix, and whoever the rest of the name belongs to need not be meant; allow it with credentials: true in the configuration of the backend",
				"backend", b, "image", name)
		}
	}
}
