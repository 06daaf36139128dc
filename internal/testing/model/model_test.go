package model

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

var (
	first    = flag.Uint64("model.seed", 0, "let TestSimulatedSeed run this `seed`")
	lasts    = flag.Duration("model.time", 0, "run it for this `time`, of the simulated clock")
	verbose  = flag.Bool("model.calls", false, "trace all calls")
	without  = flag.String("model.without", "", "leave out `faults`: their ids, separated by commas")
	logTo    = flag.String("model.log", "", "write all events to a `file`")
	runtimes = flag.Int("model.runtimes", 3, "simulate this `number` of runtimes, two to five")
)

func TestWhatKubeletGetsIsTrue(t *testing.T) {
	seeds := []uint64{2, 6, 7, 20, 49} // each has found a defect; TestSimulation draws others
	if testing.Short() {
		seeds = seeds[:2]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			if w := run(t, seed, 5*time.Minute, nil); w.wrong != "" {
				t.Errorf("seed %d: %s\n\n%s", seed, w.wrong, w.story())
			}
		})
	}
}

// run simulates a seed for a time, without some of its faults.
func run(t *testing.T, seed uint64, lasts time.Duration, without []string) *world {
	w := newWorld(t, seed)
	w.without = without
	if *logTo != "" {
		f, err := os.Create(*logTo)
		require.NoError(t, err)
		defer f.Close()
		w.log = f
	}
	testkit.OnSimulatedClock(t, func(t *testing.T) { w.simulate(lasts) })
	return w
}

// newWorld returns a world that has not begun.
func newWorld(t *testing.T, seed uint64) *world {
	w := &world{seed: seed, front: newFront(), met: map[situation]int{}, underWay: map[*call]struct{}{}, keeps: true}
	w.root = t.TempDir()
	w.dir = filepath.Join(w.root, "state")
	require.NoError(t, os.Mkdir(w.dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "file"), nil, 0o600))
	return w
}

// chance returns a source of random numbers for the n-th event of a kind. Events that are left out do not change the
// others.
func (w *world) chance(kind string, n int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, kind, n)
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// happens reports whether the n-th fault of a source happens. Each seed has only some kinds of faults.
func (w *world) happens(source string, n int, kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.happensNow(source, n, kind)
}

// happensNow is happens. mu is held.
func (w *world) happensNow(source string, n int, kind string) bool {
	id := fmt.Sprint(source, n)
	if w.chance(kind, -1).IntN(3) == 0 || slices.Contains(w.without, id) {
		return false
	}
	w.faults = append(w.faults, id)
	w.trace("fault %s: %s", id, kind)
	return true
}

// names are the names of the backends at the beginning.
var names = []string{"one", "two.test", "three.test", "four.test", "five.test"}

// begins makes the runtimes and starts the first process. The world lasts for a time, and ends with ends.
func (w *world) begins(lasts time.Duration) {
	w.began = time.Now()
	w.ctx, w.end = context.WithCancel(context.Background())
	time.AfterFunc(lasts, w.end) // and no deadline, which calls would pass on to runtimes
	begin := w.chance("begin", 0)
	cfg := &config{budget: backend.DefaultBudget, silence: backend.DefaultSilence, stateDir: w.dir, native: begin.IntN(3) == 0, boot: "the first"}
	for i, name := range names[:*runtimes] {
		r := newRuntime(w, string(rune('A'+i)), w.seed)
		w.runtimes = append(w.runtimes, r)
		cfg.backends = append(cfg.backends, entry{name: name, runtime: r})
	}
	if begin.IntN(3) == 0 { // the first weather hits runtimes before the cache knows them
		for _, r := range w.runtimes {
			w.turns(r, -1)
		}
	}
	if begin.IntN(6) == 0 {
		cfg.stateDir = filepath.Join(w.dir, "file", "none") // cannot be written
	}
	time.Sleep(time.Millisecond)
	for i := range cfg.backends { // runtimes that existed before
		cfg.backends[i].knows = newKnowledge()
	}
	klog.SetLogger(funcr.New(w.logs, funcr.Options{}))
	w.is(w.start(cfg))
}

