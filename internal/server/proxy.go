// Package server assembles a proxy. [New] builds a [Proxy] from a configuration, Open opens its
// sockets, Run serves them until the end, Reload applies another configuration, HandOver starts a
// process that takes over, and Report describes its state.
//
// open.go, run.go, reload.go, handover.go and ending.go follow the life of a proxy. assembly.go makes
// what a configuration needs, stack.go the connections to the runtimes, report.go describes the
// state of all of them, and interceptors.go lists the interceptors of each call.
//
// What lives how long, the longest first:
//
//	a Set        longer than the process: a handover passes the backend.Backend of each runtime to the next one
//	a Proxy      the process: its server, sockets and recorder, and the history of its backends (telemetry.Changes)
//	a stack      the connection to one runtime, until a reload changes what it needs; Proxy.backends returns these
//	an assembly  one configuration, until the next reload
//	a group      the calls that began between two reloads that took backends away
//
// A reload replaces an assembly, and of the stacks only those that it changes. All above them stays as it is, so no reload
// moves the state of a runtime from one place to another.
package server

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/plugins"
	"github.com/criproxy/criproxy/internal/server/limits"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/transport"
)

// A Proxy is a director with its backends and its server. New makes one, and it lasts as long as the process.
//
// It goes through these states, and never back:
//
//	state     begins with                                      what it does
//	built     New                                              answers Admin, Health and State; Close ends it
//	open      Open, or UseListener                             clients can connect, and wait
//	serving   Run                                              calls, Reload, HandOver
//	draining  the end of Run's ctx, a handover, or a socket    finishes the calls under way, and refuses reloads and
//	          that fails                                       handovers with ErrStopped
//	ended     Run returns                                      nothing
//
// What a configuration makes is an assembly, which never changes: a reload builds the next one beside it, and swaps the
// pointer now when nothing can fail any more. Calls under way finish with the assembly that they began with. Reloads and
// handovers take turns with the lock reloading; everything else may be called at any time. Whoever starts a goroutine that
// the end must wait for does it with group or parts, so that a stop that hangs can say what it waits for.
//
// The lock reloading is the outermost one: who holds it may take the locks of the Set, the Changes and the groups, and may
// wait for a disk or for another process. So no call of a client takes it, nor does anything that reports the state: what these
// need of a reload is behind an atomic pointer.
type Proxy struct {
	// New sets these fields, and later only the atomic ones change. Each is safe for concurrent use, or only New and Run use it.
	director     *director.Director
	server       server
	admin        *admin.Server
	hooks        *plugins.Plugins // nil if plugins are turned off
	callGroups   *callGroups
	record       *telemetry.Recording
	export       *telemetry.Exporter // nil if nothing is recorded, or the proxy only shows calls
	changes      *telemetry.Changes
	losses       *telemetry.Losses
	answers      answers // from the caches of the backends
	crashes      crashes // of earlier processes
	drift        *drift.Watch
	memory       *limits.Memory // bytes for messages
	set          *Set
	predecessor  *Predecessor
	shows        bool // the proxy passes calls on unchanged: see Options.Shown
	errors       telemetry.LastErrors
	metrics      *telemetry.Metrics
	spans        telemetry.Spans
	profile      *director.Profile  // the first
	names        func() calls.Namer // that find out what calls are about
	began        *config.Config     // the first configuration
	draining     atomic.Bool        // the proxy takes no new calls
	disconnected atomic.Bool        // all calls have ended; only goroutines of the proxy are left
	now          atomic.Pointer[assembly]
	config       atomic.Pointer[admin.Config] // state of the configuration
	access       atomic.Pointer[access]
	via          string // the value of this proxy in the metadata of the calls that it makes

	listens atomic.Pointer[[]*listen.Socket] // see sockets

	handedOver context.Context // ends when another process serves, by handOver
	handOver   context.CancelFunc
	failed     context.Context // ends, with the cause, when a socket cannot be served, by fail
	fail       context.CancelCauseFunc
	parts      parts         // tasks that the end waits for
	serving    chan struct{} // closed when clients can connect
	stderr     io.Writer     // of the process that takes over; nil discards its output
	machine    Machine

	// One reload or handover at a time: its lock guards the fields below.
	reloading sync.Mutex
	running   context.Context // of the backends; nil until Run
	group     sync.WaitGroup  // goroutines that Run waits for
	stopped   bool            // there are no more reloads and handovers
	successor *successor      // the process that serves when handedOver has ended; nil until then
	owner     *owner          // of the state folder
}

