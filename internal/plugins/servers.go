package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// An identity identifies an object, even when it is removed and created anew.
type identity struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"` // without the volatile ones
}

// identity returns the identity of the object that m describes.
func (o *object) identity(m protoreflect.Message) identity {
	return identity{o.namespace.text(m), o.name.text(m), o.labels.strings(m)}
}

// is reports whether id is the object that was seen: it has the same name or, because a controller
// gives each pod a new name, the same labels.
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

// servers knows which pods serve the plugins: those in which the processes at the other end of the
// plugins' connections run.
type servers struct {
	path string // of the file that keeps seen; empty for none

	mu   sync.Mutex          // guards the fields below
	seen map[string]identity // :: plugin → its pod
	from map[string]looked   // :: plugin → the latest search for its pod
}

// looked is a search for the pod that serves a plugin.
type looked struct {
	cgroup string
	found  bool
	at     time.Time
}

// lookAgain is the shortest time between two searches for the pod of a plugin, because a search
// goes through all objects.
const lookAgain = time.Second

// readServers reads the file at path. It returns working servers even with an error.
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
	if s.seen == nil { // the file says null
		s.seen = map[string]identity{}
	}
	if err != nil {
		return s, fmt.Errorf("reading %s: %w", path, err)
	}
	return s, nil
}

// learn notes which pod serves a plugin, and writes the file.
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
	data, _ := json.MarshalIndent(s.seen, "", "  ") // strings: cannot fail
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

// identifyAll finds out which pod serves each of the plugins.
func (p *Plugins) identifyAll() {
	for _, pl := range p.table.Load().plugins {
		p.identify(pl)
	}
}

// identify finds out which pod serves pl, if any does. It returns at once if nothing has changed.
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
	pod := p.facts.withUID(*cgroup)
	if pod == nil {
		return
	}
	id := pod.object.identity(pod.about)
	for _, name := range p.cfg.Spec.Volatile {
		delete(id.Labels, name)
	}
	s.mu.Lock()
	s.from[pl.name] = looked{cgroup: *cgroup, found: true}
	s.mu.Unlock()
	if err := s.learn(pl.name, id); err != nil {
		p.report(context.Background(), Trouble{What: "criproxy cannot keep on disk which pods serve the plugins; after a restart it may refuse calls about these pods", Err: err})
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
