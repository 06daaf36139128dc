package model

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/memory"
	"github.com/criproxy/criproxy/internal/proxy/cri"
	"github.com/criproxy/criproxy/internal/proxy/daemon"
)

const pkg = "runtime.v1"

// config is the configuration of a proxy. It is immutable.
type config struct {
	backends        []backend // the primary first
	budget, silence time.Duration
	stateDir        string
	native          bool      // clients use the runtimes' own ids
	boot            string    // id of the machine's boot
	since           time.Time // when the proxy began to serve clients with this config
	process         int
}

// backend is a runtime in a config.
type backend struct {
	name    string
	runtime *runtime
	address int
	knows   *knowledge // what clients have seen under this name
	stack   *stack
}

func (b *backend) key() string { return director.Backend{Name: b.name}.String() }

func (c *config) clone() *config {
	d := *c
	d.backends = slices.Clone(c.backends)
	return &d
}

// knowledge is what clients have seen of a backend, for as long as criproxy must remember it.
// world.mu guards it.
type knowledge struct {
	since time.Time               // when it begins; every list has the items from then
	blank time.Time               // when earlier memory was lost; zero: never
	shown [2]map[string][]telling // :: id → versions in lists
	asked map[string][]telling    // :: id → versions in statuses
}

// telling says that a client has seen a version of an item.
type telling struct {
	version int
	at      time.Time
	process int
}

func newKnowledge() *knowledge {
	return &knowledge{since: time.Now(), shown: [2]map[string][]telling{{}, {}}, asked: map[string][]telling{}}
}

// before returns the part of k that survives a crash: what clients got before t.
func (k *knowledge) before(t time.Time) *knowledge {
	left := &knowledge{since: k.since, blank: k.blank, shown: [2]map[string][]telling{{}, {}}, asked: map[string][]telling{}}
	if k.since.After(t) {
		left.since = time.Now()
	}
	for i := range k.shown {
		for id, all := range k.shown[i] {
			for _, one := range all {
				if one.at.Before(t) {
					left.shown[i][id] = append(left.shown[i][id], one)
				}
			}
		}
	}
	return left
}

// latest returns the latest version that a client has seen before a time, or -1 if there is none.
func latest(all []telling, before time.Time) int {
	v := -1
	for _, one := range all {
		if !one.at.After(before) {
			v = max(v, one.version)
		}
	}
	return v
}

// stack holds the layers of a connection to one runtime, as cmd/criproxy builds them.
type stack struct {
	key    string
	wire   *wire
	known  *memory.Conn
	top    grpc.ClientConnInterface
	stop   context.CancelFunc
	states []reported // world.mu guards it
}

// reported is a state with which Watch was called.
type reported struct {
	memory.State
	at time.Time
}

// proxy is one process.
type proxy struct {
	world    *world
	number   int
	heir     bool // it got a Note of each call that the previous process completed later
	director *director.Director
	memories *daemon.Memories
	ctx      context.Context // ends with the process
	kill     context.CancelFunc
	group    sync.WaitGroup

	// world.mu guards the fields below.
	cfg *config
}

// newProxy starts a process with cfg. handed is the memory of the previous process.
func newProxy(w *world, cfg *config, handed map[string][]byte) *proxy {
	w.mu.Lock()
	w.starts = append(w.starts, time.Now())
	p := &proxy{world: w, number: len(w.starts), memories: daemon.NewMemories(handed), heir: handed != nil}
	w.mu.Unlock()
	p.ctx, p.kill = context.WithCancel(w.ctx)
	cfg.process, cfg.since = p.number, time.Now()
	d, next := p.build(cfg, nil)
	var err error
	p.director, err = director.New(d)
	w.must(err)
	p.memories.Keep(cfg.places(), cfg.folder(), next)
	p.cfg = cfg
	for _, b := range cfg.backends {
		p.start(b.stack)
	}
	return p
}

func (c *config) folder() daemon.Folder { return daemon.Folder{Path: c.stateDir, Boot: c.boot} }

