package rewrite

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Shape checks whether a decoder would accept a message of one type. It is immutable and safe
// for concurrent use.
//
// It is for messages that are going to be joined: a message that is cut off would swallow the
// beginning of the next one, and a decoder that rejects one part rejects the whole.
type Shape struct {
	root *node
	text []protoreflect.FieldDescriptor // :: class → the string field
}

// NewShape returns the shape of messages of type md.
func NewShape(md protoreflect.MessageDescriptor) *Shape {
	s := &Shape{text: []protoreflect.FieldDescriptor{nil}}
	s.root = s.node(md, nodes{})
	return s
}

// node returns the node of a message, and makes it unless it is among those made.
func (s *Shape) node(md protoreflect.MessageDescriptor, made nodes) *node {
	n := made[md.FullName()]
	if n != nil {
		return n
	}
	n = &node{}
	made[md.FullName()] = n // messages may contain themselves
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		switch kind := fd.Kind(); {
		case kind == protoreflect.GroupKind:
			n.set(fd.Number(), step{group: s.node(fd.Message(), made)})
		case kind == protoreflect.MessageKind: // or a map, whose entries are messages
			n.set(fd.Number(), step{into: s.node(fd.Message(), made)})
		case kind == protoreflect.StringKind && len(s.text) <= math.MaxUint16:
			n.set(fd.Number(), step{class: Class(len(s.text))})
			s.text = append(s.text, fd)
		case kind == protoreflect.StringKind:
			n.set(fd.Number(), step{class: math.MaxUint16}) // Mend reports it under another field's name
		case kind != protoreflect.BytesKind && fd.IsList():
			n.set(fd.Number(), step{packed: packedAs(kind)})
		}
	}
	return n
}

// packing is the wire type of the numbers of a packed list. Zero means that the field is not such a list.
type packing uint8

const (
	packedVarint packing = 1 + iota
	packedFixed32
	packedFixed64
)

func packedAs(kind protoreflect.Kind) packing {
	switch kind {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return packedFixed32
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return packedFixed64
	default:
		return packedVarint
	}
}

// Check returns a [MalformedError] if a decoder would reject src, however deep inside src the
// mistake is. It also reports whether all text in src is UTF-8: Go's decoder rejects other text,
// which [Shape.Mend] replaces. Check does not allocate unless it fails.
//
// Check does not look into fields that the schema does not have, or has with another wire type:
// nor does a decoder.
func (s *Shape) Check(src []byte) (utf8 bool, err error) {
	c := checker{src: src}
	_, err = c.message(s.root, 0, len(src), 0, 0)
	return !c.badText, err
}

// A Checker does the work of [Shape.Check] for a message that comes in pieces. It joins pieces
// only as far as one field of the message spans them, and allocates only for that. One goroutine
// at a time may use it.
type Checker struct {
	shape *Shape
	rest  []byte // the end of the pieces so far: the beginning of a field
	at    int    // the offset of rest in the message
	bad   bool   // some text is not UTF-8
}

// Checker returns a Checker for a new message.
func (s *Shape) Checker() Checker { return Checker{shape: s} }

// Add checks the next piece of the message. It does not keep the piece. After an error the caller
// must not use the Checker again.
func (c *Checker) Add(piece []byte) error {
	if len(c.rest) > 0 {
		c.rest = append(c.rest, piece...)
		piece = c.rest
	}
	n := 0
	for n < len(piece) {
		_, _, size := protowire.ConsumeField(piece[n:])
		if size < 0 {
			if errors.Is(protowire.ParseError(size), io.ErrUnexpectedEOF) {
				break // it goes on in the next piece
			}
			return malformed(c.at+n, protowire.ParseError(size).Error())
		}
		n += size
	}
	if err := c.check(piece[:n]); err != nil {
		return err
	}
	c.at += n
	c.rest = append(c.rest[:0], piece[n:]...)
	return nil
}

// End returns what [Shape.Check] returns for the whole message.
func (c *Checker) End() (utf8 bool, err error) {
	err = c.check(c.rest) // fails if there is a rest: it is a field that was cut off
	return !c.bad, err
}

// check checks some whole fields of the message. The offset in its error is that of the whole message.
func (c *Checker) check(fields []byte) error {
	utf8, err := c.shape.Check(fields)
	c.bad = c.bad || !utf8
	if err == nil {
		return nil
	}
	if bad := (*MalformedError)(nil); errors.As(err, &bad) {
		bad.Offset += c.at
	}
	return err
}

// Mend appends src, which [Shape.Check] has found well formed, to dst and returns dst. In string
// fields, keys of maps among them, it replaces each run of bytes that is not UTF-8 by U+FFFD, and
// calls mended with the descriptor of the field. All other bytes stay as they are.
func (s *Shape) Mend(dst, src []byte, mended func(protoreflect.FieldDescriptor)) ([]byte, error) {
	plan := Plan{root: s.root}
	return plan.Apply(dst, src, func(dst []byte, c Class, value []byte) ([]byte, error) {
		if utf8.Valid(value) {
			return append(dst, value...), nil
		}
		mended(s.text[c])
		return append(dst, bytes.ToValidUTF8(value, []byte("\uFFFD"))...), nil
	})
}

// check checks the packed numbers in src[i:].
func (p packing) check(src []byte, i int) error {
	if p == packedVarint {
		for i < len(src) {
			after := skipVarint(src, i)
			if after < 0 {
				return malformed(i, "bad varint in a list of numbers")
			}
			i = after
		}
		return nil
	}
	if size := 4 << (p - packedFixed32); (len(src)-i)%size != 0 {
		return malformed(i, fmt.Sprintf("a list of numbers of %d bytes each is %d bytes long", size, len(src)-i))
	}
	return nil
}
