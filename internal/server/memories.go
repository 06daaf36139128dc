// This file keeps the [memory.Memory] of each backend, and finds out, after a reload, a
// handover, a rename or a restart, which backend a memory belongs to.

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

	"github.com/criproxy/criproxy/internal/inventory"
	"github.com/criproxy/criproxy/internal/memory"
)

// A Place is a backend of a configuration.
type Place struct {
	Name    string
	Address string // one address, or several separated by commas; no other backend has the same
}

// A Folder keeps memories for the process that starts after a crash. The zero value keeps none.
type Folder struct {
	Path string
	Boot string // a word that changes with each boot of the machine; files with another word are ignored
}

// File returns the file for the memory of a backend.
func (f Folder) File(p Place) memory.File {
	if f.Path == "" {
		return memory.File{Address: p.Address}
	}
	return memory.File{Path: filepath.Join(f.Path, p.Name+".known"), Address: p.Address, Boot: f.Boot}
}

// Memories are the [memory.Memory] of each backend, by its name. They outlive connections: a
// reload passes them to the next connections, a handover to the next process. They are safe for
// concurrent use.
type Memories struct {
	mu     sync.Mutex
	handed map[string][]byte         // :: name → encoded memory of the previous process
	at     map[string]string         // :: name → address, in the current configuration or that of the previous process; nil: not read yet
	byName map[string]*memory.Memory // of the current configuration
}

// NewMemories returns the memories of a process. handed is the result of [Memories.Encode] in the process
// that hands over to this one, and empty if there is none.
func NewMemories(handed map[string][]byte) *Memories { return &Memories{handed: handed} }

// Next returns the Memory of each backend of a configuration, by name. The configuration may still
// fail: nothing changes before [Memories.Keep].
//
// A Memory belongs to the backend's name, unless the name has got the address of another backend:
// then the name gets the Memory of the runtime at that address. Otherwise a runtime that takes over
// a name would seem to have no pods.
func (m *Memories) Next(all []Place, in Folder) map[string]*memory.Memory {
	sources := m.Sources(all, in)
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[string]*memory.Memory{}
	for _, p := range all {
		next[p.Name] = m.find(p, sources[p.Name], in)
	}
	return next
}

// Sources returns, by the names of the backends of a configuration, the names that their runtimes had until now: see
// [Memories.Next]. A name is empty if the runtime is new. If there was no configuration yet, the backends are those of the
// previous process.
func (m *Memories) Sources(all []Place, in Folder) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == nil {
		m.at = m.before(in)
	}
	return m.sources(all)
}

// find returns the Memory for a backend, whose name was source until now.
func (m *Memories) find(p Place, source string, in Folder) *memory.Memory {
	if source == "" {
		return memory.Open(p.Name, memory.File{Address: p.Address})
	}
	if found := m.byName[source]; found != nil {
		return found
	}
	from := in.File(Place{source, p.Address})
	if data, ok := m.handed[source]; ok {
		mem, err := memory.Receive(source, from, data)
		if err == nil {
			return mem
		}
		klog.ErrorS(err, "The memory from the previous process cannot be read; criproxy uses its file instead", "backend", p.Name)
	}
	return memory.Open(source, from)
}

// sources returns, by the new names of the backends of a configuration, the names that they had
// until now. A backend that now has the address of another one gets that one's name; the other
// names stay the same. The name is empty for a backend whose old name another one gets.
func (m *Memories) sources(all []Place) map[string]string {
	sources, taken := map[string]string{}, map[string]bool{}
	take := func(p Place, source string) { sources[p.Name], taken[source] = source, true }
	for _, p := range all {
		if at, known := m.at[p.Name]; known && at == p.Address {
			take(p, p.Name)
		}
	}
	for _, p := range all {
		for _, other := range slices.Sorted(maps.Keys(m.at)) {
			if sources[p.Name] == "" && !taken[other] && m.at[other] == p.Address {
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

// before returns the addresses of the backends of the previous process.
func (m *Memories) before(in Folder) map[string]string {
	at := map[string]string{}
	take := func(data []byte) {
		if name, address, ok := memory.NameAndAddress(data, in.Boot); ok && address != "" {
			at[name] = address
		}
	}
	for _, data := range m.handed {
		take(data)
	}
	if len(m.handed) > 0 || in.Path == "" {
		return at
	}
	files, _ := filepath.Glob(filepath.Join(in.Path, "*.known")) // the pattern is valid
	for _, file := range files {
		data, _ := os.ReadFile(file) // nothing, if it cannot be read
		take(data)
	}
	return at
}

// Keep makes a configuration the current one, with the memories that Next has returned for it, and
// forgets the backends that it does not have. A backend that is added again later starts with an
// empty memory.
func (m *Memories) Keep(all []Place, in Folder, next map[string]*memory.Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.byName
	m.byName, m.at, m.handed = map[string]*memory.Memory{}, map[string]string{}, nil
	kept := map[*memory.Memory]bool{}
	for _, p := range all {
		at := in.File(p)
		mem := next[p.Name]
		m.at[p.Name] = p.Address
		if mem == nil { // a single backend has no memory; one of earlier would be out of date when there are several again
			if old[p.Name] == nil && at.Path != "" {
				_ = os.Remove(at.Path) // it need not be there
			}
			continue
		}
		if before := mem.Name(); before != p.Name {
			klog.InfoS("A backend has a new name; it keeps its memory", "backend", p.Name, "before", before)
			if !slices.ContainsFunc(all, func(p Place) bool { return p.Name == before }) && at.Path != "" {
				at.Replaces = in.File(Place{Name: before}).Path
			}
		}
		mem.KeepAs(p.Name, at)
		m.byName[p.Name], kept[mem] = mem, true
	}
	for name, mem := range old {
		if !kept[mem] {
			if err := mem.Forget(); err != nil {
				klog.ErrorS(err, "The memory of a backend that was taken out of the configuration could not be removed; remove the file, or criproxy reads it if the backend is added again", "backend", name)
			}
		}
	}
}

// Encode returns all memories for [New] in another process.
func (m *Memories) Encode() (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string][]byte{}
	for name, mem := range m.byName {
		data, err := mem.Encode()
		if err != nil {
			return nil, fmt.Errorf("encoding the memory of backend %s: %w", name, err)
		}
		all[name] = data
	}
	return all, nil
}

// HandOn calls send with each call that changes something at a backend, until HandOn is called again.
func (m *Memories) HandOn(send func(backend string, n inventory.Note)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, mem := range m.byName {
		mem.HandOn(func(n inventory.Note) { send(name, n) })
	}
}

// Learn adds a call that another process has made to the memory of a backend.
func (m *Memories) Learn(backend string, n inventory.Note) error {
	m.mu.Lock()
	mem := m.byName[backend]
	m.mu.Unlock()
	if mem == nil {
		return errors.New("there is no such backend")
	}
	return mem.Learn(n)
}

// Release leaves all files to another process: this one does not write them any more.
func (m *Memories) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mem := range m.byName {
		mem.Release()
	}
}

// Save writes all files. A failure matters only if this process crashes.
func (m *Memories) Save() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, mem := range m.byName {
		if err := mem.Save(); err != nil {
			klog.ErrorS(err, "The memory of a backend could not be written", "backend", name)
		}
	}
}
