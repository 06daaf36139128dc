package known

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A file is a line that says what it is, the SHA-256 of the rest, and the rest: gobs of a
// fileContent without its lists, and of filePieces, which are its lists. It is for the process
// that comes after this one, of this or a later version, and for nobody else.
const fileMagic = "criproxy known 2\n"

// bootIDFile changes with each boot of the machine, random(4).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

type fileContent struct {
	Backend string
	BootID  string
	Saved   time.Time
	Lists   map[string]fileList // :: method
	Replies map[string][]byte   // :: method
}

type fileList struct {
	Reply    []byte
	Statuses map[string][]byte
}

// filePiece is a status, or a part of a reply: gob copies what it writes, so that it is
// given little at once.
type filePiece struct {
	List   string // method
	Status bool   // Data is the status of ID, and not the next part of the reply
	ID     string
	Data   []byte
}

// pieceSize is the length of the parts of a reply.
const pieceSize = 64 << 10

func bootID() string {
	id, _ := os.ReadFile(bootIDFile)
	return strings.TrimSpace(string(id))
}

// load reads the file, if there is one. What it says of an earlier boot is not
// taken: everything that ran then is dead.
func (c *Conn) load() error {
	if c.cfg.File == "" {
		return nil
	}
	data, err := os.ReadFile(c.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading what was known: %w", err)
	}
	content, err := decodeFile(data)
	if err != nil {
		return fmt.Errorf("%s is broken (%w); if the runtime is running, it will be written anew as soon as it answers; if it never comes back, remove the file", c.cfg.File, err)
	}
	if content.Backend != c.cfg.Name {
		return fmt.Errorf("%s is about backend %s, not %s; remove it", c.cfg.File, content.Backend, c.cfg.Name)
	}
	if content.BootID != bootID() {
		return nil
	}
	for _, l := range c.lists {
		f, ok := content.Lists[l.spec.List+l.spec.Stream]
		if !ok {
			continue
		}
		items, err := l.parse(f.Reply)
		if err != nil {
			return fmt.Errorf("%s is broken (%s: %w); remove it", c.cfg.File, l.spec.List, err)
		}
		l.items, l.complete, l.at = *items, true, content.Saved
		if f.Statuses != nil {
			l.statuses = f.Statuses
		}
	}
	for _, k := range c.kept {
		k.reply, k.known = content.Replies[k.spec.Method]
	}
	c.setSeen() // it is written only of one that has been seen
	return nil
}

func decodeFile(data []byte) (*fileContent, error) {
	rest, ok := bytes.CutPrefix(data, []byte(fileMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, errors.New("it does not begin as it should")
	}
	if sum := sha256.Sum256(rest[sha256.Size:]); !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return nil, errors.New("its checksum is wrong")
	}
	d := gob.NewDecoder(bytes.NewReader(rest[sha256.Size:]))
	var content fileContent
	if err := d.Decode(&content); err != nil {
		return nil, err
	}
	for {
		var p filePiece
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return &content, nil
		} else if err != nil {
			return nil, err
		}
		l, ok := content.Lists[p.List]
		switch {
		case !ok:
			return nil, fmt.Errorf("it has a part of the list %q, which it does not name", p.List)
		case !p.Status:
			l.Reply = append(l.Reply, p.Data...)
		case l.Statuses == nil:
			l.Statuses = map[string][]byte{}
			fallthrough
		default:
			l.Statuses[p.ID] = append([]byte{}, p.Data...) // not nil: it is known to be none
		}
		content.Lists[p.List] = l
	}
}

// saveNews is Save for after a round: a failure is tried again next time, and told once until it
// succeeds.
func (c *Conn) saveNews() {
	err := c.Save()
	told := c.unsaved
	c.unsaved = err != nil
	if err != nil && !told && c.cfg.Watch != nil {
		s := c.State()
		s.Err = err
		c.cfg.Watch(s)
	}
}

// Save writes the file, if there is anything new, for whoever is about to read it: who
// reads it finds the old one or the new one and nothing between. It need not survive a
// crash of the machine: nothing that it tells of would.
func (c *Conn) Save() error {
	c.saving.Lock()
	defer c.saving.Unlock()
	if c.cfg.File == "" || c.released || !c.hasNews() {
		return nil
	}
	if err := c.write(c.cfg.File, c.content()); err != nil {
		c.mu.Lock()
		c.news = true
		c.mu.Unlock()
		return fmt.Errorf("writing what is known: %w", err)
	}
	return nil
}

// hasNews reports whether the file should say something else than it does.
func (c *Conn) hasNews() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.news
	for _, l := range c.lists {
		l.settle()
		news = news || l.news
	}
	return news && c.state.Seen
}

// Release leaves the file to somebody else, who has read it: from here on it is
// not written any more.
func (c *Conn) Release() {
	c.saving.Lock()
	defer c.saving.Unlock()
	c.released = true
}

// content is what the file is to say.
func (c *Conn) content() *fileContent {
	content := &fileContent{Backend: c.cfg.Name, BootID: bootID(), Saved: time.Now(), Lists: map[string]fileList{}, Replies: map[string][]byte{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news = false
	for _, l := range c.lists {
		l.settle()
		l.news = false
		if l.complete {
			statuses := make(map[string][]byte, len(l.statuses))
			for id, s := range l.statuses {
				if !l.stale[id] {
					statuses[id] = s
				}
			}
			content.Lists[l.spec.List+l.spec.Stream] = fileList{l.reply(func(string, []byte) bool { return true }), statuses}
		}
	}
	for _, k := range c.kept {
		if k.known {
			content.Replies[k.spec.Method] = k.reply
		}
	}
	return content
}

func writeFile(path string, content *fileContent) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails when it has been renamed
	if err := errors.Join(content.writeTo(tmp), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// writeTo writes all of a file. The checksum comes last, in its place: what it is of is
// written as it is made.
func (c *fileContent) writeTo(f io.WriteSeeker) error {
	sum := sha256.New()
	if _, err := io.WriteString(f, fileMagic+strings.Repeat("\x00", sum.Size())); err != nil {
		return err
	}
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), pieceSize)
	if err := errors.Join(c.encode(gob.NewEncoder(w)), w.Flush()); err != nil {
		return err
	}
	if _, err := f.Seek(int64(len(fileMagic)), io.SeekStart); err != nil {
		return err
	}
	_, err := f.Write(sum.Sum(nil))
	return err
}

func (c *fileContent) encode(e *gob.Encoder) error {
	head := *c
	head.Lists = make(map[string]fileList, len(c.Lists))
	for method := range c.Lists {
		head.Lists[method] = fileList{}
	}
	if err := e.Encode(head); err != nil {
		return err
	}
	for method, l := range c.Lists {
		for part := range slices.Chunk(l.Reply, pieceSize) {
			if err := e.Encode(filePiece{List: method, Data: part}); err != nil {
				return err
			}
		}
		for id, s := range l.Statuses {
			if err := e.Encode(filePiece{method, true, id, s}); err != nil {
				return err
			}
		}
	}
	return nil
}