// client returns the n-th client.
func (w *world) client(n int) *client {
	c := &client{world: w, rnd: w.chance("client", n), name: fmt.Sprint("client ", n), conn: transport.NewClient(transport.ClientConfig{Dial: w.front.dial, Began: began})}
	w.clients = append(w.clients, c.conn)
	return c
}

// ends ends all processes, clients and runtimes.
func (w *world) ends() {
	w.end()
	w.group.Wait()
	for _, p := range w.processes {
		p.stop()
	}
	for _, c := range w.clients {
		_ = c.Close()
	}
	for _, r := range w.runtimes {
		r.server.Stop()
	}
	w.served.Wait()
}

// simulate runs the whole world for a time.
func (w *world) simulate(lasts time.Duration) {
	w.begins(lasts)
	defer w.ends()
	for i, f := range []func(*client){(*client).kubelet, (*client).reader, (*client).reader, (*client).writer, (*client).prober, (*client).gauger, (*client).watch, (*client).sloth} {
		c := w.client(i)
		w.group.Go(func() { f(c) })
	}
	for _, r := range w.runtimes {
		w.group.Go(func() {
			for n := 0; w.sleep(w.within(r.name, n, 90*time.Second)); n++ {
				w.turns(r, n)
			}
		})
		w.group.Go(func() {
			for n := 0; w.sleep(w.within("item of "+r.name, n, 60*time.Second)); n++ {
				r.happens()
			}
		})
	}
	w.group.Go(func() {
		for n := 0; w.sleep(w.within("operator", n, 2*time.Minute)); n++ {
			w.random = w.chance("what the operator does", n)
			w.operates(n)
		}
	})
	w.group.Go(func() {
		for n := 0; w.sleep(w.within("client", n, 40*time.Second)); n++ {
			w.cutsClient(n)
		}
	})
	w.group.Go(func() {
		for w.sleep(time.Second) {
			w.mu.Lock()
			w.judgeConditions()
			w.judgeEvents()
			w.judgeMistakes()
			w.mu.Unlock()
		}
	})
	w.group.Go(func() {
		for w.sleep(10 * time.Second) {
			w.judgeHistory()
		}
	})
	<-w.ctx.Done()
	w.lived = time.Since(w.began)
	w.group.Wait()
	if w.wrong == "" {
		w.judgeRest()
	}
}

// within returns a random time for the n-th pause of a kind.
func (w *world) within(kind string, n int, most time.Duration) time.Duration {
	return time.Duration(w.chance("pause "+kind, n).Int64N(int64(most)))
}

// turns changes the weather of a runtime.
func (w *world) turns(r *runtime, n int) {
	next := forecast(w.chance("weather of "+r.name, n))
	if next.name != "clear" && !w.happens(r.name, n, next.name) {
		next = clear()
	}
	r.turns(next, r.address())
}

// cutsClient cuts a connection of a client.
func (w *world) cutsClient(n int) {
	if !w.happens("client", n, cutClient) {
		return
	}
	rnd := w.chance("cut of a client", n)
	w.mu.Lock()
	p := w.now
	w.cut = time.Now()
	w.mu.Unlock()
	if p == nil {
		return
	}
	w.front.mu.Lock()
	defer w.front.mu.Unlock()
	if len(p.links) > 0 {
		p.links[rnd.IntN(len(p.links))].breakNow()
	}
}

// operations are what an operator does, or what happens to the machine.
var operations = []string{"reload: budget", "reload: goneAfter", "reload: address", "reload: fewer or more runtimes", "reload: nothing", "reload: primary", "restart", "crash", "reboot", "handover", "handover", "reload: name", "reload: swapped names"}

