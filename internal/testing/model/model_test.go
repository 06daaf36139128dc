package model

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/memory"
)

var (
	first    = flag.Uint64("model.seed", 0, "run the model with this `seed`, or begin with it; with -model.seeds, 0 begins with a random one")
	lasts    = flag.Duration("model.time", 0, "run each seed for this `time`, of the simulated clock")
	many     = flag.Int("model.seeds", 0, "run a `number` of seeds, one after another, until one finds a violation")
	disorder = flag.Bool("model.disorder", false, "let runtimes answer lists in any order, with their state at any moment since the request")
	verbose  = flag.Bool("model.calls", false, "trace all calls")
	events   = flag.Int("model.trace", 60, "show this `number` of events before a violation")
)

func TestWhatKubeletGetsIsTrue(t *testing.T) {
	seeds := []uint64{2, 6, 7, 20, 49} // each has found a defect; -model.seeds draws others
	if *first != 0 || *many > 0 {
		from := *first
		if from == 0 {
			from = rand.Uint64N(1 << 32)
		}
		seeds = nil
		for i := range max(*many, 1) {
			seeds = append(seeds, from+uint64(i))
		}
	}
	for _, seed := range seeds {
		if *many > 0 && t.Failed() {
			return
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			stateDir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { simulate(t, seed, stateDir) })
		})
	}
}

func simulate(t *testing.T, seed uint64, stateDir string) {
	w := &world{seed: seed, began: time.Now(), dir: stateDir, random: rand.New(rand.NewPCG(seed, 0)), counts: map[string]int{}, underWay: map[*call]struct{}{}, unordered: *disorder}
	duration := 5 * time.Minute
	if *lasts > 0 {
		duration = *lasts
	}
	w.ctx, w.end = context.WithTimeout(context.Background(), duration)
	defer w.end()
	var err error
	w.api, err = criadapter.Config(criadapter.Options{})
	w.must(err)
	cfg := &config{budget: memory.DefaultBudget, silence: memory.DefaultSilence, stateDir: stateDir, native: w.random.IntN(3) == 0, boot: "the first"}
	for i, name := range []string{"A", "B", "C"} {
		r := newRuntime(w, name, seed)
		w.runtimes = append(w.runtimes, r)
		cfg.backends = append(cfg.backends, backend{name: []string{"one", "two.test", "three.test"}[i], runtime: r})
	}
	if w.random.IntN(3) == 0 { // the first weather hits runtimes before memory knows them
		for _, r := range w.runtimes {
			r.turns(forecast(r.rnd), 0)
		}
	}
	if w.random.IntN(4) == 0 {
		w.slowWatch = time.Duration(w.random.Int64N(int64(20 * time.Second)))
	}
	time.Sleep(time.Millisecond)
	for i := range cfg.backends { // runtimes that existed before
		cfg.backends[i].knows = newKnowledge()
	}
	w.now = newProxy(w, cfg, nil)

	for i, f := range []func(*client){(*client).kubelet, (*client).reader, (*client).reader, (*client).writer, (*client).prober, (*client).gauger, (*client).watch} {
		c := &client{world: w, rnd: rand.New(rand.NewPCG(seed, uint64(100+i))), name: fmt.Sprint("client ", i)}
		w.group.Go(func() { f(c) })
	}
	for _, r := range w.runtimes {
		w.group.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 1000+uint64(r.name[0])))
			for w.sleep(time.Duration(rnd.Int64N(int64(90 * time.Second)))) {
				r.turns(forecast(rnd), r.address())
			}
		})
		w.group.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 2000+uint64(r.name[0])))
			for w.sleep(time.Duration(rnd.Int64N(int64(60 * time.Second)))) {
				r.happens()
			}
		})
	}
	w.group.Go(w.chaos)
	w.group.Go(func() {
		for w.sleep(time.Second) {
			w.mu.Lock()
			w.judgeConditions()
			w.judgeEvents()
			w.mu.Unlock()
		}
	})
	<-w.ctx.Done()
	w.mu.Lock()
	p := w.now
	w.mu.Unlock()
	w.group.Wait()
	if p != nil {
		p.end()
	}
	if w.wrong != "" {
		t.Errorf("seed %d: %s\n\n%s", seed, w.wrong, w.story(*events))
	}
	if testing.Verbose() {
		t.Log(w.counts)
	}
}

