package hook

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/recovery"
	"github.com/criproxy/criproxy/internal/suggest"
)

// Config is what [Plugins] are made of.
type Config struct {
	// Spec says what plugins are asked, Schema has the methods of the calls and Hooks
	// those of the plugins.
	Spec          *Spec
	Schema, Hooks *codec.Schema

	// Folder has a file for each plugin. It may be missing for now.
	Folder string

	// Skip is a label, key and value. Plugins are not asked about objects that have it. Empty
	// means that there is no such label.
	Skip [2]string

	// MaxMessage bounds, in bytes, messages to plugins, their answers, and the requests that
	// plugins have changed. Zero means [director.DefaultMaxMessage].
	MaxMessage int

	// Lookup finds out about an object whose making the package did not see. conn takes the
	// calls of Schema. For an id that does not exist it returns NotFound.
	Lookup func(ctx context.Context, conn grpc.ClientConnInterface, kind, id string) (*Found, error)

	// OwnID returns the id that an object has at its runtime, for the one that clients know it by. It is what
	// plugins find in the object's message, because cgroups are named after it. Optional: both are the same.
	OwnID func(id string) string

	// List lists the ids of all objects of a kind that there are.
	List func(ctx context.Context, conn grpc.ClientConnInterface, kind string) ([]string, error)

	// Servers is a file that keeps which pods serve the plugins over a restart of this process,
	// so that a plugin never refuses the pod that serves it. Empty means that this is not kept.
	Servers string

	// Watch is called with each event; ctx is that of the call, if there is one. It must return
	// at once. Optional.
	Watch func(ctx context.Context, e Event)

	// Panicked is called for each panic in Run, which goes on a second later. Optional.
	Panicked recovery.Hook
}

// Found is an object that was looked up.
type Found struct {
	ID      string        // whole, where only its beginning was asked for
	Parent  string        // id of what it lies in
	Message proto.Message // describes it to plugins, as its kind has it; the package fills in what it inherits
}

// Plugins asks the plugins of a folder. It is safe for concurrent use.
type Plugins struct {
	cfg     Config
	program *program
	next    atomic.Pointer[grpc.ClientConnInterface] // what Around was given
	table   atomic.Pointer[table]
	memory  *memory
	servers *servers
	awake   chan struct{} // asks Run to look up the objects that there are

	conflicts atomic.Int64

	mu          sync.Mutex // guards what follows
	folder      folder
	connections map[string]*connection // :: address
	stats       map[string]*stats      // :: name of the plugin
	reported    map[string]bool        // the troubles and warnings that were reported, each once
}

// New returns the plugins of a folder, as it is now. The error names every mistake in
// the spec; a mistake in the folder is not one, but an [Event].
func New(cfg Config) (*Plugins, error) {
	prog, err := compile(cfg.Spec, cfg.Schema, cfg.Hooks)
	if err != nil {
		return nil, err
	}
	cfg.MaxMessage = cmp.Or(cfg.MaxMessage, director.DefaultMaxMessage)
	if cfg.Folder == "" {
		return nil, errors.New("there is no folder of plugins")
	}
	p := &Plugins{
		cfg: cfg, program: prog,
		memory:      newMemory(),
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

// Around returns the connection that stands around next. It is for [director.Config].
func (p *Plugins) Around(next grpc.ClientConnInterface) grpc.ClientConnInterface {
	p.next.Store(&next)
	return &around{next, p}
}

// Run follows the folder, and looks up objects that were made before, until ctx
// ends. It returns when all it started has ended.
func (p *Plugins) Run(ctx context.Context) error {
	if p.next.Load() == nil {
		return errors.New("nothing to run: Around has not been called")
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.cfg.Panicked.Keep(ctx, "following the folder of plugins", func() { p.follow(ctx) }) })
	wg.Go(func() {
		p.cfg.Panicked.Keep(ctx, "looking up pods and containers for plugins", func() { p.learn(ctx) })
	})
	wg.Wait()
	p.Close()
	return nil
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

// reportOnce reports trouble that has not been reported yet.
func (p *Plugins) reportOnce(e Trouble) {
	p.mu.Lock()
	done := p.reported[e.What]
	p.reported[e.What] = true
	p.mu.Unlock()
	if !done {
		p.report(context.Background(), e)
	}
}

// reload reads the folder and lets new calls see what it says.
func (p *Plugins) reload(now time.Time) (again bool) {
	defer p.identifyAll()
	p.mu.Lock()
	defer p.mu.Unlock()
	report := func(e Event) { p.report(context.Background(), e) }
	if p.folder.read(now, report) {
		p.apply(report)
	}
	return p.folder.waiting()
}

// apply makes the table of what the folder says.
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
		made, err := p.plugin(name, f)
		if err != nil { // a socket path that gRPC does not like
			report(Broken{Plugin: name, Err: err})
			continue
		}
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
		p.memory.sleep()
	case wasAsleep:
		p.memory.wake()
		select {
		case p.awake <- struct{}{}:
		default:
		}
	}
}

func (p *Plugins) plugin(name string, f *found) (*plugin, error) {
	made := &plugin{name: name, file: *f.file, points: map[*point]bool{}, warnings: f.warnings}
	for _, hook := range f.file.Hooks {
		if pt := p.program.points[hook]; pt != nil {
			made.points[pt] = true
		} else if !slices.Contains(p.cfg.Spec.Elsewhere, hook) {
			made.unknown = append(made.unknown, hook)
		}
	}
	if made.conn = p.connections[f.file.Endpoint]; made.conn == nil {
		c, err := newConnection(f.file.Endpoint, p.cfg.MaxMessage, p.identifyAll)
		if err != nil {
			return nil, err
		}
		p.connections[f.file.Endpoint] = c
		made.conn = c
	}
	if made.stats = p.stats[name]; made.stats == nil {
		made.stats = &stats{points: map[string]*pointStats{}}
		p.stats[name] = made.stats
	}
	return made, nil
}

// once returns the warnings about a plugin that were not reported yet.
func (p *Plugins) once(name string, made *plugin) []string {
	var fresh []string
	all := made.warnings
	for _, hook := range made.unknown {
		all = append(all, fmt.Sprintf("runtime-hooks: there is no point %q; it will never be asked there%s", hook, suggest.Nearest(hook, sortedKeys(p.program.points))))
	}
	for _, warning := range all {
		if key := name + ": " + warning; !p.reported[key] {
			p.reported[key] = true
			fresh = append(fresh, warning)
		}
	}
	return fresh
}