// Options has settings of a proxy that are not in its configuration. The zero value is for a process
// that does not take over from another. A reload does not change them.
type Options struct {
	File        string            // path of the configuration; empty if it was not in a file
	Flags       map[string]string // of the command line, that take precedence over the file: name → value
	Predecessor *Predecessor      // of the process that hands over; nil if there is none
	Stderr      io.Writer         // of a process that takes over from this one; nil discards its output

	// Finder counts what is wrong for the metric criproxy_findings. Nil leaves that out.
	Finder *why.Look

	// Shown makes the proxy pass everything to its one backend as it is. It describes the
	// messages that the proxy records. Nil means a proxy for the API of its configuration.
	Shown *API

	Machine Machine
}

// A Machine is the part of the machine that a test replaces. The zero value is the machine that this
// process runs on.
type Machine struct {
	// Dial connects to the address of a backend.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Succeed starts the process that takes over, and returns when that process serves, which reads the
	// backends of this one from a connection, with [ReadPredecessor].
	Succeed func(ctx context.Context, backends net.Conn) error

	// Left returns what reads a file that an earlier process has left, with its recording. Nil means the file.
	Left func(io.ReaderAt) io.ReaderAt

	Boot string // differs after each boot

	// Patience is how long calls may take to end after a handover or a reload, unless their own deadlines are later. Zero
	// means 10 minutes.
	Patience time.Duration
}

// New builds the proxy of a configuration that [Check] has completed. It opens no sockets and starts
// no tasks. The caller must call Run, or Close if it does not get that far.
//
// The order counts. The state folder is claimed before anything in it is read; what the process before has recorded is
// restored before this one records anything; and the backends are committed before the director can make a call.
func New(cfg *config.Config, o Options) (_ *Proxy, err error) {
	p := &Proxy{
		began: cfg, stderr: o.Stderr, machine: o.Machine, set: NewSet(o.Predecessor.backends()), predecessor: o.Predecessor, metrics: telemetry.NewMetrics(), callGroups: newCallGroups(),
		serving: make(chan struct{}), via: rand.Text(),
	}
	p.handedOver, p.handOver = context.WithCancel(context.Background())
	p.failed, p.fail = context.WithCancelCause(context.Background())
	// First what logs and counts, for all that follows.
	p.losses = telemetry.NewLosses(p.metrics.Registry)
	p.config.Store(&admin.Config{File: o.File, ID: cfg.ID(), Flags: o.Flags, Loaded: time.Now()})
	p.listens.Store(&[]*listen.Socket{})
	p.shows = o.Shown != nil
	recovery.Notify(logPanic)
	transport.Blamed(logBlame)
	var a API
	if p.shows {
		a = *o.Shown
	} else if a, err = Read(cfg); err != nil {
		return nil, err
	} else if err = checkAccess(cfg, a); err != nil {
		return nil, err
	}
	p.profile = a.Profile
	// A configuration with mistakes makes no folder, and takes none from a process that serves.
	makeStateDir(cfg)
	if p.owner, err = p.await(cfg); err != nil {
		goWithout(cfg, err)
	}
	defer func() {
		if err != nil {
			p.unlock()
		}
	}()
	if p.record, err = telemetry.NewRecording(cfg, a.Config, a.Own); err != nil {
		return nil, err
	}
	p.names = sync.OnceValue(func() calls.Namer {
		names, err := cri.NewNames(a.Profile, p.record.Schema, p.record.Header().About)
		if err != nil { // cannot happen: the director has compiled the same profile
			klog.ErrorS(err, "Exports, findings and long calls do not say which pods they are about")
			return nil
		}
		return names
	})
	if !p.shows {
		p.export = telemetry.NewExporter(p.record, p.names)
	}
	p.now.Store(&assembly{cfg: cfg}) // without backends: what follows asks for the configuration
	p.changes = telemetry.NewChanges(p.record, p.stateDir())
	p.record.Conditions = p.conditions
	p.restoreEvidence() // before anything is recorded
	first, err := newAccess(cfg, a, nil)
	if err != nil {
		return nil, err
	}
	p.access.Store(first)
	p.memory = limits.New(cfg, a.Profile, p.record.Schema)
	p.memory.Refused = p.recordRefused
	if !p.shows {
		if p.drift, err = drift.New(driftConfig(cfg, a.Config)); err != nil {
			return nil, err
		}
	}
	// The backends, as a reload makes them; nothing uses them yet, so the order of commits does not matter.
	s, d, err := p.build(cfg, a, nil)
	if err != nil {
		return nil, err
	}
	p.now.Store(s)
	s.commit(nil)
	s.staged.Commit()
	p.metrics.Know(d)
	if p.hooks, err = newHooks(cfg, p.changes); err != nil {
		p.Close()
		return nil, err
	}
	if p.hooks != nil {
		d.Around = p.hooks.Around
	}
	if p.director, err = director.New(d); err != nil {
		p.Close()
		return nil, err
	}
	// Then what clients reach, from the director outwards.
	p.callGroups.endless, p.callGroups.patience = p.director.Endless, p.patience()
	p.server = dataPaths[cfg.DataPath].newServer(transport.ServerConfig{
		Handler:          p.director.Handler(),
		Interceptors:     p.interceptors(),
		UnaryInterceptor: p.refuseForbiddenUnary,
		MaxMessage:       cfg.MaxMessageBytes,
		Budget:           p.memory,
		Lost:             p.losses.Of(""),
		// Clients may ping often: the socket is local.
		Pings: keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true},
		// A client on another machine may disappear without closing its connection.
		PingAfter: 2 * time.Hour,
	})
	if !p.shows && !strings.HasPrefix(healthgrpc.Health_ServiceDesc.ServiceName, a.Profile.Versions[0].Package+".") { // otherwise calls for health go to the backends
		healthgrpc.RegisterHealthServer(p.server, &telemetry.HealthService{Of: p})
	}
	p.metrics.Registry.MustRegister(NewGauges(p, p.wrong(o.Finder, a)))
	p.admin = admin.New(p.served(), func(mux *http.ServeMux) { p.metrics.ServeMonitoring(mux, p) }, p.record.ServeEvents, p.changes.Serve)
	return p, nil
}

