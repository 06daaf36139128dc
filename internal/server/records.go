package server

import (
	"crypto/rand"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/observe/telemetry"
	"github.com/criproxy/criproxy/internal/plugins"
)

// records has a record of each backend, by its name, and notes of each plugin, by the name of its file. They outlive
// reloads. It is safe for concurrent use. The zero value is empty.
type records struct {
	mu       sync.Mutex
	all      map[string]*record
	plugins  map[string]*notes
	losses   *telemetry.Losses
	onChange func(capture.Change) // gets each change of a condition; nil ignores them

	noting  sync.RWMutex // read-locked while a condition is noted, and others are notified
	silent  bool         // another process records changes, or is about to
	held    sync.Mutex   // guards waiting
	waiting []func()     // what [records.thaw] will do
}

// do calls f, which notes what a backend or plugin has become, and notifies. While this process is silent, f waits.
func (r *records) do(f func()) {
	r.noting.RLock()
	defer r.noting.RUnlock()
	if !r.silent {
		f()
		return
	}
	r.held.Lock()
	defer r.held.Unlock()
	r.waiting = append(r.waiting[max(0, len(r.waiting)+1-maxWaiting):], f)
}

// freeze makes this process silent, because another one goes on with the notes that this one has now. When freeze returns,
// they change no more. So there is one story at every moment, without a part that two processes record, or none.
func (r *records) freeze() {
	r.noting.Lock()
	defer r.noting.Unlock()
	r.silent = true
}

// thaw ends [records.freeze], because the other process did not take over. It records what has happened meanwhile.
func (r *records) thaw() {
	r.noting.Lock()
	defer r.noting.Unlock()
	for _, f := range r.waiting {
		f()
	}
	r.silent, r.waiting = false, nil
}

// maxWaiting bounds what waits for [records.thaw].
const maxWaiting = 1000

// notify passes on a change of the condition of a backend.
func (r *records) notify(backend string, c capture.Change, changed bool) {
	if c.Backend = backend; changed && r.onChange != nil {
		r.onChange(c)
	}
}

// follow notes that a configuration is in use since now. sources has the names that its runtimes had before, as
// [Memories.Sources] returns them. The condition of a runtime that has another name now goes on under that name. The
// outages that are over stay with the name under which they were recorded. concerned returns how many pods and containers
// the runtime with an earlier name has.
func (r *records) follow(sources map[string]string, now time.Time, concerned func(name string) (pods, containers *int)) {
	r.noting.Lock()
	defer r.noting.Unlock()
	before, _ := r.allNotes()
	renamed := map[string]string{} // :: name → new name
	for name, source := range sources {
		renamed[source] = name
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if sources[name] == name {
			continue
		}
		why := ""
		if to := renamed[name]; to != "" {
			why = "it is called " + to + " now"
		}
		pods, containers := concerned(name)
		c, changed := r.of(name).notes.removed(now, why, pods, containers)
		r.notify(name, c, changed)
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		n, source := &r.of(name).notes, sources[name]
		if source != name && source != "" {
			pods, containers := concerned(source)
			c, changed := n.goOn(before[source], pods, containers)
			r.notify(name, c, changed)
		}
		n.connecting(now)
	}
}

// record has the counts and notes of a backend.
type record struct {
	answers answers // from memory in place of the backend
	notes   notes
}

// of returns the record of a backend.
func (r *records) of(name string) *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]*record{}
	}
	if r.all[name] == nil {
		r.all[name] = &record{}
	}
	return r.all[name]
}

// ofPlugin returns the notes of a plugin.
func (r *records) ofPlugin(name string) *notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plugins == nil {
		r.plugins = map[string]*notes{}
	}
	if r.plugins[name] == nil {
		r.plugins[name] = &notes{}
	}
	return r.plugins[name]
}

// notePlugins notes the conditions of all plugins that have a file, since now unless they were so before. It calls log with
// each: its state, the change, and whether it is one.
func (r *records) notePlugins(all plugins.Conditions, now time.Time, log func(state string, c capture.Change, changed bool)) {
	have := map[string]bool{}
	for _, one := range all {
		have[one.Plugin] = true
	}
	r.mu.Lock()
	known := slices.Sorted(maps.Keys(r.plugins))
	r.mu.Unlock()
	for _, name := range known {
		if !have[name] && r.ofPlugin(name).list().Condition != "" {
			all = append(all, plugins.Condition{Plugin: name, State: "removed", Err: errors.New("its file is gone")})
		}
	}
	for _, one := range all {
		what, why := capture.PluginDown, one.Err
		switch one.State {
		case "connecting":
			continue // nobody knows yet
		case "ready":
			what, why = capture.PluginReady, nil // a mistake in its file has no effect
		case "removed":
			what = capture.Removed
		}
		n := r.ofPlugin(one.Plugin)
		c, changed := n.became(what, now, why, nil, nil)
		if !changed {
			k := n.list()
			c = capture.Change{Time: k.Since, What: what, Why: k.reason()}
		}
		c.Plugin = one.Plugin
		log(one.State, c, changed)
		r.notify("", c, changed)
	}
}

