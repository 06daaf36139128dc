package rewrite

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/suggest"
)

// A Path leads to one string or bytes value in a message, through singular
// fields and map keys, as in
//
//	config.annotations["kubernetes.io/target-runtime"]
//
// It is immutable.
type Path struct {
	text  string
	steps []pathStep
	leaf  protoreflect.FieldDescriptor
}

type pathStep struct {
	num   protowire.Number
	isKey bool // num is a map, key the entry wanted
	key   string
}

// ParsePath resolves text against md. Its error says which part of the path is
// wrong, and what was probably meant.
func ParsePath(md protoreflect.MessageDescriptor, text string) (*Path, error) {
	p := &Path{text: text}
	for rest := text; ; {
		if md == nil {
			return nil, fmt.Errorf("path %s: %s is no message, nothing can follow it", text, p.leaf.Name())
		}
		end := strings.IndexAny(rest, ".[")
		if end < 0 {
			end = len(rest)
		}
		name := rest[:end]
		rest = rest[end:]
		fd := md.Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			var names []string
			for i := range md.Fields().Len() {
				names = append(names, string(md.Fields().Get(i).Name()))
			}
			return nil, fmt.Errorf("path %s: %s has no field %q%s", text, md.FullName(), name, suggest.Nearest(name, names))
		}
		s := pathStep{num: fd.Number()}
		p.leaf, md = fd, fd.Message()
		switch {
		case fd.IsMap():
			quoted, err := strconv.QuotedPrefix(strings.TrimPrefix(rest, "["))
			if err != nil || !strings.HasPrefix(rest, "[") || !strings.HasPrefix(rest[1+len(quoted):], "]") {
				return nil, fmt.Errorf("path %s: %s is a map, want %s[\"key\"]", text, name, name)
			}
			if fd.MapKey().Kind() != protoreflect.StringKind {
				return nil, fmt.Errorf("path %s: %s has keys of type %s, only string keys can be looked up", text, name, fd.MapKey().Kind())
			}
			s.isKey = true
			s.key, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
			rest = rest[len(quoted)+2:]
			p.leaf, md = fd.MapValue(), fd.MapValue().Message()
		case fd.IsList():
			return nil, fmt.Errorf("path %s: %s is a list, a path leads to one value", text, name)
		case strings.HasPrefix(rest, "["):
			return nil, fmt.Errorf("path %s: %s is no map", text, name)
		}
		p.steps = append(p.steps, s)
		if rest == "" {
			break
		}
		rest = strings.TrimPrefix(rest, ".")
	}
	if k := p.leaf.Kind(); k != protoreflect.StringKind && k != protoreflect.BytesKind {
		return nil, fmt.Errorf("path %s: leads to a %s, want a string or bytes", text, k)
	}
	return p, nil
}

// String returns the path as it was written.
func (p *Path) String() string { return p.text }

// Leaf is the descriptor of the field the path ends at; of a map, its value.
func (p *Path) Leaf() protoreflect.FieldDescriptor { return p.leaf }

// Lookup returns the value the path leads to in src, as a part of src, and
// whether there is one. Of several, the last one counts, as it does for a
// protobuf decoder. It does not look into messages that the path does not pass.
func (p *Path) Lookup(src []byte) (value []byte, found bool, err error) {
	return lookup(src, p.steps)
}

func lookup(src []byte, steps []pathStep) (value []byte, found bool, err error) {
	s := steps[0]
	for i := 0; i < len(src); {
		f, after, err := whole(src, i)
		if err != nil {
			return nil, false, err
		}
		i = after
		if f.num != s.num || f.typ != protowire.BytesType {
			continue
		}
		v, ok := src[f.body:f.end], true
		if s.isKey {
			if v, ok, err = entry(v, s.key); err != nil {
				return nil, false, err
			}
		}
		if ok && len(steps) > 1 {
			if v, ok, err = lookup(v, steps[1:]); err != nil {
				return nil, false, err
			}
		}
		if ok {
			value, found = v, true
		}
	}
	return value, found, nil
}

// entry returns the value of a map entry if key is its key.
func entry(src []byte, key string) (value []byte, ok bool, err error) {
	ok = key == "" // an entry without a key has the empty one
	for i := 0; i < len(src); {
		f, after, err := whole(src, i)
		if err != nil {
			return nil, false, err
		}
		i = after
		if f.typ == protowire.BytesType {
			switch f.num {
			case 1:
				ok = string(src[f.body:f.end]) == key
			case 2:
				value = src[f.body:f.end]
			}
		}
	}
	return value, ok, nil
}