// operates does what administrators do: it restarts processes, and changes the configuration.
func (w *world) operates(number int) {
	w.mu.Lock()
	old := w.now
	w.mu.Unlock()
	n := w.random.IntN(len(operations))
	if !w.aborts(old, number) {
		return
	}
	if !w.happens("operator", number, operations[n]) {
		return
	}
	w.operated(operations[n])
	cfg := old.cfg.clone()
	switch n {
	case 0, 1, 2, 3, 4, 5, 11, 12:
		w.reloads(old, cfg, n)
	case 6: // an orderly restart
		w.trace("process %d ends", old.number)
		w.is(nil)
		old.end()
		if !w.sleep(time.Duration(w.random.Int64N(int64(3 * time.Second)))) {
			return
		}
		if cfg.stateDir != w.dir {
			w.forgets(cfg)
		}
		w.is(w.start(cfg))
	case 7: // a crash: only the cache file survives
		w.trace("process %d crashes", old.number)
		w.is(nil)
		at := time.Now()
		w.crashes(old, cfg)
		if !w.sleep(time.Duration(w.random.Int64N(int64(3 * time.Second)))) {
			return
		}
		if cfg.stateDir == w.dir {
			w.mu.Lock()
			for i := range cfg.backends {
				cfg.backends[i].knows = cfg.backends[i].knows.before(at.Add(-2 * time.Second))
			}
			w.mu.Unlock()
		} else {
			w.forgets(cfg)
		}
		w.is(w.start(cfg))
	case 8: // a reboot, after which only some of the runtimes' items come back
		w.trace("process %d and all runtimes end with the machine", old.number)
		w.is(nil)
		w.crashes(old, cfg)
		for _, r := range w.runtimes {
			r.reboots()
		}
		cfg.boot = fmt.Sprint("after process ", old.number)
		w.forgets(cfg)
		for _, b := range cfg.backends {
			b.knows.blank = time.Now()
		}
		w.is(w.start(cfg))
		for _, r := range w.runtimes {
			w.group.Go(func() {
				w.sleep(time.Duration(r.name[0]-'A') * 3 * time.Second)
				r.turns(clear(), r.address())
			})
		}
	default:
		w.trace("process %d hands over", old.number)
		w.must(old.proxy.HandOver(w.ctx))
	}
	w.mu.Lock()
	now := w.now
	w.mu.Unlock()
	now.cfg.show(w)
}

// aborted are the handovers that end before the successor serves.
var aborted = []string{"handover, aborted before the successor has read", "handover, aborted when it has read", "handover, aborted when it is built"}

// aborts begins a handover, or does not. The successor ends before it serves, and the process goes on. It reports whether
// the world goes on.
func (w *world) aborts(p *proxy, number int) bool {
	rnd := w.chance("successor", number)
	far := rnd.IntN(2 * len(aborted))
	if far >= len(aborted) || !w.happens("successor", number, aborted[far]) {
		return true
	}
	w.operated(aborted[far])
	w.trace("process %d begins: %s", p.number, aborted[far])
	ended := errors.New("the successor has ended")
	abort := func(successor func(caches net.Conn) error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		p.abort = successor
	}
	from := time.Now()
	abort(func(caches net.Conn) error {
		defer w.trace("the successor ends")
		return cmp.Or(p.aborts(caches, far, rnd), ended)
	})
	if err := p.proxy.HandOver(w.ctx); !errors.Is(err, ended) {
		panic(err)
	}
	abort(nil)
	w.writing.Lock()
	w.held = append(w.held, held{from, time.Now()})
	w.writing.Unlock()
	return w.waits(rnd)
}

// waits waits for a while, or not at all. It reports whether the world goes on.
func (w *world) waits(rnd *rand.Rand) bool {
	if rnd.IntN(2) == 0 {
		return w.ctx.Err() == nil
	}
	return w.sleep(time.Duration(rnd.Int64N(int64(50 * time.Second))))
}

