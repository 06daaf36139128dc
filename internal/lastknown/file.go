package lastknown

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// bootIDFile changes with each boot of the machine, random(4).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// A File says where a [Memory] is kept.
type File struct {
	Path string // empty: nowhere

	// Older are paths at which earlier versions kept it. They are removed once Path is
	// written.
	Older []string

	// Address is where the backend is. The file says it, for a later process that knows the
	// backend by another name. Optional.
	Address string

	// Boot is another word at each start of the node. Optional: that of the kernel is
	// enough, where a node is not restarted without its machine.
	Boot string
}

// file is where a Memory is kept.
type file struct {
	sync.Mutex // guards what follows
	File
	write    func(string, *fileContent) error // writeFile
	written  bool                             // it was, at Path
	released bool                             // it is another process's now
	failing  bool                             // it could not be written, and that was reported
}

// bootID names the start of this node.
func (f *File) bootID() string {
	id, _ := os.ReadFile(bootIDFile)
	return strings.TrimSpace(strings.TrimSpace(string(id)) + " " + f.Boot)
}

// sameBoot reports whether a memory is of this start of the node. Earlier versions knew
// only the boot of the machine.
func (f *File) sameBoot(id string) bool {
	return id == f.bootID() || id == (&File{}).bootID()
}

// Open returns the Memory of a backend that is kept in a file, which need not exist. What
// it says of an earlier boot is forgotten: everything that ran then is dead. A file that
// cannot be read, or not be written, is no error of Open: the backend's lists fail and say
// why, until the backend has answered. See [Memory.Err].
func Open(name string, at File) *Memory {
	m := newMemoryAt(name, at)
	if at.Path == "" {
		return m
	}
	path := at.latest()
	if path == "" {
		return m
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = m.decode(data, path, false)
	} else {
		err = fmt.Errorf("reading what was remembered: %w", err)
	}
	if err == nil && len(m.lists) > 0 {
		if failure := writable(at.Path); failure != nil { // so the process before could not write it either
			m = newMemoryAt(name, at)
			err = fmt.Errorf("%s may be old, because its folder cannot be written (%w); make it writable, or remove the file", path, failure)
		}
	}
	m.unsure = err
	return m
}

func newMemoryAt(name string, at File) *Memory {
	m := NewMemory(name)
	m.file.File, m.address = at, at.Address
	return m
}

// writable returns an error if no file can be made where path is.
func writable(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// latest returns the path of the file that was written last, which an earlier version may have
// written since. It is empty if there is none.
func (f *File) latest() (path string) {
	var written time.Time
	for _, one := range append([]string{f.Path}, f.Older...) {
		info, err := os.Stat(one)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return one // reading it says why
		case path == "" || info.ModTime().After(written):
			path, written = one, info.ModTime()
		}
	}
	return path
}

// Receive is [Open] for a Memory that another process has encoded, and which is kept in a
// file from now on.
func Receive(name string, at File, data []byte) (*Memory, error) {
	m := newMemoryAt(name, at)
	if err := m.decode(data, "the memory that was handed over", true); err != nil {
		return nil, err
	}
	m.news = true
	return m, nil
}

// decode takes over what data says, which came from somewhere. The backend may have
// told more since: as long as it can be asked, it is.
func (m *Memory) decode(data []byte, from string, handed bool) error {
	content, err := decodeFile(data)
	if err != nil {
		return fmt.Errorf("%s is broken (%w); if the runtime is running, it will be written anew as soon as it answers; if it never comes back, remove the file", from, err)
	}
	if content.Backend != m.name {
		return fmt.Errorf("%s is about backend %s, not %s; remove it", from, content.Backend, m.name)
	}
	if !m.file.sameBoot(content.BootID) {
		return nil
	}
	for key, f := range content.Lists {
		l := newMemory()
		l.raw, l.complete, l.at = f.Reply, true, content.Saved
		if !content.Gone && !(handed && f.Fresh) { // or there can be nothing newer
			l.touch()
		}
		if f.Statuses != nil {
			l.statuses = f.Statuses
		}
		m.lists[key] = l
	}
	for method, reply := range content.Replies {
		m.replies[method] = &replyMemory{reply, true}
	}
	m.seen, m.gone = !content.Unseen, content.Gone
	maps.Copy(m.late, content.Late)
	return nil
}

// saveNews is Save for after a round: it returns a failure once, until it succeeds, and
// tries again next time.
func (m *Memory) saveNews() error {
	err := m.Save()
	m.file.Lock()
	defer m.file.Unlock()
	before := m.file.failing
	m.file.failing = err != nil
	if before {
		return nil
	}
	return err
}