// chaos does what administrators do: it restarts processes, and changes the configuration.
func (w *world) chaos() {
	for w.sleep(time.Duration(w.random.Int64N(int64(2 * time.Minute)))) {
		w.mu.Lock()
		old := w.now
		w.mu.Unlock()
		cfg := old.cfg.clone()
		switch n := w.random.IntN(13); n {
		case 0, 1, 2, 3, 4, 5, 11, 12:
			w.reloads(old, cfg, n)
		case 6: // an orderly restart
			w.says("process %d ends", old.number)
			w.is(nil)
			old.end()
			if !w.sleep(time.Duration(w.random.Int64N(int64(3 * time.Second)))) {
				return
			}
			if cfg.stateDir == w.dir {
				w.is(newProxy(w, cfg, nil))
			} else {
				w.forgets(cfg)
				w.is(newProxy(w, cfg, nil))
			}
		case 7: // a crash: only the file of memory survives
			w.says("process %d crashes", old.number)
			w.is(nil)
			at := time.Now()
			old.crash()
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
			w.is(newProxy(w, cfg, nil))
		case 8: // a reboot, after which only some of the runtimes' items come back
			w.says("process %d and all runtimes end with the machine", old.number)
			w.is(nil)
			old.crash()
			for _, r := range w.runtimes {
				r.reboots()
			}
			cfg.boot = fmt.Sprint("after process ", old.number)
			w.forgets(cfg)
			for _, b := range cfg.backends {
				b.knows.blank = time.Now()
			}
			w.is(newProxy(w, cfg, nil))
			for _, r := range w.runtimes {
				w.group.Go(func() {
					w.sleep(time.Duration(r.name[0]-'A') * 3 * time.Second)
					r.turns(clear(), r.address())
				})
			}
		default:
			w.says("process %d hands over", old.number)
			var heir *proxy
			began := make(chan struct{})
			old.memories.HandOn(func(name string, n memory.Note) {
				<-began
				_ = heir.memories.Learn(name, n) // the heir may not have the backend any more
			})
			handed, err := old.memories.Encode()
			w.must(err)
			heir = newProxy(w, cfg, handed)
			close(began)
			w.is(heir)
			old.memories.Release()
			drained := w.epoch()
			w.group.Go(func() {
				<-drained
				old.memories.HandOn(nil)
				old.end()
			})
		}
		cfg.show(w)
	}
}

// reloads changes the configuration.
func (w *world) reloads(p *proxy, cfg *config, what int) {
	at := w.random.IntN(len(cfg.backends))
	b := &cfg.backends[at]
	switch what {
	case 0:
		cfg.budget = time.Second + time.Duration(w.random.Int64N(int64(2*time.Second)))
		w.says("reload: budget %s", cfg.budget)
	case 1:
		cfg.silence = 5*time.Second + time.Duration(w.random.Int64N(int64(10*time.Second)))
		w.says("reload: silence %s", cfg.silence)
	case 2: // a backend moves to another address
		b.address++
		w.says("reload: backend %s is at address %d", b.name, b.address)
		there := clear()
		there.down = w.random.IntN(2) == 0 // not started yet
		b.runtime.turns(there, b.address)
	case 3: // added and removed
		if len(cfg.backends) == 3 && at > 0 {
			w.says("reload: without backend %s", b.name)
			cfg.backends = append(cfg.backends[:at:at], cfg.backends[at+1:]...)
			break
		}
		for _, r := range w.runtimes {
			used := false
			for _, b := range cfg.backends {
				used = used || b.runtime == r
			}
			if !used {
				name := map[string]string{"A": "one", "B": "two.test", "C": "three.test"}[r.name]
				for cfg.has(name) {
					name = "new" + name
				}
				w.says("reload: with backend %s", name)
				knows := newKnowledge()
				knows.blank = time.Now()
				cfg.backends = append(cfg.backends, backend{name: name, runtime: r, address: r.address(), knows: knows})
			}
		}
	case 4:
		if w.random.IntN(2) == 0 { // a folder that is not writable
			cfg.stateDir = filepath.Join(w.dir, "there", "is", "none")
		} else {
			cfg.stateDir = w.dir
		}
		w.says("reload: state folder %s", cfg.stateDir)
	case 5:
		if len(cfg.backends) > 1 { // another one is the primary
			cfg.backends[0], cfg.backends[1] = cfg.backends[1], cfg.backends[0]
			w.says("reload: backend %s is the primary", cfg.backends[0].name)
		}
	case 11: // a runtime has another name
		w.says("reload: backend %s is called new%s", b.name, b.name)
		b.name = "new" + b.name
	case 12: // two swap their names
		other := &cfg.backends[(at+1)%len(cfg.backends)]
		w.says("reload: backends %s and %s swap their names", b.name, other.name)
		b.name, other.name = other.name, b.name
	}
	p.reload(cfg)
}

func (c *config) has(name string) bool {
	return slices.ContainsFunc(c.backends, func(b backend) bool { return b.name == name })
}

// forgets notes that criproxy's memory of what clients have seen is lost.
func (w *world) forgets(cfg *config) {
	for i := range cfg.backends {
		cfg.backends[i].knows = newKnowledge()
	}
}

func (w *world) is(p *proxy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = p
}

func (w *world) says(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace(format, args...)
}

func (c *config) show(w *world) {
	s := ""
	for _, b := range c.backends {
		s += fmt.Sprintf(" %s=%s@%d", b.name, b.runtime.name, b.address)
	}
	w.says("now process %d:%s, budget %s, silence %s", c.process, s, c.budget, c.silence)
}
