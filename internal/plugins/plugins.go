package plugins

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/base/suggest"
	"github.com/criproxy/criproxy/internal/transport"
)

// Config configures [Plugins].
type Config struct {
	// Spec says when to ask plugins, and what their answers change. Schema has the methods of
	// the calls, Hooks those of the plugins.
	Spec          *Spec
	Schema, Hooks *codec.Schema

	// Folder has a file for each plugin. It need not exist yet.
	Folder string

	// Skip is the key and value of a label. Plugins are not asked about objects with this label.
	// An empty key means that there is no such label.
	Skip [2]string

	// MaxMessage bounds, in bytes, messages to plugins, their answers, and the requests that
	// plugins have changed. Zero means [transport.DefaultMaxMessage].
	MaxMessage int

	// Lookup returns an object that was created before the package saw calls. conn takes the
	// calls of Schema. For an id that does not exist the error is NotFound. The message is that of the kind in the Spec.
	Lookup func(ctx context.Context, conn grpc.ClientConnInterface, kind, id string) (*Found, error)

	// OwnID returns the id that an object has at its runtime, given its front id. Plugins get that
	// id in the object's message, because cgroups are named after it. Nil means that both are the
	// same.
	OwnID func(id string) string

	// List returns the ids of all objects of a kind.
	List func(ctx context.Context, conn grpc.ClientConnInterface, kind string) ([]string, error)

	// Servers is the path of a file that remembers, over a restart of this process, which pods
	// serve the plugins, so that a plugin never refuses calls about its own pod. Empty means
	// that a restart forgets this.
	Servers string

	// Watch is called with each event; ctx is that of the call, if there is one. It must return
	// at once. Optional.
	Watch func(ctx context.Context, e Event)

	// Panicked is called for each panic in Run, which goes on a second later. Optional.
	Panicked recovery.Hook
}

// Found is an object that was looked up.
type Found struct {
	ID      string        // its full id
	Parent  string        // id of the object that it is in
	Message proto.Message // describes it to plugins; the package fills in the fields that it inherits
}

// Plugins asks the plugins of a folder. It is safe for concurrent use.
type Plugins struct {
	cfg     Config
	program *program
	next    atomic.Pointer[grpc.ClientConnInterface] // the argument of Around
	table   atomic.Pointer[table]
	facts   *facts
	servers *servers
	awake   chan struct{} // asks Run to look up all objects

	conflicts atomic.Int64

	mu          sync.Mutex // guards the fields below
	folder      folder
	connections map[string]*connection // :: address
	stats       map[string]*stats      // :: name of the plugin
	reported    map[string]bool        // warnings that have been reported
}

// New returns the plugins of a folder. The error names every mistake in the spec. A mistake in the
// folder is no error, but an [Event].
func New(cfg Config) (*Plugins, error) {
	prog, err := compile(cfg.Spec, cfg.Schema, cfg.Hooks)
	if err != nil {
		return nil, err
	}
	cfg.MaxMessage = cmp.Or(cfg.MaxMessage, transport.DefaultMaxMessage)
	p := &Plugins{
		cfg: cfg, program: prog,
		facts:       newFacts(),
		awake:       make(chan struct{}, 1),
		folder:      folder{path: filepath.Clean(cfg.Folder), files: map[string]*found{}},
		connections: map[string]*connection{},
		stats:       map[string]*stats{},
		reported:    map[string]bool{},
	}
	if p.servers, err = readServers(cfg.Servers); err != nil {
		p.report(context.Background(), Trouble{What: "criproxy has forgotten which pods serve the plugins; it may refuse calls about these pods until it has seen them again", Err: err})
	}
	p.table.Store(newTable(nil))
	p.reload(time.Now())
	return p, nil
}

// Around returns a connection that asks the plugins, and passes calls on to next. It is for the
// Around of a director.Config.
func (p *Plugins) Around(next grpc.ClientConnInterface) grpc.ClientConnInterface {
	p.next.Store(&next)
	return codec.Conn{Caller: &around{codec.CallerOf(next), p}}
}

