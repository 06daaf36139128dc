// Package daemon assembles a proxy: New builds one of a configuration, Open opens its sockets,
// Run serves them until the end, Reload applies another configuration, HandOver starts the
// process that takes over, and State says how it is doing.
//
// The files open.go, run.go, reload.go and handover.go have the parts of that life, ending.go its
// end; backends.go makes the connections to the runtimes, and report.go says how all of it is doing.
// interceptors.go lists what stands around each call.
package daemon

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/access"
	"github.com/criproxy/criproxy/internal/admin"
	"github.com/criproxy/criproxy/internal/api"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/drift"
	"github.com/criproxy/criproxy/internal/hook"
	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/limits"
	"github.com/criproxy/criproxy/internal/listen"
	"github.com/criproxy/criproxy/internal/memories"
	"github.com/criproxy/criproxy/internal/recovery"
	"github.com/criproxy/criproxy/internal/state"
	"github.com/criproxy/criproxy/internal/telemetry"
	"github.com/criproxy/criproxy/internal/transport"
)

// A Proxy is a director with its backends and its server. New makes one.
type Proxy struct {
	director     *director.Director
	server       *transport.Server
	admin        *admin.Server
	hooks        *hook.Plugins // nil if there are to be none
	epochs       *epochs
	record       *telemetry.Recording
	drift        *drift.Watch
	memory       *limits.Memory // for messages
	memories     *memories.Memories
	records      records
	legacy       *Legacy
	shows        bool // it changes nothing: see Options.Shown
	errors       telemetry.LastErrors
	metrics      *telemetry.Metrics
	spans        telemetry.Spans
	began        *config.Config // with what it was built
	draining     atomic.Bool    // no new calls are taken
	disconnected atomic.Bool    // no calls are left: only its own goroutines are
	now          atomic.Pointer[assembly]
	config       atomic.Pointer[state.Config] // how that is doing
	filter       access.VerboseFilter

	shown atomic.Pointer[[]*listen.Socket] // the sockets, for readers

	handedOver chan struct{} // closed when another process serves
	failed     chan error    // a socket could not be served; has room for one
	failing    chan struct{} // closed when that ends the process
	parts      parts         // what the end waits for
	serving    chan struct{} // closed when clients can connect
	stderr     io.Writer     // of the process that takes over; nil discards what it writes

	reloading sync.Mutex       // one reload or handover at a time; guards what follows
	running   context.Context  // of the backends; nil until run
	group     sync.WaitGroup   // what run waits for
	sockets   []*listen.Socket // the main one first; see show
	stopped   bool             // nothing is to be reloaded or handed over any more
	successor *exec.Cmd        // serves when handedOver is closed
	leaveHeir func()           // ends the notes to the successor; nil if there is none
}

// An assembly is a configuration and what was made of it. It is immutable.
type assembly struct {
	cfg      *config.Config
	backends []*backend                   // the primary first
	memories map[string]*lastknown.Memory // :: name; empty: nothing is remembered of them
}

// Options are what a proxy needs besides its configuration. The zero value is right for a
// process that takes over from none.
type Options struct {
	File   string    // where the configuration was read; empty if it was not in a file
	Legacy *Legacy   // of the process that hands over; nil if none does
	Stderr io.Writer // of a process that takes over; nil discards what it writes

	// Shown makes the proxy pass everything on to its one backend as it is, and says what the
	// messages that it records mean. Nil is a proxy of the API of its configuration.
	Shown *api.API
}

