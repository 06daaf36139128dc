package rewrite

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/suggest"
)

// A Path leads through singular fields and map keys to a value in a message, as in
//
//	config.annotations["kubernetes.io/target-runtime"]
//
// or to a whole list or map. It is immutable and safe for concurrent use.
type Path struct {
	text  string
	steps []pathStep
	leaf  protoreflect.FieldDescriptor
	md    protoreflect.MessageDescriptor
}

type pathStep struct {
	num   protowire.Number
	isKey bool // num is a map, and key the key of the wanted entry
	key   string
}

// ParseTextPath is [ParsePath] for a path that must lead to one string or bytes value.
func ParseTextPath(md protoreflect.MessageDescriptor, text string) (*Path, error) {
	p, err := ParsePath(md, text)
	if err == nil && !p.IsText() {
		err = fmt.Errorf("path %s does not lead to a string", text)
	}
	return p, err
}

// ParsePath resolves the path text against the message type md. Its error says which part of the
// path is wrong, with the likely correction.
func ParsePath(md protoreflect.MessageDescriptor, text string) (*Path, error) {
	p := &Path{text: text, md: md}
	for rest := text; ; {
		if md == nil {
			return nil, fmt.Errorf("path %s: %s is not a message, nothing can follow it", text, p.leaf.Name())
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
		case rest == "": // the end, whatever it is
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
			return nil, fmt.Errorf("path %s: %s is a list, nothing can follow it", text, name)
		case strings.HasPrefix(rest, "["):
			return nil, fmt.Errorf("path %s: %s is not a map", text, name)
		}
		p.steps = append(p.steps, s)
		if rest == "" {
			break
		}
		rest = strings.TrimPrefix(rest, ".")
	}
	return p, nil
}

// String returns the path as it was written.
func (p *Path) String() string { return p.text }

// Leaf returns the descriptor of the field at which the path ends: for a path to a map entry, that
// of the entry's value.
func (p *Path) Leaf() protoreflect.FieldDescriptor { return p.leaf }

// Fields returns the fields to which the path leads one after the other; the keys of maps are not among them.
func (p *Path) Fields() []protoreflect.FieldDescriptor {
	var all []protoreflect.FieldDescriptor
	md := p.md
	for _, s := range p.steps {
		fd := md.Fields().ByNumber(s.num)
		if all, md = append(all, fd), fd.Message(); s.isKey {
			md = fd.MapValue().Message()
		}
	}
	return all
}

// IsText reports whether the path leads to one string or bytes value.
func (p *Path) IsText() bool {
	k := p.leaf.Kind()
	return !p.leaf.IsList() && !p.leaf.IsMap() && (k == protoreflect.StringKind || k == protoreflect.BytesKind)
}

// Lookup returns the value to which a path to a string, bytes or message leads in src, and whether
// src has one. The value is a part of src, not a copy. Of several values the last one counts, as
// it does to a protobuf decoder. Lookup does not look into messages that the path does not pass,
// and fails with a [MalformedError].
func (p *Path) Lookup(src []byte) (value []byte, found bool, err error) {
	err = each(src, p.steps, func(f field, src []byte) error {
		if f.typ == protowire.BytesType {
			value, found = src[f.body:f.end], true
		}
		return nil
	})
	return value, found, err
}

// LookupVarint is [Path.Lookup] for a path to a field that is a varint on the wire: a bool, an
// enum, or an int32, int64, uint32 or uint64. A zero that is not on the wire counts as found if
// src has the message that would hold it.
func (p *Path) LookupVarint(src []byte) (value uint64, found bool, err error) {
	if last := len(p.steps) - 1; last > 0 {
		err = each(src, p.steps[:last], func(field, []byte) error {
			found = true
			return nil
		})
		if err != nil {
			return 0, false, err
		}
	}
	err = each(src, p.steps, func(f field, src []byte) error {
		if f.typ == protowire.VarintType {
			value, _ = varint(src, f.body)
			found = true
		}
		return nil
	})
	return value, found, err
}

// All calls yield with each item of the list of strings, bytes or messages to which a path leads
// in src, until yield fails. The items are parts of src, not copies.
func (p *Path) All(src []byte, yield func(value []byte) error) error {
	return each(src, p.steps, func(f field, src []byte) error {
		if f.typ != protowire.BytesType {
			return nil
		}
		return yield(src[f.body:f.end])
	})
}

// Entries calls yield with each entry of the map of strings to which a path leads in src, until
// yield fails. Keys and values are parts of src, not copies. A key may come twice: its last value
// counts.
func (p *Path) Entries(src []byte, yield func(key, value []byte) error) error {
	return p.All(src, func(entry []byte) error {
		key, value, err := parseEntry(entry)
		if err != nil {
			return err
		}
		return yield(key, value)
	})
}

// Append appends to dst a message that holds value at the end of the path and nothing else, and
// returns dst.
func (p *Path) Append(dst, value []byte) []byte {
	return append(dst, wrap(p.steps, value)...)
}

// AppendVarint is [Path.Append] for the fields of [Path.LookupVarint].
func (p *Path) AppendVarint(dst []byte, value uint64) []byte {
	last := len(p.steps) - 1
	leaf := protowire.AppendVarint(protowire.AppendTag(nil, p.steps[last].num, protowire.VarintType), value)
	return append(dst, wrap(p.steps[:last], leaf)...)
}

// wrap returns the message that holds value at the end of steps.
func wrap(steps []pathStep, value []byte) []byte {
	for i := len(steps) - 1; i >= 0; i-- {
		s := steps[i]
		if s.isKey {
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), s.key)
			value = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
		}
		value = protowire.AppendBytes(protowire.AppendTag(nil, s.num, protowire.BytesType), value)
	}
	return value
}

// each calls yield with every field to which steps lead, in the order of the wire, and with the
// bytes that the field's offsets refer to.
func each(src []byte, steps []pathStep, yield func(f field, src []byte) error) error {
	s := steps[0]
	for i := 0; i < len(src); {
		f, after, err := whole(src, i)
		if err != nil {
			return err
		}
		i = after
		if f.num != s.num {
			continue
		}
		at := src
		if s.isKey {
			if f.typ != protowire.BytesType {
				continue
			}
			entry := src[f.body:f.end]
			key, value, err := parseEntry(entry)
			if err != nil {
				return err
			}
			if string(key) != s.key {
				continue
			}
			at, f = value, field{num: f.num, typ: protowire.BytesType, end: len(value)}
		}
		if len(steps) > 1 {
			if f.typ == protowire.BytesType {
				if err := each(at[f.body:f.end], steps[1:], yield); err != nil {
					return err
				}
			}
			continue
		}
		if err := yield(f, at); err != nil {
			return err
		}
	}
	return nil
}

// parseEntry returns the key and the value of a map entry. One that is not on the wire is empty.
func parseEntry(src []byte) (key, value []byte, err error) {
	for i := 0; i < len(src); {
		f, after, err := whole(src, i)
		if err != nil {
			return nil, nil, err
		}
		i = after
		if f.typ == protowire.BytesType {
			switch f.num {
			case 1:
				key = src[f.body:f.end]
			case 2:
				value = src[f.body:f.end]
			}
		}
	}
	return key, value, nil
}
