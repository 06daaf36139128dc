package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/lastknown"
)

// memories are the lastknown.Memory of each backend, by its name, whatever connections there are
// to it. A reload passes them to the next connections, a handover to the next process. It is
// safe for concurrent use.
type memories struct {
	handed map[string][]byte // :: name → what the process before this one remembered

	mu       sync.Mutex
	byName   map[string]*lastknown.Memory
	answered map[string]*answers
	noted    map[string]*notes
}

func newMemories(handed map[string][]byte) *memories {
	return &memories{handed: handed, byName: map[string]*lastknown.Memory{}, answered: map[string]*answers{}, noted: map[string]*notes{}}
}

// answers returns the counter of answers from memory in place of a backend. A reload must not
// reset it.
func (m *memories) answers(name string) *answers {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answered[name] == nil {
		m.answered[name] = &answers{}
	}
	return m.answered[name]
}

// notes returns what is noted of a backend.
func (m *memories) notes(name string) *notes {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.noted[name] == nil {
		m.noted[name] = &notes{}
	}
	return m.noted[name]
}

// allNotes returns what is noted of all backends.
func (m *memories) allNotes() map[string]noted {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]noted{}
	for name, n := range m.noted {
		all[name] = n.list()
	}
	return all
}

// restoreNotes puts in what another process has noted. An outage that was not over goes on, or ends
// when the backend is seen.
func (m *memories) restoreNotes(all map[string]noted) {
	for name, kept := range all {
		n := m.notes(name)
		n.mu.Lock()
		n.kept = kept
		n.mu.Unlock()
	}
}

// of returns the Memory of a backend of cfg.
func (m *memories) of(cfg *config.Config, b config.Backend) *lastknown.Memory {
	name := director.Backend{Name: b.Name}.String()
	at := stateFile(cfg, b)
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.byName[name]; found != nil {
		found.KeepAt(at)
		return found
	}
	var mem *lastknown.Memory
	if data, ok := m.handed[name]; ok {
		var err error
		if mem, err = lastknown.Receive(name, at, data); err != nil {
			klog.ErrorS(err, "The memory that the previous process passed on cannot be read; its file is used", "backend", name)
		}
	}
	if mem == nil {
		mem = lastknown.Open(name, at)
	}
	m.byName[name] = mem
	return mem
}

// keepOnly forgets the backends that cfg does not have. One that is added again later starts
// from nothing.
func (m *memories) keepOnly(cfg *config.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handed = nil
	names := map[string]bool{}
	for _, b := range cfg.Backends {
		names[director.Backend{Name: b.Name}.String()] = true
	}
	for name, mem := range m.byName {
		if names[name] {
			continue
		}
		delete(m.byName, name)
		if err := mem.Forget(); err != nil {
			klog.ErrorS(err, "A backend that was removed may be remembered if it is added again; remove the file", "backend", name)
		}
	}
}

// encode returns all memories for another process.
func (m *memories) encode() (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string][]byte{}
	for name, mem := range m.byName {
		data, err := mem.Encode()
		if err != nil {
			return nil, fmt.Errorf("encoding what is remembered of backend %s: %w", name, err)
		}
		all[name] = data
	}
	return all, nil
}

// handOn calls tell with each call that changes something, until handOn is called with nil.
func (m *memories) handOn(tell func(backend string, n lastknown.Note)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, mem := range m.byName {
		if tell == nil {
			mem.HandOn(nil)
		} else {
			mem.HandOn(func(n lastknown.Note) { tell(name, n) })
		}
	}
}

// learn notes a call that another process has made.
func (m *memories) learn(backend string, n lastknown.Note) error {
	m.mu.Lock()
	mem := m.byName[backend]
	m.mu.Unlock()
	if mem == nil {
		return errors.New("there is no such backend")
	}
	return mem.Learn(n)
}

// release leaves all files to another process.
func (m *memories) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mem := range m.byName {
		mem.Release()
	}
}

// save writes all files. A failure matters only if this process crashes.
func (m *memories) save() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, mem := range m.byName {
		if err := mem.Save(); err != nil {
			klog.ErrorS(err, "The memory of a backend could not be written", "backend", name)
		}
	}
}

// stateFile is where the memory of a backend is kept, and where earlier versions kept it.
func stateFile(c *config.Config, b config.Backend) lastknown.File {
	if c.StateDir == "" {
		return lastknown.File{}
	}
	name := director.Backend{Name: b.Name}.String()
	return lastknown.File{
		Path:  filepath.Join(c.StateDir, name+".known"),
		Older: []string{filepath.Join(c.StateDir, fmt.Sprintf("%s-%08x.known", name, crc32.ChecksumIEEE([]byte(b.Address))))},
		Boot:  startOfNode(runFolder),
	}
}

// runFolder is empty after each start of the node, also where the node is a container and the
// boot id is that of its machine: Filesystem Hierarchy Standard 3.0, section 3.15.
const runFolder = "/run"

// startOfNode returns a word that changes with each start of the node. The first process that
// asks for it leaves it in folder. It is empty if that fails.
func startOfNode(folder string) string {
	path := filepath.Join(folder, "criproxy.boot")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		_, err = f.WriteString(rand.Text())
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(path) // half a word
		}
	}
	word, _ := os.ReadFile(path)
	return string(word)
}