func (c *config) places() []daemon.Place {
	var all []daemon.Place
	for _, b := range c.backends {
		all = append(all, daemon.Place{Name: b.key(), Address: fmt.Sprint(b.runtime.name, "@", b.address)})
	}
	return all
}

// build makes the stacks of cfg, and their memory. It keeps the stacks of old that have not changed.
func (p *proxy) build(cfg *config, old *config) (director.Config, map[string]*memory.Memory) {
	next := p.memories.Next(cfg.places(), cfg.folder())
	d := p.world.api
	d.NativeNames = cfg.native
	for i := range cfg.backends {
		b := &cfg.backends[i]
		key := fmt.Sprint(b.name, b.runtime.name, b.address, i == 0, cfg.budget, cfg.silence, cfg.stateDir)
		b.stack = nil
		if old != nil {
			for _, o := range old.backends {
				if o.stack.key == key {
					b.stack = o.stack
				}
			}
		}
		if b.stack == nil {
			b.stack = p.newStack(cfg, i, d, key, next[b.key()])
		}
		d.Backends = append(d.Backends, director.Backend{Name: b.name, Conn: b.stack.top, Known: b.stack.known})
	}
	return d, next
}

func (p *proxy) newStack(cfg *config, i int, d director.Config, key string, mem *memory.Memory) *stack {
	b := &cfg.backends[i]
	s := &stack{key: key, wire: &wire{runtime: b.runtime, address: b.address, process: p.number}}
	bridge, err := memory.Bridge(s.wire, d.Profile.Known.Lists, d.Schema, pkg)
	p.world.must(err)
	s.known, err = memory.New(memory.Config{
		Name: b.key(), Conn: bridge, Schema: d.Schema, Package: pkg, Spec: d.Profile.Known,
		Equivalents: cri.ImageNames,
		Memory:      mem, Primary: i == 0,
		Absent: s.wire.absent,
		Budget: cfg.budget, Silence: cfg.silence,
		Alive: "/" + pkg + ".RuntimeService/Version",
		Watch: func(state memory.State) {
			p.world.mu.Lock()
			s.states = append(s.states, reported{state, time.Now()})
			p.world.trace("process %d: backend %s is %s: %v", p.number, b.key(), state.Condition, state.Err)
			slowWatch := p.world.slowWatch
			p.world.mu.Unlock()
			time.Sleep(slowWatch)
		},
	})
	p.world.must(err)
	s.top = s.known
	return s
}

// absent reports whether no process listens at the address.
func (w *wire) absent(context.Context) bool {
	w.runtime.world.mu.Lock()
	defer w.runtime.world.mu.Unlock()
	p := w.runtime.now()
	return p.down || p.address != w.address
}

func (p *proxy) start(s *stack) {
	if s.stop != nil {
		return
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(p.ctx)
	p.group.Go(func() { _ = s.known.Run(ctx) }) // fails if the file is not writable
}

// reload makes the process use cfg.
func (p *proxy) reload(cfg *config) {
	w := p.world
	old := p.cfg
	cfg.process, cfg.since = p.number, time.Now()
	d, next := p.build(cfg, old)
	w.must(p.director.Reload(d))
	p.memories.Keep(cfg.places(), cfg.folder(), next)
	w.mu.Lock()
	p.cfg = cfg
	w.mu.Unlock()
	var gone []*stack
	for _, o := range old.backends {
		if !slices.ContainsFunc(cfg.backends, func(b backend) bool { return b.stack == o.stack }) {
			o.stack.known.Retire()
			w.mu.Lock()
			o.stack.wire.retired = true
			w.mu.Unlock()
			gone = append(gone, o.stack)
		}
	}
	for _, b := range cfg.backends {
		p.start(b.stack)
	}
	before := w.epoch()
	p.group.Go(func() {
		select {
		case <-before:
		case <-p.ctx.Done():
		}
		for _, s := range gone {
			s.stop()
		}
	})
}

// crash ends the process like a crash; end ends it in an orderly way.
func (p *proxy) crash() {
	p.memories.Release()
	p.end()
}

func (p *proxy) end() {
	p.kill()
	p.group.Wait()
}
