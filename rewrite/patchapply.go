package rewrite

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Apply appends src to dst with the changes made, and returns dst. Malformed input
// is an error where a change passes by it. Apply does not keep src, which must not
// overlap dst.
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

func (n *patchNode) forget() {
	for _, f := range n.fields {
		f.last = -1
		f.into.forget()
		for _, e := range f.named {
			e.seen = false
		}
	}
}

// survey notes where in src, which begins at base, the fields to be changed stand
// last, and checks all that edit will walk over. A message may be there in several
// pieces, which a decoder puts together; what is new goes into the last one.
func (n *patchNode) survey(src []byte, base int) error {
	for i := 0; i < len(src); {
		f, after, err := whole(src, i)
		if err != nil {
			if m, ok := err.(*MalformedError); ok { // as it left next
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
					e.seen = true
				}
			}
		}
		i = after
	}
	return nil
}

// matches reports whether a decoder would take f for the field.
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

// edit appends src, which survey has passed over, with the changes. final is
// whether src is the last piece of its message.
func (n *patchNode) edit(dst, src []byte, base int, final bool) []byte {
	run := 0 // src[run:i] is still to be copied
	for i := 0; i < len(src); {
		f, after, _ := whole(src, i) // survey has seen it whole
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

// appendMissing appends a field that is nowhere in the message.
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

// appendEntry appends the entry was, whose content is body, as it is to be.
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

// appendNew appends the entries that were not there.
func (p *patchField) appendNew(dst []byte) []byte {
	for _, e := range p.named {
		if e.seen || e.remove {
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

// appendChanged appends the length-delimited field was, whose content was body and
// is now changed. The length keeps its form if it keeps its value.
func appendChanged(dst, was, body, changed []byte) []byte {
	head := was[:len(was)-len(body)]
	if len(changed) == len(body) {
		return append(append(dst, head...), changed...)
	}
	_, _, tag := protowire.ConsumeTag(head)
	return protowire.AppendBytes(append(dst, head[:tag]...), changed)
}
