package rewrite

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Class is the kind of content that a field holds, in the caller's own numbering. Zero means
// no class: a plan never reads such a field.
type Class uint16

// An Edit appends to dst the new content of a field of class c, whose content was value, and
// returns dst. If it returns dst as it got it, the field becomes empty. It must not keep or change
// value, nor the bytes that dst already has.
//
// The error [ErrDrop] removes the field, tag included. Any other error ends
// [Plan.Apply], which returns it as it is.
type Edit func(dst []byte, c Class, value []byte) ([]byte, error)

// ErrDrop is the error that an [Edit] returns, not wrapped, to remove the field.
var ErrDrop = errors.New("drop this field")

// A Found is a classified field of a message.
type Found struct {
	Class Class
	Value []byte // part of the message, not a copy
}

// A Plan knows where the classified fields of one message type are. The nil Plan is the plan for a
// type without classified fields. A Plan is immutable and safe for concurrent use.
type Plan struct {
	root  *node
	paths []ClassifiedPath
}

// node is what a plan knows about one message type.
type node struct {
	low    []step                     // :: field number → step; the zero step is "copy"
	high   map[protowire.Number]*step // numbers too large for low
	absent []absentField
}

// absentField is a field for which messages without it call the edit, too.
type absentField struct {
	num   protowire.Number
	class Class
}

// step says what to do with one field: edit it if it has a class, descend into it if it is a
// message that leads to a class, otherwise copy it. A field that comes with another wire type than
// the schema says is an unknown field to a decoder, and copied as well.
type step struct {
	class  Class
	packed packing // of a list of numbers; only a [Shape] uses it
	into   *node   // of a length-delimited message
	group  *node   // of a message that is encoded as a group
}

// maxLow is the largest field number for which a node spends a slice entry.
const maxLow = 255

// step returns what to do with the field num, nil or the zero step for "copy".
func (n *node) step(num protowire.Number) *step {
	if int(num) < len(n.low) {
		return &n.low[num]
	}
	if n.high == nil {
		return nil
	}
	return n.high[num]
}

// Apply appends src to dst, with the content of every classified field replaced by what edit makes
// of it, and returns dst. It copies all other bytes as they are, whether or not the schema knows
// them. After an error the content of dst beyond its old length is undefined.
//
// Apply does not keep src, which must not overlap dst. It allocates only if dst is too small.
func (p *Plan) Apply(dst, src []byte, edit Edit) ([]byte, error) {
	if p == nil {
		return append(dst, src...), nil
	}
	w := editor{dst: dst, src: src, edit: edit}
	end, err := w.message(p.root, 0, len(src), 0, 0)
	if err != nil {
		return dst, err
	}
	w.flush(end)
	return w.dst, nil
}

// An editor reads src and edits it into dst or, without an edit, collects the classified fields. It
// lasts for one message and belongs to one goroutine.
//
// The bytes from src[run:] up to the current place are not in dst yet. This run grows until something
// must change. So a message in which nothing changes is copied in one piece, and run says whether a
// message changed: it is where it was before, if nothing did.
//
// A length stands before the content that it counts. field writes the old length first, and corrects it
// when the content is complete.
type editor struct {
	src   []byte
	dst   []byte
	run   int
	edit  Edit
	found []Found
	room  []byte // scratch space for absent fields
}

// flush copies the run up to src[:to].
func (w *editor) flush(to int) {
	w.dst = append(w.dst, w.src[w.run:to]...)
	w.run = to
}

// message reads the message of type n in src[i:end]. If group is not zero, the message ends with
// that end-group tag instead. It returns the offset after the message, the tag not included.
func (w *editor) message(n *node, i, end int, group protowire.Number, depth int) (int, error) {
	if depth > maxDepth {
		return 0, malformed(i, "nested too deep")
	}
	src := w.src[:end]
	begin := i
	for i < end {
		f, ok := short(src, i)
		if !ok {
			var err error
			if f, err = next(src, i); err != nil {
				return 0, err
			}
		}
		s := n.step(f.num)
		switch f.typ {
		case protowire.BytesType:
			if s != nil && (s.class != 0 || s.into != nil) {
				if err := w.field(s, i, f, depth); err != nil {
					return 0, err
				}
			}
			i = f.end
		case protowire.StartGroupType:
			if s != nil && s.group != nil {
				// A group has no length that a change inside it would make wrong.
				at, err := w.message(s.group, f.end, end, f.num, depth+1)
				if err != nil {
					return 0, err
				}
				if f, err = next(src, at); err != nil {
					return 0, err
				}
				i = f.end
			} else {
				after, err := skipGroup(src, f.end, f.num, depth+1)
				if err != nil {
					return 0, err
				}
				i = after
			}
		case protowire.EndGroupType:
			if group == 0 || f.num != group {
				return 0, malformed(i, fmt.Sprintf("end of group %d, which was not open", f.num))
			}
			return i, w.add(n, begin, i)
		default:
			i = f.end
		}
	}
	if group != 0 {
		return 0, malformed(end, fmt.Sprintf("group %d is not closed", group))
	}
	return end, w.add(n, begin, end)
}