// allNotes returns the notes of all backends and plugins.
func (r *records) allNotes() (backends, plugins map[string]noted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	backends, plugins = map[string]noted{}, map[string]noted{}
	for name, one := range r.all {
		backends[name] = one.notes.list()
	}
	for name, one := range r.plugins {
		plugins[name] = one.list()
	}
	return backends, plugins
}

// restoreNotes takes over the notes of another process, which has handed over or ended.
func (r *records) restoreNotes(backends, plugins map[string]noted, handed bool) {
	for name, kept := range backends {
		r.of(name).notes.restore(kept, handed)
	}
	for name, kept := range plugins {
		r.ofPlugin(name).restore(kept, handed)
	}
}

// replayNotes takes over the notes of a process that has ended. A crash may have cut them off; replay calls its argument
// with all changes that were recorded, which are never older.
func (r *records) replayNotes(backends, plugins map[string]noted, replay func(func(*capture.Change))) {
	ofBackends, ofPlugins := map[string]*noted{}, map[string]*noted{}
	replay(func(c *capture.Change) {
		of, name := ofBackends, c.Backend
		if c.Plugin != "" {
			of, name = ofPlugins, c.Plugin
		}
		if name == "" {
			return
		}
		if of[name] == nil {
			of[name] = &noted{}
		}
		of[name].replay(c)
	})
	r.restoreNotes(latest(backends, ofBackends), latest(plugins, ofPlugins), false)
}

// latest returns the notes in all, and those that were replayed in place of the ones that are older.
func latest(all map[string]noted, replayed map[string]*noted) map[string]noted {
	whole := map[string]noted{}
	maps.Copy(whole, all)
	for name, k := range replayed {
		if was := all[name]; k.Condition != was.Condition || !k.Since.Equal(was.Since) {
			k.Runtime, k.API = was.Runtime, was.API
			whole[name] = *k
		}
	}
	return whole
}

func nameOf(b config.Backend) string { return director.Backend{Name: b.Name}.String() }

// addressOf returns all addresses of b as one text. No other runtime has the same.
func addressOf(b config.Backend) string {
	return strings.Join(b.AllAddresses(), ",")
}

// places returns the backends of a configuration, for their memories.
func places(cfg *config.Config) []Place {
	var all []Place
	for _, b := range cfg.Backends {
		all = append(all, Place{Name: nameOf(b), Address: addressOf(b)})
	}
	return all
}

// folder returns the folder for the memories. A proxy that only shows calls has none: the folder may be that of another one.
func (p *Proxy) folder(cfg *config.Config) Folder {
	switch {
	case cfg.StateDir == "", p.shows:
		return Folder{}
	case p.machine.Boot != "":
		return Folder{Path: cfg.StateDir, Boot: p.machine.Boot}
	}
	return Folder{Path: cfg.StateDir, Boot: startOfNode(runFolder)}
}

// remembers reports whether the backends of a configuration have memories. A single runtime has
// none: if it is gone, so is the node.
func remembers(cfg *config.Config, p *director.Profile) bool {
	return !single(cfg) && len(p.Known.Lists)+len(p.Known.Replies) > 0
}

func single(cfg *config.Config) bool {
	return len(cfg.Backends) == 1 && cfg.Backends[0].Policy == "" && cfg.IDs != config.NativeIDs
}

// runFolder is empty after each start of the node, even if the node is a container and the boot id
// is that of its machine: Filesystem Hierarchy Standard 3.0, section 3.15.
const runFolder = "/run"

// startOfNode returns a word that changes with each start of the node. The first process that
// asks for the word writes it to a file in folder. If that fails, the word is empty.
func startOfNode(folder string) string {
	path := filepath.Join(folder, "criproxy.boot")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		_, err = f.WriteString(rand.Text())
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(path) // it may have half a word
		}
	}
	word, _ := os.ReadFile(path)
	return string(word)
}
