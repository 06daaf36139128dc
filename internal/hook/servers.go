package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// An identity says which object it is, over all the times that it is made anew.
type identity struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"` // without the volatile ones
}

// identity returns the identity of the object that m describes.
func (o *object) identity(m protoreflect.Message) identity {
	return identity{o.namespace.text(m), o.name.text(m), o.labels.strings(m)}
}

// is reports whether it is what was seen: by its name, or, as a controller gives each
// one a new name, by its labels.
func (seen identity) is(id identity) bool {
	if seen.Namespace != id.Namespace {
		return false
	}
	return seen.Name == id.Name || len(seen.Labels) > 0 && within(seen.Labels, id.Labels)
}

func within(some, all map[string]string) bool {
	for k, v := range some {
		if has, ok := all[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// servers knows what serves the plugins: what the process at the other end of a
// plugin's connection runs in.
type servers struct {
	path string // where it is kept; empty for nowhere

	mu   sync.Mutex // guards what follows
	seen map[string]identity
	from map[string]looked // :: plugin → how it was looked for last
}

// looked is how the server of a plugin was looked for.
type looked struct {
	cgroup string
	found  bool
	at     time.Time
}

// lookAgain is how long a server that is none of the objects is not looked for again:
// that takes a look at all objects.
const lookAgain = time.Second

// readServers reads what was kept. The servers work without it, whatever the error.
func readServers(path string) (*servers, error) {
	s := &servers{path: path, seen: map[string]identity{}, from: map[string]looked{}}
	if path == "" {
		return s, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s.seen)
	}
	if err != nil || s.seen == nil {
		s.seen = map[string]identity{}
		return s, fmt.Errorf("reading %s: %w", path, err)
	}
	return s, nil
}

// learn notes what serves a plugin, and keeps it.
func (s *servers) learn(plugin string, id identity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reflect.DeepEqual(s.seen[plugin], id) {
		return nil
	}
	s.seen[plugin] = id
	if s.path == "" {
		return nil
	}
	data, err := json.MarshalIndent(s.seen, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	next := s.path + ".next"
	if err := os.WriteFile(next, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.path)
}

func (s *servers) get(plugin string) (identity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.seen[plugin]
	return id, ok
}

// identifyAll finds out what serves each of the plugins.
func (p *Plugins) identifyAll() {
	for _, pl := range p.table.Load().plugins {
		p.identify(pl)
	}
}

// identify finds out what serves p, if that is one of the objects. It is quick where
// nothing has changed.
func (p *Plugins) identify(pl *plugin) {
	cgroup := pl.conn.cgroup.Load()
	if cgroup == nil {
		return
	}
	s := p.servers
	now := time.Now()
	s.mu.Lock()
	last := s.from[pl.name]
	again := last.cgroup != *cgroup || !last.found && now.Sub(last.at) > lookAgain
	if again {
		s.from[pl.name] = looked{cgroup: *cgroup, at: now}
	}
	s.mu.Unlock()
	if !again {
		return
	}
	facts := p.memory.withUID(*cgroup)
	if len(facts) == 0 {
		return
	}
	m, err := facts[0].message()
	if err != nil {
		return // it was written by us
	}
	id := facts[0].object.identity(m)
	id.Labels = maps.Clone(id.Labels)
	for _, name := range p.cfg.Spec.Volatile {
		delete(id.Labels, name)
	}
	s.mu.Lock()
	s.from[pl.name] = looked{cgroup: *cgroup, found: true}
	s.mu.Unlock()
	if err := s.learn(pl.name, id); err != nil {
		p.reportOnce(Trouble{What: "criproxy cannot keep on disk which pods serve the plugins; after a restart it may refuse calls about these pods", Err: err})
	}
}

// serves reports whether the object with this identity serves pl.
func (p *Plugins) serves(pl *plugin, id identity) bool {
	if f := pl.file.Pod; f != nil && f.Namespace == id.Namespace && within(f.Labels, id.Labels) {
		return true
	}
	seen, ok := p.servers.get(pl.name)
	return ok && seen.is(id)
}

// servesAny reports whether the object with this identity serves any plugin.
func (p *Plugins) servesAny(id identity) bool {
	return slices.ContainsFunc(p.table.Load().plugins, func(pl *plugin) bool { return p.serves(pl, id) })
}
