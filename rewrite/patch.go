package rewrite

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Patch is a set of changes to named fields of one message, made for one call:
//
//	var p rewrite.Patch
//	p.SetVarint(shares, 1024)              // config.linux.resources.cpu_shares
//	p.SetEntry(annotations, "tier", "low") // config.annotations
//	out, err := p.Apply(nil, in)
//
// Bytes that no change names are copied as they are. A field that changes keeps its place; a new
// one follows the last field of its number, or stands at the end of its message. Apply adds the
// messages that are missing on the way. The zero Patch changes nothing.
//
// A path that passes a map key is an error of Apply. One goroutine at a time may use a Patch.
type Patch struct {
	root patchNode
	err  error
}

// patchNode holds the changes inside one message.
type patchNode struct{ fields []*patchField }

// patchField is what is to be done with one field. Exactly one of into, value,
// entries and items is meant, by its kind.
type patchField struct {
	num  protowire.Number
	kind patchKind
	into patchNode // patchInto

	typ   protowire.Type // patchValue: the wire type a decoder takes
	value []byte         // patchValue: the field with its tag; nil removes it
	items [][]byte       // patchItems: contents, in order
	named []*patchEntry  // patchEntries

	last int // offset of the last occurrence in the message at hand, -1 if there is none
}

type patchKind int

const (
	patchInto patchKind = iota
	patchValue
	patchItems
	patchEntries
)

// patchEntry is one entry of a map, or of a list whose messages have a key in
// field 1 and a value in field 2.
type patchEntry struct {
	key    string
	value  []byte
	remove bool
	seen   bool // in the message at hand
}

// SetVarint sets a number, bool or enum. Zero removes it, which is the same to a
// decoder of a field without presence.
func (p *Patch) SetVarint(at *Path, v uint64) {
	var field []byte
	if v != 0 {
		field = protowire.AppendVarint(protowire.AppendTag(nil, at.last(), protowire.VarintType), v)
	}
	p.set(at, protowire.VarintType, field)
}

// SetString sets a string or bytes field. The empty string removes it.
func (p *Patch) SetString(at *Path, v string) {
	var field []byte
	if v != "" {
		field = protowire.AppendString(protowire.AppendTag(nil, at.last(), protowire.BytesType), v)
	}
	p.set(at, protowire.BytesType, field)
}

func (p *Patch) set(at *Path, typ protowire.Type, field []byte) {
	f := p.at(at, patchValue)
	f.typ, f.value = typ, field
}

// SetItems replaces all items of a list of messages, strings or bytes.
func (p *Patch) SetItems(at *Path, items [][]byte) { p.at(at, patchItems).items = items }

// SetEntry sets the value of key in a map of strings, or in a list of messages
// that have a key in field 1 and a value in field 2. Of a list it sets every item
// with that key.
func (p *Patch) SetEntry(at *Path, key, value string) {
	e := p.entry(at, key)
	e.value, e.remove = []byte(value), false
}

// RemoveEntry removes key from a map or list as [Patch.SetEntry] knows them.
func (p *Patch) RemoveEntry(at *Path, key string) {
	p.entry(at, key).remove = true
}

func (p *Patch) entry(at *Path, key string) *patchEntry {
	f := p.at(at, patchEntries)
	for _, e := range f.named {
		if e.key == key {
			return e
		}
	}
	e := &patchEntry{key: key}
	f.named = append(f.named, e)
	return e
}

// at returns the field that a path ends at.
func (p *Patch) at(path *Path, kind patchKind) *patchField {
	n := &p.root
	for i, s := range path.steps {
		if s.isKey {
			p.err = fmt.Errorf("path %s: passes a map, and cannot be changed", path)
			return &patchField{}
		}
		k := patchInto
		if i == len(path.steps)-1 {
			k = kind
		}
		f := n.field(s.num)
		if f == nil {
			f = &patchField{num: s.num, kind: k}
			n.fields = append(n.fields, f)
		} else if f.kind != k {
			p.err = fmt.Errorf("path %s: is changed in two ways", path)
			return &patchField{}
		}
		n = &f.into
		if i == len(path.steps)-1 {
			return f
		}
	}
	return &patchField{} // no path is empty
}

func (n *patchNode) field(num protowire.Number) *patchField {
	i := slices.IndexFunc(n.fields, func(f *patchField) bool { return f.num == num })
	if i < 0 {
		return nil
	}
	return n.fields[i]
}

// last returns the number of the field at which the path ends.
func (p *Path) last() protowire.Number { return p.steps[len(p.steps)-1].num }

// Empty reports whether there is nothing to change.
func (p *Patch) Empty() bool { return len(p.root.fields) == 0 && p.err == nil }