// wrong returns what counts what is wrong, or nil for another API than CRI.
func (p *Proxy) wrong(finder *why.Look, a API) *telemetry.Wrong {
	if finder == nil || p.shows || !IsCRI(a.Profile) {
		return nil
	}
	return p.record.NewWrong(finder, p.names())
}

// tracer returns the tracer for the director. What only observes a call is here, and nowhere in the way of the call.
func (p *Proxy) tracer() director.Tracer {
	all := []director.Tracer{&p.spans, p.metrics} // spans first: the others see the trace context that it sends on
	if p.drift != nil {
		all = append(all, p.drift)
	}
	if t := p.record.Tracer(recordedPeer); t != nil {
		all = append(all, t)
	}
	return telemetry.Tracers{Each: all, Errors: &p.errors}
}

// Close releases what New and Open made, if Run is not called. It works on a proxy that New has only half built.
func (p *Proxy) Close() {
	defer p.unlock()
	p.predecessor.close()
	closeAll(p.sockets())
	if p.admin != nil {
		p.admin.Close()
	}
	if p.server != nil {
		p.server.Stop() // a server has goroutines from the beginning
	}
	if p.hooks != nil {
		p.hooks.Close()
	}
	p.now.Load().discard(nil)
}

// backends returns the runtimes of the current configuration, the primary first. The caller must not change the result.
func (p *Proxy) backends() []*stack { return p.now.Load().backends }

// start runs a backend, if it is not running: its connection, the questions what it is, and, if no earlier stack to the same
// runtime has begun it, the [backend.Backend], which runs until all calls have ended. p.reloading is held.
func (p *Proxy) start(b *stack) {
	if b.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(p.running)
	b.stop = cancel
	p.goKeep(ctx, "keeping a connection to "+b.String(), func() { _ = b.conn.Run(ctx) })
	p.goKeep(ctx, "asking what it is: "+b.String(), func() { b.askWhenConnected(ctx) })
	p.goDo("looking after "+b.String(), func() {
		if err := b.backend.Run(p.running); err != nil {
			klog.ErrorS(err, "The cache of a backend could not be written", "backend", b)
		}
	})
}

// Assumptions returns the Assumptions of the director.
func (p *Proxy) Assumptions() []string { return p.director.Assumptions() }

// Admin answers what the admin socket answers, also if there is no such socket. Whoever gets it may ask everything: it checks
// no rights.
func (p *Proxy) Admin() http.Handler { return p.admin.Handler() }

// Recording returns the flight recorder, which records nothing more once Run has returned.
func (p *Proxy) Recording() *telemetry.Recording { return p.record }
