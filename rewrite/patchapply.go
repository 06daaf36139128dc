package rewrite

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Apply appends src to dst with the changes made, and returns dst. It fails with a
// [MalformedError] if src is malformed on the way to a change; it does not look into messages that
// no change leads into. Apply does not keep src, which must not overlap dst.
func (p *Patch) Apply(dst, src []byte) ([]byte, error) {
	if p.err != nil {
		return dst, p.err
	}
	p.root.forget()
	if err := p.root.survey(src, 0); err != nil {
		return dst, err
	}
	return p.root.edit(dst, src, 0, true), nil
}

// forget clears what survey has noted about an earlier message.
func (n *patchNode) forget() {
	for _, f := range n.fields {
		f.last = -1
		f.into.forget()
		for _, e := range f.named {
			e.present = false
		}
	}
}

// survey notes where each field to be changed last occurs in src, and checks everything that edit
// will read. src begins at base in the whole message, and all noted offsets are those of the whole
// message. A message may occur in several pieces, which a decoder merges; new fields go into the last
// piece.
func (n *patchNode) survey(src []byte, base int) error {
	for i := 0; i < len(src); {
		f, after, err := whole(src, i)
		if err != nil {
			if m, ok := err.(*MalformedError); ok { // never wrapped
				return malformed(base+m.Offset, m.Reason)
			}
			return err
		}
		if p := n.field(f.num); p != nil && p.matches(f) {
			p.last = base + i
			body := src[f.body:f.end]
			switch p.kind {
			case patchInto:
				if err := p.into.survey(body, base+f.body); err != nil {
					return err
				}
			case patchEntries:
				key, _, err := parseEntry(body)
				if err != nil {
					return malformed(base+f.body, "a map entry: "+err.Error())
				}
				if e := p.find(key); e != nil {
					e.present = true
				}
			}
		}
		i = after
	}
	return nil
}

// matches reports whether f has the wire type that a decoder expects of the field.
func (p *patchField) matches(f field) bool {
	if p.kind == patchValue {
		return f.typ == p.typ
	}
	return f.typ == protowire.BytesType
}

func (p *patchField) find(key []byte) *patchEntry {
	for _, e := range p.named {
		if e.key == string(key) {
			return e
		}
	}
	return nil
}

// edit appends src, which survey has checked, with the changes. final says whether src is the
// last piece of its message.
func (n *patchNode) edit(dst, src []byte, base int, final bool) []byte {
	run := 0 // src[run:i] is still to be copied
	for i := 0; i < len(src); {
		f, after, _ := whole(src, i) // survey has checked it
		p := n.field(f.num)
		if p == nil || !p.matches(f) {
			i = after
			continue
		}
		dst = append(dst, src[run:i]...)
		was := src[i:after]
		body := src[f.body:f.end]
		isLast := base+i == p.last
		switch p.kind {
		case patchInto:
			dst = appendChanged(dst, was, body, p.into.edit(nil, body, base+f.body, isLast))
		case patchValue:
			dst = append(dst, p.value...)
		case patchItems:
			if isLast {
				dst = p.appendItems(dst)
			}
		case patchEntries:
			dst = p.appendEntry(dst, was, body)
			if isLast {
				dst = p.appendNew(dst)
			}
		}
		i, run = after, after
	}
	dst = append(dst, src[run:]...)
	if final {
		for _, p := range n.fields {
			if p.last < 0 {
				dst = p.appendMissing(dst)
			}
		}
	}
	return dst
}

// appendMissing appends a field that the message does not have.
func (p *patchField) appendMissing(dst []byte) []byte {
	switch p.kind {
	case patchInto:
		if body := p.into.edit(nil, nil, 0, true); len(body) > 0 {
			dst = protowire.AppendBytes(protowire.AppendTag(dst, p.num, protowire.BytesType), body)
		}
		return dst
	case patchValue:
		return append(dst, p.value...)
	case patchItems:
		return p.appendItems(dst)
	default:
		return p.appendNew(dst)
	}
}

func (p *patchField) appendItems(dst []byte) []byte {
	for _, item := range p.items {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, p.num, protowire.BytesType), item)
	}
	return dst
}

// appendEntry appends the entry was, whose content is body, with its change made.
func (p *patchField) appendEntry(dst, was, body []byte) []byte {
	key, _, _ := parseEntry(body) // survey has read it
	e := p.find(key)
	switch {
	case e == nil:
		return append(dst, was...)
	case e.remove:
		return dst
	}
	inside := patchNode{[]*patchField{{num: 2, kind: patchValue, typ: protowire.BytesType, value: entryValue(e.value), last: -1}}}
	_ = inside.survey(body, 0) // parseEntry has read it
	return appendChanged(dst, was, body, inside.edit(nil, body, 0, true))
}

// appendNew appends the entries whose keys the message does not have.
func (p *patchField) appendNew(dst []byte) []byte {
	for _, e := range p.named {
		if e.present || e.remove {
			continue
		}
		body := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), e.key)
		body = append(body, entryValue(e.value)...)
		dst = protowire.AppendBytes(protowire.AppendTag(dst, p.num, protowire.BytesType), body)
	}
	return dst
}

func entryValue(v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), v)
}

// appendChanged appends the length-delimited field was, whose content was body, with the content
// changed. A length that stays the same keeps its encoding.
func appendChanged(dst, was, body, changed []byte) []byte {
	head := was[:len(was)-len(body)]
	if len(changed) == len(body) {
		return append(append(dst, head...), changed...)
	}
	_, _, tag := protowire.ConsumeTag(head)
	return protowire.AppendBytes(append(dst, head[:tag]...), changed)
}