// Run follows changes of the folder, and looks up objects that were created before, until ctx
// ends. It returns when all its goroutines have ended. Around must have been called, which says where to look them up.
func (p *Plugins) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { p.cfg.Panicked.Keep(ctx, "following the folder of plugins", func() { p.follow(ctx) }) })
	wg.Go(func() {
		p.cfg.Panicked.Keep(ctx, "looking up pods and containers for plugins", func() { p.learn(ctx) })
	})
	wg.Wait()
	p.Close()
}

// Close closes the connections to the plugins. It is for Plugins without [Plugins.Run].
func (p *Plugins) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, c := range p.connections {
		c.retire()
		delete(p.connections, address)
	}
}

func (p *Plugins) report(ctx context.Context, e Event) {
	if p.cfg.Watch != nil {
		p.cfg.Watch(ctx, e)
	}
}

// reload reads the folder; new calls ask the plugins that it has. again says that a file may still
// be written.
func (p *Plugins) reload(now time.Time) (again bool) {
	defer p.identifyAll()
	p.mu.Lock()
	defer p.mu.Unlock()
	report := func(e Event) { p.report(context.Background(), e) }
	if p.folder.read(now, report) {
		p.apply(report)
	}
	p.judge()
	return p.folder.waiting()
}

// apply makes a new table from the files of the folder.
func (p *Plugins) apply(report func(Event)) {
	was := map[string]*plugin{}
	for _, old := range p.table.Load().plugins {
		was[old.name] = old
	}
	var plugins []*plugin
	needed := map[string]bool{}
	for _, name := range sortedKeys(p.folder.files) {
		f := p.folder.files[name]
		if f.file == nil {
			continue
		}
		made := p.plugin(name, f)
		needed[f.file.Endpoint] = true
		plugins = append(plugins, made)
		if old := was[name]; old == nil || !reflect.DeepEqual(old.file, made.file) {
			report(Loaded{Plugin: name, File: made.file, Replaced: old != nil, Warnings: p.once(name, made)})
		}
	}
	wasAsleep := len(p.table.Load().plugins) == 0
	p.table.Store(newTable(plugins))
	for address, c := range p.connections {
		if !needed[address] {
			c.retire()
			delete(p.connections, address)
		}
	}
	switch {
	case len(plugins) == 0:
		p.facts.sleep()
	case wasAsleep:
		p.facts.wake()
		select {
		case p.awake <- struct{}{}:
		default:
		}
	}
}

func (p *Plugins) plugin(name string, f *found) *plugin {
	made := &plugin{name: name, file: *f.file, points: map[*point]bool{}, warnings: f.warnings}
	for _, hook := range f.file.Hooks {
		if pt := p.program.points[hook]; pt != nil {
			made.points[pt] = true
		} else if !slices.Contains(p.cfg.Spec.Elsewhere, hook) {
			made.unknown = append(made.unknown, hook)
		}
	}
	if made.conn = p.connections[f.file.Endpoint]; made.conn == nil {
		made.conn = newConnection(f.file.Endpoint, p.cfg.MaxMessage, p.identifyAll, p.changed)
		p.connections[f.file.Endpoint] = made.conn
	}
	if made.stats = p.stats[name]; made.stats == nil {
		made.stats = &stats{points: map[string]*pointStats{}}
		p.stats[name] = made.stats
	}
	return made
}

// once returns the warnings about a plugin that have not been reported yet.
func (p *Plugins) once(name string, made *plugin) []string {
	var fresh []string
	all := made.warnings
	for _, hook := range made.unknown {
		all = append(all, fmt.Sprintf("runtime-hooks: there is no point %q; criproxy will never ask the plugin there%s", hook, suggest.Nearest(hook, sortedKeys(p.program.points))))
	}
	for _, warning := range all {
		if key := name + ": " + warning; !p.reported[key] {
			p.reported[key] = true
			fresh = append(fresh, warning)
		}
	}
	return fresh
}