// reloads changes the configuration.
func (w *world) reloads(p *proxy, cfg *config, what int) {
	at := w.random.IntN(len(cfg.backends))
	b := &cfg.backends[at]
	switch what {
	case 0:
		cfg.budget = time.Second + time.Duration(w.random.Int64N(int64(2*time.Second)))
		w.trace("reload: budget %s", cfg.budget)
	case 1:
		cfg.silence = 5*time.Second + time.Duration(w.random.Int64N(int64(10*time.Second)))
		w.trace("reload: silence %s", cfg.silence)
	case 2: // a backend moves to another address
		b.address++
		w.trace("reload: backend %s is at address %d", b.name, b.address)
		there := clear()
		there.down = w.random.IntN(2) == 0 // not started yet
		b.runtime.turns(there, b.address)
	case 3: // added and removed
		if len(cfg.backends) == len(w.runtimes) && at > 0 && len(cfg.backends) > 2 { // one alone is passed on unchanged, which the oracle does not know
			w.trace("reload: without backend %s", b.name)
			cfg.backends = append(cfg.backends[:at:at], cfg.backends[at+1:]...)
			break
		}
		for _, r := range w.runtimes {
			used := false
			for _, b := range cfg.backends {
				used = used || b.runtime == r
			}
			if !used {
				name := names[r.name[0]-'A']
				for cfg.has(name) {
					name = "new" + name
				}
				w.trace("reload: with backend %s", name)
				knows := newKnowledge()
				knows.blank = time.Now()
				cfg.backends = append(cfg.backends, entry{name: name, runtime: r, address: r.address(), knows: knows})
			}
		}
	case 4:
		w.trace("reload: nothing is different")
	case 5:
		if len(cfg.backends) > 1 { // another one is the primary
			cfg.backends[0], cfg.backends[1] = cfg.backends[1], cfg.backends[0]
			w.trace("reload: backend %s is the primary", cfg.backends[0].name)
		}
	case 11: // a runtime has another name
		w.trace("reload: backend %s is called new%s", b.name, b.name)
		b.name = "new" + b.name
	case 12: // two swap their names
		other := &cfg.backends[(at+1)%len(cfg.backends)]
		w.trace("reload: backends %s and %s swap their names", b.name, other.name)
		b.name, other.name = other.name, b.name
	}
	p.reload(cfg)
}

func (c *config) has(name string) bool {
	return slices.ContainsFunc(c.backends, func(b entry) bool { return b.name == name })
}

// forgets notes that criproxy's cache, with what clients have seen, is lost.
func (w *world) forgets(cfg *config) {
	for i := range cfg.backends {
		cfg.backends[i].knows = newKnowledge()
	}
}

// is makes p the process that clients connect to.
func (w *world) is(p *proxy) {
	w.mu.Lock()
	w.now = p
	w.mu.Unlock()
	for _, c := range w.clients {
		c.ResetConnectBackoff()
	}
}

// start starts a process without a previous one.
func (w *world) start(cfg *config) *proxy {
	p, err := newProxy(w, cfg, nil)
	w.must(err)
	return p
}

// crashes ends a process like a crash. The next one gets the files as they are now, without what this one does as it ends.
func (w *world) crashes(p *proxy, cfg *config) {
	synctest.Wait() // nobody writes a file while they are copied
	left := fmt.Sprint(w.dir, "-", p.number)
	w.must(os.Mkdir(left, 0o700))
	files, err := os.ReadDir(w.dir)
	w.must(err)
	for _, f := range files {
		if data, err := os.ReadFile(filepath.Join(w.dir, f.Name())); err == nil { // the process may have removed it meanwhile
			w.must(os.WriteFile(filepath.Join(left, f.Name()), data, 0o600))
		}
	}
	if cfg.stateDir == w.dir {
		cfg.stateDir = left
	}
	w.dir = left
	p.crash()
}

func (c *config) show(w *world) {
	s := ""
	for _, b := range c.backends {
		s += fmt.Sprintf(" %s=%s@%d", b.name, b.runtime.name, b.address)
	}
	w.trace("now process %d:%s, budget %s, silence %s", c.process, s, c.budget, c.silence)
}
