package rewrite

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Patch is a set of changes to named fields of one message:
//
//	var p rewrite.Patch
//	p.SetVarint(shares, 1024)              // config.linux.resources.cpu_shares
//	p.SetEntry(annotations, "tier", "low") // config.annotations
//	out, err := p.Apply(nil, in)
//
// [Patch.Apply] copies all other bytes as they are. A changed field keeps its place. A new field
// follows the last one of its number, or goes to the end of its message; Apply adds messages that
// are missing on the way to it. The zero Patch changes nothing.
//
// No change may have a path through a map key, and no field may change in two ways, such as whole
// and inside: Apply then fails. One goroutine at a time may use a Patch.
type Patch struct {
	root patchNode
	err  error
}

// patchNode holds the changes inside one message.
type patchNode struct{ fields []*patchField }

// patchField is the change to one field. Its kind says which of into, value, items and named
// holds the change. Apply uses last as scratch: a Patch is for one goroutine at a time.
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
	key     string
	value   []byte
	remove  bool
	present bool // the message at hand has the key
}

// SetVarint sets a field that is a varint on the wire: a bool, an enum, or an int32, int64, uint32
// or uint64. Zero removes the field; the decoder of a field without presence then reads zero.
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
// that have a key in field 1 and a value in field 2. In a list it sets every item
// with that key.
func (p *Patch) SetEntry(at *Path, key, value string) {
	e := p.entry(at, key)
	e.value, e.remove = []byte(value), false
}

// RemoveEntry removes key from a map or list of the kinds that [Patch.SetEntry] takes.
func (p *Patch) RemoveEntry(at *Path, key string) {
	p.entry(at, key).remove = true
}

// entry returns the change of one entry of the map or list at a path, which it adds if there is none.
func (p *Patch) entry(at *Path, key string) *patchEntry {
	f := p.at(at, patchEntries)
	if e := f.find([]byte(key)); e != nil {
		return e
	}
	e := &patchEntry{key: key}
	f.named = append(f.named, e)
	return e
}

// at returns the change of the field at which a path ends, and adds the changes of the messages on the way. After a mistake,
// which Apply reports, it returns a change that belongs to no patch.
func (p *Patch) at(path *Path, kind patchKind) *patchField {
	n := &p.root
	for i, s := range path.steps {
		if s.isKey {
			p.err = fmt.Errorf("path %s: leads through a map key; a patch cannot change that", path)
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
			p.err = fmt.Errorf("path %s: the patch changes this field in two ways", path)
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

// Empty reports whether the patch has no changes.
func (p *Patch) Empty() bool { return len(p.root.fields) == 0 && p.err == nil }
