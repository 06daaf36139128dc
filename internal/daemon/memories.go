package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	cfg      *config.Config               // in force; nil before there is one
	at       map[string]string            // :: name → address, in cfg, or for the process before
	byName   map[string]*lastknown.Memory // of cfg
	next     map[string]*lastknown.Memory // of nextCfg, which may come to nothing
	nextCfg  *config.Config
	answered map[string]*answers
	noted    map[string]*notes
}

func newMemories(handed map[string][]byte) *memories {
	return &memories{handed: handed, answered: map[string]*answers{}, noted: map[string]*notes{}}
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

// of returns the Memory of a backend of cfg. A Memory belongs to the backend's name, unless the
// name has got the address of another backend: then the Memory of the runtime at that address
// counts. Otherwise a runtime that takes over a name would seem to have no pods.
func (m *memories) of(cfg *config.Config, b config.Backend) *lastknown.Memory {
	name := nameOf(b)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cfg == nil && m.at == nil {
		m.at = m.before(cfg)
	}
	if m.nextCfg != cfg {
		m.nextCfg, m.next = cfg, map[string]*lastknown.Memory{}
	}
	if m.next[name] == nil {
		m.next[name] = m.find(cfg, b)
	}
	return m.next[name]
}

// find returns the Memory that a backend of cfg goes on with.
func (m *memories) find(cfg *config.Config, b config.Backend) *lastknown.Memory {
	name, at := nameOf(b), stateFile(cfg, b)
	source := m.source(cfg, name)
	switch found := m.byName[source]; {
	case source == "":
		return lastknown.Open(name, lastknown.File{Address: at.Address})
	case found != nil:
		return found
	}
	from := at
	if source != name {
		from = fileOf(cfg, source, b)
	}
	if data, ok := m.handed[source]; ok {
		mem, err := lastknown.Receive(source, from, data)
		if err == nil {
			return mem
		}
		klog.ErrorS(err, "The memory that the previous process passed on cannot be read; its file is used", "backend", name)
	}
	return lastknown.Open(source, from)
}

// source returns the name under which a backend of cfg was known so far: its own, unless it has
// the address of another one now. It is empty if another one has taken its place.
func (m *memories) source(cfg *config.Config, name string) string {
	sources := map[string]string{} // :: name in cfg → name so far
	taken := map[string]bool{}
	for _, b := range cfg.Backends {
		if at, known := m.at[nameOf(b)]; known && at == addressOf(b) {
			sources[nameOf(b)], taken[nameOf(b)] = nameOf(b), true
		}
	}
	for _, b := range cfg.Backends {
		for other, at := range m.at {
			if sources[nameOf(b)] == "" && !taken[other] && at == addressOf(b) {
				sources[nameOf(b)], taken[other] = other, true
			}
		}
	}
	if sources[name] == "" && !taken[name] {
		return name
	}
	return sources[name]
}

// before returns the addresses of the backends that the process before this one knew.
func (m *memories) before(cfg *config.Config) map[string]string {
	at := map[string]string{}
	take := func(name, address string, ok bool) {
		if ok && address != "" {
			at[name] = address
		}
	}
	for _, data := range m.handed {
		take(lastknown.NameAndAddressIn(data, startOfNode(runFolder)))
	}
	if len(m.handed) > 0 || cfg.StateDir == "" {
		return at
	}
	files, _ := filepath.Glob(filepath.Join(cfg.StateDir, "*.known")) // its error is of the pattern
	for _, file := range files {
		take(lastknown.NameAndAddress(file, startOfNode(runFolder)))
	}
	return at
}

// keepOnly makes cfg the configuration that is in force, and forgets the backends that it does
// not have. One that is added again later starts from nothing.
func (m *memories) keepOnly(cfg *config.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.byName
	m.byName, m.at, m.cfg, m.handed = map[string]*lastknown.Memory{}, map[string]string{}, cfg, nil
	kept := map[*lastknown.Memory]bool{}
	for _, b := range cfg.Backends {
		name, at := nameOf(b), stateFile(cfg, b)
		mem := old[name]
		if m.nextCfg == cfg && m.next[name] != nil {
			mem = m.next[name]
		}
		m.at[name] = addressOf(b)
		if mem == nil {
			continue // nothing is remembered of a backend that is alone
		}
		if before := mem.Name(); before != name {
			klog.InfoS("A backend has another name; what is remembered of it goes with it", "backend", name, "before", before)
			if !slices.ContainsFunc(cfg.Backends, func(b config.Backend) bool { return nameOf(b) == before }) && at.Path != "" {
				at.Older = append(at.Older, fileOf(cfg, before, b).Path)
			}
		}
		mem.KeepAs(name, at)
		m.byName[name], kept[mem] = mem, true
	}
	m.next, m.nextCfg = nil, nil
	for name, mem := range old {
		if !kept[mem] {
			if err := mem.Forget(); err != nil {
				klog.ErrorS(err, "A backend that was removed may be remembered if it is added again; remove the file", "backend", name)
			}
		}
	}
}

func nameOf(b config.Backend) string { return director.Backend{Name: b.Name}.String() }

// addressOf returns what tells the runtime of b from others.
func addressOf(b config.Backend) string {
	return strings.Join(append([]string{b.Address}, b.Addresses...), ",")
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
func stateFile(c *config.Config, b config.Backend) lastknown.File { return fileOf(c, nameOf(b), b) }

// fileOf is stateFile for another name of the backend.
func fileOf(c *config.Config, name string, b config.Backend) lastknown.File {
	if c.StateDir == "" {
		return lastknown.File{Address: addressOf(b)}
	}
	return lastknown.File{
		Path:    filepath.Join(c.StateDir, name+".known"),
		Older:   []string{filepath.Join(c.StateDir, fmt.Sprintf("%s-%08x.known", name, crc32.ChecksumIEEE([]byte(b.Address))))},
		Address: addressOf(b),
		Boot:    startOfNode(runFolder),
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
