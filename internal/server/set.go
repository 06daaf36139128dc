// This file keeps the [backend.Backend] of each runtime, and finds out, after a reload, a
// handover, a rename or a restart, which one a backend of the configuration is.

package server

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/inventory"
)

// A Place is a backend of a configuration: where it stands there, whichever [backend.Backend] the Set finds for it.
type Place struct {
	Name    string
	Address string // one address, or several separated by commas; no other backend has the same
}

// A Folder keeps backends for the process that starts after a crash, each in a file with its name. The zero value keeps none.
type Folder struct {
	Path string
	Boot string // a word that changes with each boot of the machine; files with another word are ignored
}

// File returns the file of a backend: without a Path if f keeps none, but with the address, which a handover passes on, too.
func (f Folder) File(p Place) backend.File {
	if f.Path == "" {
		return backend.File{Address: p.Address}
	}
	return backend.File{Path: filepath.Join(f.Path, p.Name+".known"), Address: p.Address, Boot: f.Boot}
}

// A Set is every [backend.Backend] of the process, by its name. A reload changes it, and a handover passes it to the next process.
// It is safe for concurrent use.
//
// The Set owns its backends: each runtime has one, from the first configuration that names it to the first that does not,
// whatever becomes of its connections. Names and addresses change only in [Staged.Commit]. The lock may be held while a file
// is written or removed, so no call of a client takes it. Who holds it may take the locks of a backend, never the reverse.
type Set struct {
	mu     sync.Mutex
	handed map[string][]byte           // :: name → encoded backend of the previous process
	at     map[string]string           // :: name → address, in the current configuration or that of the previous process; nil: not read yet
	byName map[string]*backend.Backend // of the current configuration
}

// NewSet returns the set of a process. handed is the result of [Set.Encode] in the process
// that hands over to this one, and empty if there is none.
func NewSet(handed map[string][]byte) *Set { return &Set{handed: handed} }

// Staged are the backends of a configuration that may still fail: nothing has changed before Commit. Whoever does not commit it
// just drops it: the Set has lost no backend to it, and a new backend has no file yet. It belongs to the reload that made it.
type Staged struct {
	set *Set
	all []Place
	in  Folder

	cached bool // the backends have a cache

	// Sources has, by the names of the backends, the names that their runtimes had until now. A name is empty if the runtime is new.
	// If there was no configuration yet, the backends are those of the previous process.
	Sources map[string]string
	// Backends has, by its name, each backend.
	Backends map[string]*backend.Backend
}

// Stage finds the backend of each place. cached says that the backends have a cache, which a file keeps.
//
// A backend belongs to its name, unless the name has got the address of another backend: then the name gets the backend at that
// address. Otherwise a runtime that takes over a name would seem to have no pods. A name that was at address 1 gets:
//
//	its address now               its backend now
//	1                             that of before
//	2, where another backend was  that other one
//	3, where none was             that of before; if another name is at 1 now, a new one, of which nothing is known
func (s *Set) Stage(all []Place, in Folder, cached bool) *Staged {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = s.before(in)
	}
	st := &Staged{set: s, all: all, in: in, cached: cached, Sources: s.sources(all), Backends: map[string]*backend.Backend{}}
	for _, p := range all {
		st.Backends[p.Name] = s.find(p, st.Sources[p.Name], st.folder())
	}
	return st
}

// folder returns the folder of the files that the backends have: without a cache, none.
func (st *Staged) folder() Folder {
	if st.cached {
		return st.in
	}
	return Folder{}
}

// find returns the backend of a place, whose name was source until now: the one that this process has, or else the one that the
// process before has passed on, or else what its file says. s.mu is held.
func (s *Set) find(p Place, source string, in Folder) *backend.Backend {
	if source == "" {
		return backend.Open(p.Name, backend.File{Address: p.Address})
	}
	if found := s.byName[source]; found != nil {
		return found
	}
	from := in.File(Place{source, p.Address})
	if data, ok := s.handed[source]; ok {
		b, err := backend.Receive(source, from, data)
		if err == nil {
			return b
		}
		klog.ErrorS(err, "The cache from the previous process cannot be read; criproxy uses its file instead", "backend", p.Name)
	}
	return backend.Open(source, from)
}