// Save writes the file, if there is anything new. A reader finds the old file or the new
// one, and nothing between. The file need not survive a crash of the machine, since the
// containers in it do not either.
func (m *Memory) Save() error {
	m.file.Lock()
	defer m.file.Unlock()
	if m.file.Path == "" || m.file.released || !m.hasNews() && !m.lost() {
		return nil
	}
	if err := m.file.write(m.file.Path, m.content()); err != nil {
		m.mu.Lock()
		m.news = true
		m.mu.Unlock()
		distrust(m.file.Path)
		return fmt.Errorf("writing what is remembered: %w", err)
	}
	m.file.written = true
	for _, path := range m.file.Older {
		_ = os.Remove(path) // it need not be there
	}
	m.file.Older = nil
	return nil
}

// KeepAt keeps m in another file from now on.
func (m *Memory) KeepAt(at File) { m.KeepAs(m.Name(), at) }

// KeepAs gives the backend another name, and keeps m in a file from now on.
func (m *Memory) KeepAs(name string, at File) {
	m.file.Lock()
	defer m.file.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.name == name && m.file.Path == at.Path && m.address == at.Address {
		return
	}
	m.file.File, m.file.written = at, false
	m.name, m.address, m.news = name, at.Address, true
}

// Name is what people call the backend.
func (m *Memory) Name() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.name
}

// NameAndAddress returns what the file at path, which must be of this boot, says of its backend.
func NameAndAddress(path, boot string) (name, address string, ok bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", "", false
	}
	return NameAndAddressIn(data, boot)
}

// NameAndAddressIn is NameAndAddress for what [Memory.Encode] has returned.
func NameAndAddressIn(data []byte, boot string) (name, address string, ok bool) {
	content, err := decodeFile(data)
	if err != nil || !(&File{Boot: boot}).sameBoot(content.BootID) {
		return "", "", false
	}
	return content.Backend, content.Address, true
}

// Encode returns m for [Receive].
func (m *Memory) Encode() ([]byte, error) {
	var body bytes.Buffer
	if err := m.content().encode(gob.NewEncoder(&body)); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body.Bytes())
	return bytes.Join([][]byte{[]byte(fileMagic), sum[:], body.Bytes()}, nil), nil
}

// Release leaves the file to another process: from here on it is not written any more.
func (m *Memory) Release() {
	m.file.Lock()
	defer m.file.Unlock()
	m.file.released = true
}

// Forget removes the file: there is no such backend any more.
func (m *Memory) Forget() error {
	m.Release()
	m.file.Lock()
	defer m.file.Unlock()
	if err := os.Remove(m.file.Path); m.file.Path != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting a backend that is no longer configured: %w", err)
	}
	return nil
}

// lost reports whether a file that was written is not there any more.
func (m *Memory) lost() bool {
	if !m.file.written {
		return false
	}
	_, err := os.Lstat(m.file.Path)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// hasNews reports whether the file should say something else than it does.
func (m *Memory) hasNews() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	news := m.news
	for _, l := range m.lists {
		if l.by != nil {
			l.by.settle()
		}
		news = news || l.news
	}
	return news && (m.seen || m.met.Load())
}

// content is what the file is to say.
func (m *Memory) content() *fileContent {
	content := &fileContent{BootID: m.file.bootID(), Saved: time.Now(), Lists: map[string]fileList{}, Replies: map[string][]byte{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	content.Backend, content.Address = m.name, m.address
	m.news = false
	content.Gone, content.Late = m.gone, maps.Clone(m.late)
	content.Unseen = !m.seen && !m.met.Load() && m.unsure == nil
	for key, l := range m.lists {
		reply := l.raw
		if l.by != nil {
			l.by.settle()
			reply = l.by.reply(everything)
		}
		l.news = false
		if !l.complete {
			continue
		}
		statuses := make(map[string][]byte, len(l.statuses))
		for id, s := range l.statuses {
			if !l.stale[id] {
				statuses[id] = s
			}
		}
		content.Lists[key] = fileList{reply, statuses, !l.dirty()}
	}
	for method, k := range m.replies {
		if k.known {
			content.Replies[method] = k.reply
		}
	}
	return content
}

// distrust empties a file that could not be written anew, which needs no room on a disk. What it
// says is old, and without it nothing would be known: an empty one has lists fail after a crash
// until the backend has answered.
func distrust(path string) {
	if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
		_ = f.Close() // nothing was written
	}
}
