package backend

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/inventory"
)

// A file is a line that identifies the format, the SHA-256 of the rest, and the rest: gobs of a
// fileContent without its lists, and of filePieces, which hold the lists. The only reader is the
// next process, of this or a later version. A cache that is handed over has the same form.
const fileMagic = "criproxy known 2\n"

// filePiece is a status, or a part of a reply. gob copies what it writes, so pieces are small.
type filePiece struct {
	List   string // method
	Status bool   // Data is the status of ID, and not the next part of the reply
	ID     string
	Data   []byte
}

// pieceSize is about the length of the parts of a reply.
const pieceSize = 64 << 10

// fileContent is what a file says. Fields are only added: a gob without one leaves it zero, and one that a reader does not know
// is ignored.
type fileContent struct {
	Backend string
	BootID  string
	Address string
	Late    map[string]string // :: method → why its answers came late
	Gone    bool              // the backend was gone when this was written
	Unseen  bool              // the backend has never answered; only in caches that are handed over
	Saved   time.Time
	Lists   map[string]inventory.Saved // :: method
	Replies map[string][]byte          // :: method
}

// decodeFile reads a file, and checks it before it believes anything.
func decodeFile(data []byte) (*fileContent, error) {
	if len(data) == 0 { // see distrust
		return nil, errors.New("it is empty: an earlier process could not write it, as on a full disk")
	}
	rest, ok := bytes.CutPrefix(data, []byte(fileMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, errors.New("it is not a cache of criproxy, or one of another version")
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
			l.Statuses[p.ID] = append([]byte{}, p.Data...) // not nil: empty means that the item has no status
		}
		content.Lists[p.List] = l
	}
}

// writeFile writes a new file and puts it in the place of the old one: whoever opens the path finds one of the two, whole.
func writeFile(path string, content *fileContent) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil { // an administrator may have removed it
		return err
	}
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

// writeTo writes the whole file. It puts the checksum last into the space that it has left for it.
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

// encode writes the content in pieces.
func (c *fileContent) encode(e *gob.Encoder) error {
	head := *c
	head.Lists = make(map[string]inventory.Saved, len(c.Lists))
	for method, l := range c.Lists {
		head.Lists[method] = inventory.Saved{Fresh: l.Fresh, Former: l.Former}
	}
	if err := e.Encode(head); err != nil {
		return err
	}
	for method, l := range c.Lists {
		for part := range l.Parts(pieceSize) {
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