// add adds to the well-formed message in src[begin:end] the absent fields for which the edit
// returns content.
func (w *editor) add(n *node, begin, end int) error {
	for _, a := range n.absent {
		if w.edit == nil || has(w.src[:end], begin, a.num) {
			continue
		}
		v, err := w.edit(w.room[:0], a.class, nil)
		if err == ErrDrop || err == nil && len(v) == 0 {
			continue
		}
		if err != nil {
			return err
		}
		w.room = v
		w.flush(end)
		w.dst = protowire.AppendBytes(protowire.AppendTag(w.dst, a.num, protowire.BytesType), v)
	}
	return nil
}

// has reports whether the well-formed message src[i:] has the field num.
func has(src []byte, i int, num protowire.Number) bool {
	for i < len(src) {
		f, after, err := whole(src, i)
		if err != nil || f.num == num {
			return err == nil
		}
		i = after
	}
	return false
}

// field edits, or descends into, the length-delimited field f that starts at
// src[start:].
func (w *editor) field(s *step, start int, f field, depth int) error {
	run := w.run
	body := len(w.dst) + f.body - run // where in dst the content will begin, after a flush
	switch {
	case s.into != nil:
		if _, err := w.message(s.into, f.body, f.end, 0, depth+1); err != nil {
			return err
		}
		if w.run == run {
			return nil // nothing changed inside
		}
	case w.edit == nil:
		w.found = append(w.found, Found{s.class, w.src[f.body:f.end]})
		return nil
	default:
		w.flush(f.body)
		dst, err := w.edit(w.dst, s.class, w.src[f.body:f.end])
		if err == ErrDrop { // an Edit returns it unwrapped
			w.dst = w.dst[:body-(f.body-start)]
			w.run = f.end
			return nil
		}
		if err != nil {
			return err
		}
		w.dst, w.run = dst, f.end
	}
	// The old length stands before body. The tail of the content, src[run:end], is not in dst yet, but counts.
	was := f.end - f.body
	is := len(w.dst) - body + f.end - w.run
	if is != was {
		w.setLength(body, lengthSize(w.src, start, f.body), is)
	}
	return nil
}

// lengthSize returns how many bytes the length takes that stands, after the tag, at the end of
// src[start:body].
func lengthSize(src []byte, start, body int) int {
	for src[start] >= 0x80 {
		start++
	}
	return body - start - 1
}

// zeros is room for a length that grows.
var zeros [10]byte

// setLength replaces the length before dst[body:], which takes size bytes, by n. It moves the
// bytes after the length if n takes more or fewer.
func (w *editor) setLength(body, size, n int) {
	if size == 1 && n < 0x80 { // as nearly always
		w.dst[body-1] = byte(n)
		return
	}
	need := protowire.SizeVarint(uint64(n))
	if need != size {
		tail := len(w.dst)
		if need > size {
			w.dst = append(w.dst, zeros[:need-size]...)
		}
		copy(w.dst[body+need-size:], w.dst[body:tail])
		w.dst = w.dst[:tail+need-size]
	}
	protowire.AppendVarint(w.dst[body-size:body-size], uint64(n))
}

// Find appends the classified fields of src to found, in the order of the wire, and returns found.
// The values are parts of src, not copies. Find fails with a [MalformedError] even if src is
// malformed only after the last classified field, but it does not look into messages that lead to
// no class. The nil Plan checks nothing.
func (p *Plan) Find(found []Found, src []byte) ([]Found, error) {
	if p == nil {
		return found, nil
	}
	w := editor{src: src, found: found}
	_, err := w.message(p.root, 0, len(src), 0, 0)
	return w.found, err
}