// New builds the proxy of a configuration that Check has completed. It opens no sockets and
// starts nothing. The caller calls Run, or Close if it does not come to that.
func New(cfg *config.Config, o Options) (*Proxy, error) {
	p := &Proxy{
		began: cfg, stderr: o.Stderr, memories: memories.New(o.Legacy.memories()), legacy: o.Legacy, metrics: telemetry.NewMetrics(), epochs: newEpochs(),
		serving: make(chan struct{}), handedOver: make(chan struct{}), failed: make(chan error, 1), failing: make(chan struct{}),
	}
	p.config.Store(&state.Config{File: o.File, Loaded: time.Now()})
	p.show()
	makeStateDir(cfg)
	recovery.Notify(logPanic)
	var a api.API
	var err error
	if p.shows = o.Shown != nil; p.shows {
		a = *o.Shown
	} else if a, err = api.Read(cfg); err != nil {
		return nil, err
	} else if err = checkAccess(cfg, a); err != nil {
		return nil, err
	}
	if p.record, err = telemetry.NewRecording(cfg, a.Config, a.Own); err != nil {
		return nil, err
	}
	p.now.Store(&assembly{cfg: cfg})
	p.restoreEvidence() // before anything is recorded
	redactor, err := access.NewRedactor(cfg, a.Profile, a.Schema)
	if err != nil {
		return nil, err
	}
	p.filter.Set(redactor)
	p.memory = limits.New(cfg, a.Profile, p.record.Schema)
	if !p.shows {
		if p.drift, err = drift.New(driftConfig(cfg, a.Config)); err != nil {
			return nil, err
		}
	}
	s, d, err := p.build(cfg, a, nil)
	if err != nil {
		return nil, err
	}
	p.now.Store(s)
	p.memories.Keep(places(cfg), folder(cfg), s.memories)
	p.metrics.Know(d)
	if p.hooks, err = newHooks(cfg); err != nil {
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
	p.epochs.endless = p.director.Endless
	p.server = transport.NewServer(transport.ServerConfig{
		Handler:          p.director.Handler(),
		Interceptors:     p.interceptors(),
		UnaryInterceptor: access.InterceptUnary,
		MaxMessage:       cfg.MaxMessageBytes,
		Budget:           p.memory,
		// Whatever keepalive a client likes: the socket is local.
		Pings: keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true},
		// A client of another machine may be gone without a word.
		PingAfter: 2 * time.Hour,
	})
	if !p.shows && !strings.HasPrefix(healthgrpc.Health_ServiceDesc.ServiceName, a.Profile.Versions[0].Package+".") { // or it is what the backends are asked for
		healthgrpc.RegisterHealthServer(p.server, &telemetry.HealthService{Of: p})
	}
	p.metrics.Registry.MustRegister(telemetry.NewGauges(p))
	p.admin = admin.New(p, func(mux *http.ServeMux) { p.metrics.ServeMonitoring(mux, p) }, p.record.ServeEvents)
	return p, nil
}

// tracer returns the tracer for the director.
func (p *Proxy) tracer() director.Tracer {
	all := telemetry.Tracers{&p.spans, p.metrics, &p.errors} // the first says what is sent on
	if p.drift != nil {
		all = append(all, p.drift)
	}
	if t := p.record.Tracer(); t != nil {
		all = append(all, t)
	}
	return all
}

// build makes the backends of cfg, and the director's configuration. It keeps the backends of
// old that need no change.
func (p *Proxy) build(cfg *config.Config, a api.API, old *assembly) (*assembly, director.Config, error) {
	s := &assembly{cfg: cfg}
	if p.shows {
		d := director.Config{Tracer: p.tracer(), Panicked: recovery.Report}
		b, err := newPlainBackend(cfg, d, p.memory)
		if err != nil {
			return nil, d, err
		}
		s.backends, d.Backends = []*backend{b}, []director.Backend{{Conn: b.top}}
		return s, d, nil
	}
	d := a.Config
	d.MaxMessage = cfg.MaxMessageBytes
	d.NativeNames = cfg.IDs == config.NativeIDs
	d.NewTo = cfg.NewPodsTo
	d.LookInterval = cfg.EventInterval
	d.Withheld = telemetry.LogWithheld()
	d.Mended = telemetry.LogMended()
	d.Mirrored = telemetry.LogMirrored
	d.Tracer = p.tracer()
	if remembers(cfg, d.Profile) {
		s.memories = p.memories.Next(places(cfg), folder(cfg))
	}
	for i := range cfg.Backends {
		b := old.reuse(cfg, i)
		if b == nil {
			var err error
			if b, err = newBackend(cfg, i, d, s.memories, &p.records, p.memory); err != nil {
				s.discard(old)
				return nil, d, err
			}
		}
		s.backends = append(s.backends, b)
		d.Backends = append(d.Backends, b.director(cfg.Backends[i]))
	}
	return s, d, nil
}

// reuse returns the backend of s that is equal to the i-th of cfg, nil if there is none.
func (s *assembly) reuse(cfg *config.Config, i int) *backend {
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

// discard closes the backends of s that were never run, except for those that old has as well.
func (s *assembly) discard(old *assembly) {
	for _, b := range s.backends {
		if old == nil || !slices.Contains(old.backends, b) {
			_ = b.conn.Close() // nothing has used it
		}
	}
}

// Close releases what New and Open made, if Run is not called.
func (p *Proxy) Close() {
	p.legacy.close()
	p.closeSockets()
	if p.admin != nil {
		p.admin.Close()
	}
	if p.server != nil {
		p.server.Stop() // it has goroutines from the beginning
	}
	if p.hooks != nil {
		p.hooks.Close()
	}
	p.now.Load().discard(nil)
}

// backends are the runtimes, the primary first.
func (p *Proxy) backends() []*backend { return p.now.Load().backends }

// start runs a backend, if it is not running.
func (p *Proxy) start(b *backend) {
	if b.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(p.running)
	b.stop = cancel
	p.group.Go(func() { b.run(ctx, &p.parts) })
}

// Assumptions are what the multiplexer assumes about the API, for people to know.
func (p *Proxy) Assumptions() []string { return p.director.Assumptions() }

// Recording returns the flight recorder.
func (p *Proxy) Recording() *telemetry.Recording { return p.record }
