package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/criproxy/criproxy/director"
	settings "github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server"
)

// config is the configuration of a proxy. It is immutable.
type config struct {
	backends        []entry // the primary first
	budget, silence time.Duration
	stateDir        string
	native          bool      // clients use the runtimes' own ids
	boot            string    // id of the machine's boot
	since           time.Time // when the proxy began to serve clients with this config
	process         int
}

// entry is a runtime in a config.
type entry struct {
	name    string
	runtime *runtime
	address int
	knows   *knowledge // what clients have seen under this name
}

func (b *entry) key() string { return director.Backend{Name: b.name}.String() }

func (c *config) clone() *config {
	d := *c
	d.backends = slices.Clone(c.backends)
	return &d
}

// settings returns the configuration as criproxy reads it.
func (c *config) settings(w *world) *settings.Config {
	s := &settings.Config{
		Listen: "/run/criproxy.sock", Admin: "none", Hooks: "none", StateDir: c.stateDir, FlightRecorder: 64 << 10,
		ListBudget: c.budget, GoneAfter: c.silence, IDs: settings.PrefixIDs,
	}
	if c.native {
		s.IDs = settings.NativeIDs
	}
	for _, b := range c.backends {
		s.Backends = append(s.Backends, settings.Backend{Name: b.name, Address: fmt.Sprintf("/run/%s/%d", b.runtime.name, b.address)})
	}
	w.must(s.Check())
	return s
}

// stacks returns a text for each backend that needs a connection of its own.
func (c *config) stacks() map[string]entry {
	all := map[string]entry{}
	for i, b := range c.backends {
		all[fmt.Sprint(b.name, b.runtime.name, b.address, i == 0, c.budget, c.silence)] = b
	}
	return all
}

// knowledge is what clients have seen of a backend, for as long as criproxy must remember it.
// world.mu guards it.
type knowledge struct {
	since time.Time               // when it begins; every list has the items from then
	blank time.Time               // when an earlier cache was lost; zero: never
	shown [2]map[string][]telling // :: id → versions in lists
	asked map[string][]telling    // :: id → versions in statuses
	made  map[string][]telling    // :: id → versions that confirmed calls have made, as far as a rule of the profile says so
}

// telling says that a client has seen a version of an item.
type telling struct {
	version int
	at      time.Time
	process int
	written int // the version in the annotations of the item
}

func newKnowledge() *knowledge {
	return &knowledge{since: time.Now(), shown: [2]map[string][]telling{{}, {}}, asked: map[string][]telling{}, made: map[string][]telling{}}
}

// before returns the part of k that survives a crash: what clients got before t.
func (k *knowledge) before(t time.Time) *knowledge {
	left := newKnowledge()
	left.since, left.blank = k.since, k.blank
	if k.since.After(t) {
		left.since = time.Now()
	}
	survive := func(to, from map[string][]telling) {
		for id, all := range from {
			to[id] = slices.DeleteFunc(slices.Clone(all), func(one telling) bool { return !one.at.Before(t) })
		}
	}
	survive(left.shown[sandboxes], k.shown[sandboxes])
	survive(left.shown[containers], k.shown[containers])
	survive(left.made, k.made)
	return left
}

// proxy is one process.
type proxy struct {
	world     *world
	number    int
	successor bool      // it got a Note of each call that the previous process completed later
	keeps     bool      // its files, and those of the process before it, are where they belong
	began     time.Time // or the process that has handed over to it
	proxy     *server.Proxy
	ctx       context.Context // ends with the process
	kill      context.CancelFunc
	stop      context.CancelFunc // asks the process to end
	links     []*link            // of clients; front.mu guards it

	// world.mu guards the fields below.
	cfg     *config
	abort   func(caches net.Conn) error // a successor that does not serve in the end; nil: it would
	crashed bool
	ok      map[string]int // :: method → how many calls clients know to have ended with OK
}

