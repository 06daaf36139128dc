package director

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/rewrite"
)

// noteKey begins the key of a note; the name of the backend follows. It begins with letters that
// rarely follow each other, because the director searches each reply for the key.
const noteKey = "x-criproxy/"

// A backend forgets the prefix with which a client wrote a name: it gets, stores and lists the name without. Where the profile
// says written, the director has the backend keep a note with the object, in a map of strings such as its annotations. When
// the backend returns the object, the director removes the note and puts the prefix back.

// noted has the paths in a message to some names, and to the map that holds a note of them. It is immutable.
type noted struct {
	names   []*rewrite.Path
	namings []*naming // of the names
	note    *rewrite.Path
}

// compileNoted compiles the rule for one message: md has the names, and the map that takes the note.
func (t *table) compileNoted(md protoreflect.MessageDescriptor, form profile.NotedForm, classes *rewrite.Classes) (*noted, error) {
	n := &noted{}
	var err error
	if n.note, err = rewrite.ParsePath(md, form.Note); err != nil {
		return nil, err
	}
	if !n.note.Leaf().IsMap() || n.note.Leaf().MapValue().Kind() != protoreflect.StringKind || n.note.Leaf().MapKey().Kind() != protoreflect.StringKind {
		return nil, fmt.Errorf("path %s does not lead to a map of strings", form.Note)
	}
	for _, text := range form.Names {
		path, naming, err := t.namePath(md, text, classes)
		if err != nil {
			return nil, err
		}
		n.names, n.namings = append(n.names, path), append(n.namings, naming)
	}
	return n, nil
}

// write returns the request with a note for the backend to keep, if the first of the names that the
// request has carries the backend's prefix. The request that it gets stays with the caller.
func (n *noted) write(b int, key string, request *codec.Frame) (*codec.Frame, error) {
	for i, path := range n.names {
		name, _, err := path.Lookup(request.Bytes())
		if err != nil {
			return nil, err
		}
		if len(name) == 0 {
			continue
		}
		if bytes.Equal(n.namings[i].toBack(nil, name, b), name) {
			return request, nil
		}
		var p rewrite.Patch
		p.SetEntry(n.note, key, string(name))
		out, err := p.Apply(nil, request.Bytes())
		return codec.NewFrame(out), err
	}
	return request, nil
}

// read appends to dst a message of a backend, without its note. If the message has a note, its names
// get the backend's prefix, with which the client wrote them.
func (n *noted) read(dst, message []byte, b int, key string) ([]byte, error) {
	has := false
	err := n.note.Entries(message, func(k, _ []byte) error {
		has = has || string(k) == key
		return nil
	})
	if err != nil || !has {
		return append(dst, message...), err
	}
	var p rewrite.Patch
	p.RemoveEntry(n.note, key)
	for i, path := range n.names {
		name, _, err := path.Lookup(message)
		if err != nil {
			return dst, err
		}
		p.SetString(path, string(n.namings[i].toFront(nil, name, b)))
	}
	return p.Apply(dst, message)
}

// notes says where the messages of an API have notes. It is immutable, and belongs to a table. The key of a note has the name
// of its backend, so that notes of a criproxy behind this one, or of a backend that had another name, stay in the object.
type notes struct {
	keys     []string // :: backend → key of its notes; empty for the primary
	messages []*noted // :: class - 1 → where a message in a reply has its note
	classes  *rewrite.Classes
}

// compileNotes finds all fields through which replies lead to messages with notes.
func (t *table) compileNotes(p *Profile, all *rewrite.Messages, classes *rewrite.Classes) error {
	t.notes = &notes{}
	for i, b := range t.backends {
		key := ""
		if i > 0 {
			key = noteKey + b.Name
		}
		t.notes.keys = append(t.notes.keys, key)
	}
	var errs []error
	var rules []rewrite.Rule
	for _, message := range sortedKeys(p.Written.Replies) {
		var n *noted
		for _, md := range all.All() {
			for i := range md.Fields().Len() {
				fd := md.Fields().Get(i)
				if sub := fd.Message(); sub == nil || fd.IsMap() || string(sub.Name()) != message {
					continue
				}
				if n == nil {
					var err error
					if n, err = t.compileNoted(fd.Message(), p.Written.Replies[message], classes); err != nil {
						errs = append(errs, fmt.Errorf("written.replies.%s: %w", message, err))
						break
					}
					t.notes.messages = append(t.notes.messages, n)
				}
				rules = append(rules, rewrite.Rule{Field: string(fd.FullName()), Class: rewrite.Class(len(t.notes.messages))})
			}
		}
		if n == nil && errs == nil {
			errs = append(errs, fmt.Errorf("written.replies.%s: no reply has such a message", message))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	var err error
	t.notes.classes, err = all.Classify(rules)
	return err
}

// readNotes returns the reply of a backend with its notes read. It takes ownership of the reply
// that it gets.
func (t *table) readNotes(m *method, b int, reply *codec.Frame) (*codec.Frame, error) {
	key := t.notes.keys[b]
	if m.notes == nil || key == "" || !bytes.Contains(reply.Bytes(), []byte(key)) {
		return reply, nil
	}
	read, err := apply(m.notes, reply, func(dst []byte, c rewrite.Class, message []byte) ([]byte, error) {
		return t.notes.messages[c-1].read(dst, message, b, key)
	})
	reply.Free()
	return read, err
}