// sources returns, by the new names of the backends of a configuration, the names that they had
// until now. A backend that now has the address of another one gets that one's name; the other
// names stay the same. The name is empty for a backend whose old name another one gets. s.mu is held.
//
// It goes through the backends three times, the surest first: those of which neither name nor address has changed, those
// that are found by their addresses, and those that are left, by their names.
func (s *Set) sources(all []Place) map[string]string {
	sources, taken := map[string]string{}, map[string]bool{}
	take := func(p Place, source string) { sources[p.Name], taken[source] = source, true }
	for _, p := range all {
		if at, known := s.at[p.Name]; known && at == p.Address {
			take(p, p.Name)
		}
	}
	for _, p := range all {
		for _, other := range slices.Sorted(maps.Keys(s.at)) {
			if sources[p.Name] == "" && !taken[other] && s.at[other] == p.Address {
				take(p, other)
			}
		}
	}
	for _, p := range all {
		if sources[p.Name] == "" && !taken[p.Name] {
			sources[p.Name] = p.Name
		}
	}
	return sources
}

// before returns the addresses of the backends of the previous process, by their names: from that process, or else from the
// files of the folder. It leaves out what cannot be read, and files of an earlier boot.
func (s *Set) before(in Folder) map[string]string {
	at := map[string]string{}
	take := func(data []byte) {
		if name, address, ok := backend.NameAndAddress(data, in.Boot); ok && address != "" {
			at[name] = address
		}
	}
	for _, data := range s.handed {
		take(data)
	}
	if len(s.handed) > 0 || in.Path == "" {
		return at
	}
	files, _ := filepath.Glob(filepath.Join(in.Path, "*.known")) // the pattern is valid
	for _, file := range files {
		data, _ := os.ReadFile(file) // nothing, if it cannot be read
		take(data)
	}
	return at
}

// Commit makes the configuration the current one, and forgets the backends that it does not have. A backend that is added again
// later starts with an empty cache. It cannot fail: where a file cannot be removed, the log says what that means.
func (st *Staged) Commit() {
	s := st.set
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byName
	s.byName, s.at, s.handed = st.Backends, map[string]string{}, nil
	kept := map[*backend.Backend]bool{}
	for _, p := range st.all {
		at := st.folder().File(p)
		b := st.Backends[p.Name]
		s.at[p.Name] = p.Address
		if file := st.in.File(p).Path; old == nil && at.Path != file { // it would be out of date when there is a cache again
			_ = os.Remove(file) // it need not be there
		}
		if before := b.Name(); before != p.Name && st.cached {
			klog.InfoS("A backend has a new name; it keeps its cache", "backend", p.Name, "before", before)
			if !slices.ContainsFunc(st.all, func(p Place) bool { return p.Name == before }) && at.Path != "" {
				at.Replaces = st.in.File(Place{Name: before}).Path
			}
		}
		b.KeepAs(p.Name, at)
		kept[b] = true
	}
	for name, b := range old {
		if !kept[b] {
			if err := b.Forget(); err != nil {
				klog.ErrorS(err, "The cache of a backend that was taken out of the configuration could not be removed; remove the file, or criproxy reads it if the backend is added again", "backend", name)
			}
		}
	}
}

// Encode returns all backends for [NewSet] in another process, each as it is at one moment. What changes afterwards, that process
// learns from the function of [Set.HandOn], which must be set before.
func (s *Set) Encode() (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]byte{}
	for name, b := range s.byName {
		data, err := b.Encode()
		if err != nil {
			return nil, fmt.Errorf("encoding the cache of backend %s: %w", name, err)
		}
		all[name] = data
	}
	return all, nil
}

// HandOn calls send with each call that changes something at a backend, until HandOn is called again. The call waits until send
// returns. Several calls may send at once.
func (s *Set) HandOn(send func(backend string, n inventory.Note)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, b := range s.byName {
		b.HandOn(func(n inventory.Note) { send(name, n) })
	}
}

// Learn adds a call that another process has made to the cache of a backend.
func (s *Set) Learn(name string, n inventory.Note) error {
	s.mu.Lock()
	b := s.byName[name]
	s.mu.Unlock()
	if b == nil {
		return errors.New("there is no such backend")
	}
	b.Learn(n)
	return nil
}

// Release leaves all files to another process: this one does not write them any more, whatever its backends still learn.
func (s *Set) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.byName {
		b.Release()
	}
}

// Save writes all files. A failure matters only if this process crashes.
func (s *Set) Save() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, b := range s.byName {
		if err := b.Save(); err != nil {
			klog.ErrorS(err, "The cache of a backend could not be written", "backend", name)
		}
	}
}