// newProxy starts a process with cfg, and returns when clients can connect. The previous process hands its caches over at
// a connection, if there is one.
func newProxy(w *world, cfg *config, caches net.Conn) (*proxy, error) {
	p := &proxy{world: w, successor: caches != nil, ok: map[string]int{}}
	var predecessor *server.Predecessor
	if caches != nil {
		var err error
		if predecessor, err = server.ReadPredecessor(caches); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	w.starts = append(w.starts, time.Now())
	p.number, w.processes = len(w.starts), append(w.processes, p)
	p.keeps, w.keeps = w.keeps && cfg.stateDir == w.dir, cfg.stateDir == w.dir
	p.began = time.Now()
	if p.successor {
		before := w.processes[p.number-2]
		p.keeps, p.began = p.keeps && before.keeps, before.began
	}
	w.mu.Unlock()
	p.ctx, p.kill = context.WithCancel(context.Background())
	cfg.process, cfg.since = p.number, time.Now()
	p.cfg = cfg
	var err error
	p.proxy, err = server.New(cfg.settings(w), server.Options{Predecessor: predecessor, Machine: server.Machine{
		Dial:    func(ctx context.Context, address string) (net.Conn, error) { return w.dial(ctx, p, address) },
		Succeed: func(_ context.Context, caches net.Conn) error { return p.succeed(caches) },
		Boot:    cfg.boot,
	}})
	if err != nil {
		return nil, err
	}
	p.proxy.UseListener(w.front.listen(p))
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	ended := make(chan struct{})
	w.served.Go(func() {
		defer p.kill()
		defer close(ended)
		w.must(p.proxy.Run(ctx))
	})
	<-p.proxy.Serving()
	return p, nil
}

// aborts is a successor that ends before it serves: before it has read what p knows, when it has, or when it is built and
// takes the notes of p.
func (p *proxy) aborts(caches net.Conn, far int, rnd *rand.Rand) error {
	w := p.world
	defer caches.Close() // the kernel does that
	if far == 0 {
		w.waits(rnd)
		return nil
	}
	predecessor, err := server.ReadPredecessor(caches)
	if err != nil || far == 1 {
		return err
	}
	successor, err := server.New(p.cfg.clone().settings(w), server.Options{Predecessor: predecessor, Machine: server.Machine{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return w.dial(ctx, &proxy{world: w, number: -1}, address)
		},
		Boot: p.cfg.boot,
	}})
	if err != nil {
		return err
	}
	defer successor.Close()
	successor.UseListener(w.front.listen(p))
	w.waits(rnd)
	return nil
}

// succeed starts the process that takes over.
func (p *proxy) succeed(caches net.Conn) error {
	if p.abort != nil {
		return p.abort(caches)
	}
	successor, err := newProxy(p.world, p.cfg.clone(), caches)
	if err == nil {
		p.world.is(successor)
	}
	return err
}

// reload makes the process use cfg.
func (p *proxy) reload(cfg *config) {
	w := p.world
	old := p.cfg
	cfg.process, cfg.since = p.number, time.Now()
	w.mu.Lock()
	p.cfg = cfg
	now := cfg.stacks()
	for key, b := range old.stacks() {
		if _, stays := now[key]; stays {
			continue
		}
		for _, l := range b.runtime.links {
			if l.process == p.number && l.wire.address == b.address {
				l.wire.retired = true
			}
		}
	}
	w.mu.Unlock()
	_, err := p.proxy.Reload(cfg.settings(w))
	w.must(err)
}

// crash ends the process like a crash: nothing that it does from now on has an effect.
func (p *proxy) crash() {
	w := p.world
	w.mu.Lock()
	p.crashed, w.crashed = true, time.Now()
	for _, r := range w.runtimes {
		for _, l := range r.links {
			if l.process == p.number {
				l.breakNow()
			}
		}
	}
	w.mu.Unlock()
	w.front.mu.Lock()
	for _, l := range p.links {
		l.breakNow()
	}
	w.front.mu.Unlock()
	p.kill()
	p.stop()
}

// end ends the process in an orderly way, and returns when it has ended.
func (p *proxy) end() {
	p.stop()
	<-p.ctx.Done()
}
