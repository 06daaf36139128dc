package backend

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

// A File says where a [Backend] is kept, for the process that starts after a crash of this one. A handover does without it.
type File struct {
	Path     string // empty: nowhere
	Replaces string // the file that the backend had under an earlier name, which is removed once Path is written
	Address  string // of the backend, for a later process, in which it may have another name
	Boot     string // differs after each start of the node; the kernel's boot id is enough, unless a node can restart without its machine
}

// file is where a Backend is kept. Its lock is held as long as the disk takes, so no call takes it: only Run, and whoever gives
// the backend another file.
type file struct {
	sync.Mutex // guards the fields below
	File
	write    func(string, *fileContent) error // writeFile
	written  bool                             // this process has written it, at Path
	read     bool                             // the cache began with what it held
	released bool                             // another process has it now
}

// bootID identifies the current start of this node.
func (f *File) bootID() string {
	id, _ := os.ReadFile(bootIDFile)
	return strings.TrimSpace(strings.TrimSpace(string(id)) + " " + f.Boot)
}

// Open returns a Backend that is kept in a file, which need not exist. It ignores a file of an earlier boot:
// everything that ran then is dead. If the file cannot be read or written, the backend's lists fail until it has answered,
// with the reason: see [Backend.Err].
func Open(name string, at File) *Backend {
	b := newBackend(name, at)
	if at.Path == "" {
		return b
	}
	data, err := os.ReadFile(at.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err != nil:
		err = fmt.Errorf("reading the cache: %w", err)
	default:
		err = b.decode(data, at.Path, false)
	}
	if err == nil && !b.inv.Empty() {
		if failure := writable(at.Path); failure != nil { // the previous process could not write it either
			b = newBackend(name, at)
			err = fmt.Errorf("%s may be old, because its folder cannot be written (%w); make it writable, or remove the file", at.Path, failure)
		}
	}
	b.unsure, b.file.read = err, true
	return b
}

// writable returns an error if no file can be made where path is.
func writable(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Receive returns the Backend that another process has encoded. It is kept in a file from now on, as after [Open].
func Receive(name string, at File, data []byte) (*Backend, error) {
	b := newBackend(name, at)
	if err := b.decode(data, "the cache that was handed over", true); err != nil {
		return nil, err
	}
	b.news = true
	return b, nil
}

// decode fills b from data; from says, for errors, where the data came from. The backend may have
// changed since, so its lists are asked for again, unless the backend was gone.
func (b *Backend) decode(data []byte, from string, handed bool) error {
	content, err := decodeFile(data)
	if err != nil {
		return brokenError(from, err)
	}
	if content.Backend != b.name {
		return fmt.Errorf("%s is about backend %s, not %s; remove it", from, content.Backend, b.name)
	}
	if content.BootID != b.file.bootID() {
		return nil
	}
	for key, f := range content.Lists {
		l := b.inv.Restore(key, f, content.Saved)
		if !content.Gone && !(handed && f.Fresh) { // otherwise there can be nothing newer
			l.Invalidate(time.Now())
		}
	}
	b.inv.RestoreReplies(content.Replies)
	b.listedSinceBoot = !content.Unseen
	maps.Copy(b.late, content.Late)
	return nil
}

// brokenError is why a cache cannot be read.
func brokenError(from string, why error) error {
	return fmt.Errorf("%s is broken (%w); if the runtime is running, it will be written anew as soon as it answers; if it never comes back, remove the file", from, why)
}

// Save writes the file, if there is anything new. A reader finds either the old file or the new
// one. The file need not survive a crash of the machine, since the containers do not either.
func (b *Backend) Save() error {
	b.file.Lock()
	defer b.file.Unlock()
	if b.file.Path == "" || b.file.released || !b.takeNews() && !b.file.disturbed() {
		return nil
	}
	if err := b.file.write(b.file.Path, b.content()); err != nil {
		b.mu.Lock()
		b.news = true
		b.mu.Unlock()
		distrust(b.file.Path)
		return fmt.Errorf("writing the cache of the runtime: %w", err)
	}
	b.file.written = true
	if b.file.Replaces != "" {
		_ = os.Remove(b.file.Replaces) // it need not be there
		b.file.Replaces = ""
	}
	return nil
}

// KeepAs gives the backend another name, and keeps it in a file from now on. A file in another folder is removed: a later
// process must not read there what was true until now.
func (b *Backend) KeepAs(name string, at File) {
	b.file.Lock()
	defer b.file.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.name == name && b.file.Path == at.Path && b.file.Address == at.Address {
		return
	}
	switch old := b.file.Path; {
	case old == "" || filepath.Dir(old) == filepath.Dir(at.Path):
	case at.Path == "":
		_ = os.Remove(old) // it need not be there
	default:
		at.Replaces = old
	}
	b.file.File, b.file.written, b.file.read = at, false, false
	b.name, b.news = name, true
}

// Name returns the name of the backend.
func (b *Backend) Name() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.name
}

// NameAndAddress returns the name and the address of the backend whose cache is in data: a file, or what [Backend.Encode]
// has returned. ok is false if it cannot be read or is of another boot.
func NameAndAddress(data []byte, boot string) (name, address string, ok bool) {
	content, err := decodeFile(data)
	if err != nil || content.BootID != (&File{Boot: boot}).bootID() {
		return "", "", false
	}
	return content.Backend, content.Address, true
}

// Encode returns all that is to outlive the process, as of one moment, for [Receive].
func (b *Backend) Encode() ([]byte, error) {
	var body bytes.Buffer
	if err := b.content().encode(gob.NewEncoder(&body)); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body.Bytes())
	return bytes.Join([][]byte{[]byte(fileMagic), sum[:], body.Bytes()}, nil), nil
}

// Release leaves the file to another process: this one does not write it any more.
func (b *Backend) Release() {
	b.file.Lock()
	defer b.file.Unlock()
	b.file.released = true
}

// Forget removes the file of a backend that is no longer configured.
func (b *Backend) Forget() error {
	b.file.Lock()
	defer b.file.Unlock()
	b.file.released = true
	if err := os.Remove(b.file.Path); b.file.Path != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting a backend that is no longer configured: %w", err)
	}
	return nil
}

// disturbed reports whether the file that this process has written was removed, or another one is there, of which it did not
// know when it began. A later process would believe what that says, which was true for an earlier one. The lock is held.
func (f *file) disturbed() bool {
	_, err := os.Lstat(f.Path)
	if f.written {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	}
	return err == nil && !f.read
}

// takeNews reports whether the file is out of date, once for each change.
func (b *Backend) takeNews() (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listedSinceBoot || b.answeredSinceBoot {
		news, b.news = b.inv.TakeNews() || b.news, false
	}
	return news
}

// content returns the content for the file, as of one moment.
func (b *Backend) content() *fileContent {
	content := &fileContent{BootID: b.file.bootID(), Saved: time.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	content.Backend, content.Address = b.name, b.file.Address
	content.Gone, content.Late = b.state.Condition == Gone, maps.Clone(b.late)
	content.Unseen = b.unseen() && b.unsure == nil
	content.Lists, content.Replies = b.inv.Save()
	return content
}

// distrust empties a file that could not be rewritten and is out of date, which needs no space on the disk. An empty file is
// better than none: after a crash it makes the lists fail until the backend has answered.
func distrust(path string) {
	if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
		_ = f.Close() // nothing was written
	}
}
