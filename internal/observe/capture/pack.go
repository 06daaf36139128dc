package capture

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/wire"
)

// Most of what clients ask for is as it was: the same items are in each list, on both legs, and statuses repeat. So an event
// in a block refers to what the block has said before. Numbers are differences from the event before. Groups of fields,
// and the longer fields of messages, are pieces: at first with their bytes, and then only with a number.

const (
	minPiece = 8  // bytes of the shortest group that has a number
	minField = 48 // likewise, of a field of a message
)

// packing is what a block has said so far, as its writer knows it. Nil stands for a record: nothing was said before.
type packing struct {
	shapes *shapes
	known  map[uint64]uint64 // :: hash of a piece → its number, from 1
	last   numbers
}

// numbers are those of an event that are written as differences.
type numbers struct {
	seq, call  uint64
	time, mono int64
}

func newPacking(s *shapes) *packing { return &packing{shapes: s, known: map[uint64]uint64{}} }

func appendInt(b []byte, x int64) []byte {
	return binary.AppendUvarint(b, uint64(x)<<1^uint64(x>>63))
}

func (p *packing) appendNumbers(b []byte, ev *Event) []byte {
	now := numbers{ev.Seq, ev.Call, ev.Time.UnixNano(), int64(ev.Mono)}
	if p == nil {
		b = binary.LittleEndian.AppendUint64(b, uint64(now.time))
		b = binary.LittleEndian.AppendUint64(b, uint64(now.mono))
		return binary.AppendUvarint(b, now.call)
	}
	was := p.last
	p.last = now
	b = appendInt(b, int64(now.seq-was.seq))
	b = appendInt(b, now.time-was.time)
	b = appendInt(b, (now.mono-was.mono)-(now.time-was.time)) // zero, unless somebody sets the clock
	return appendInt(b, int64(now.call-was.call))
}

// open begins a group.
func (p *packing) open(b []byte) (group []byte, at int) {
	if p == nil {
		return b, 0
	}
	return append(b, 0), len(b)
}

// fold ends the group that began at. If the block has said it before, a reference replaces it.
func (p *packing) fold(b []byte, at int) []byte {
	if p == nil {
		return b
	}
	content := b[at+1:]
	if len(content) < minPiece {
		return b
	}
	if n := p.number(p.shapes.bytes(content)); n > 0 {
		return binary.AppendUvarint(b[:at], n)
	}
	return b
}

// number returns the number of the piece with this hash, or zero if it is new, and has a number from now on.
func (p *packing) number(hash uint64) uint64 {
	if n := p.known[hash]; n > 0 {
		return n
	}
	p.known[hash] = uint64(len(p.known)) + 1
	return 0
}

// appendPayload appends a message: field by field, unless it is short.
func (p *packing) appendPayload(b []byte, ev *Event) []byte {
	message := ev.Payload
	if p == nil {
		return append(b, message...)
	}
	b = binary.AppendUvarint(b, uint64(len(message)))
	s := p.shapes.of(ev)
	if len(message) < 4*minField {
		return p.appendPiece(b, message, p.shapes.message(s, message))
	}
	from := 0 // of what is not appended yet: short fields
	at := 0
	for field, err := range wire.Fields(message) {
		if err == nil && len(field.Raw) >= minField {
			b = p.appendPiece(b, message[from:at], p.shapes.bytes(message[from:at]))
			b = p.appendPiece(b, field.Raw, p.shapes.field(s.field(field.Number), field))
			from = at + len(field.Raw)
		}
		at += len(field.Raw)
	}
	return p.appendPiece(b, message[from:], p.shapes.bytes(message[from:]))
}

// appendPiece appends a part of a message that has a hash.
func (p *packing) appendPiece(b, piece []byte, hash uint64) []byte {
	if len(piece) == 0 {
		return b
	}
	if len(piece) >= minPiece {
		if n := p.number(hash); n > 0 {
			return binary.AppendUvarint(b, n)
		}
	}
	return appendString(append(b, 0), piece)
}

// unpacking is what a block has said so far, as its reader knows it. Nil stands for a record.
type unpacking struct {
	pieces [][]byte
	last   numbers
	from   numbers // messages of events with a smaller seq or time are left out
	lead   *lead   // says which others are; nil: none
	large  Large   // likewise, of the large ones
	known  []bool  // :: piece → a message that was to be read only if it says something new has it
}

func (u *unpacking) numbers(r *reader, ev *Event) {
	if u == nil {
		ev.Time = time.Unix(0, int64(r.fixed()))
		ev.Mono = time.Duration(r.fixed())
		ev.Call = r.uint()
		return
	}
	u.last.seq += uint64(r.int())
	passed := r.int()
	u.last.time += passed
	u.last.mono += passed + r.int()
	u.last.call += uint64(r.int())
	ev.Seq, ev.Call, ev.Time, ev.Mono = u.last.seq, u.last.call, time.Unix(0, u.last.time), time.Duration(u.last.mono)
}

// group reads a group with the function read.
func (u *unpacking) group(r *reader, read func()) {
	if u == nil {
		read()
		return
	}
	if n := r.uint(); n > 0 {
		rest := r.b
		if r.b = u.piece(n); r.b != nil {
			r.alone = true
			read()
			r.alone = false
		}
		if r.b != nil {
			r.b = rest
		}
		return
	}
	content := r.b
	if read(); r.b != nil {
		u.learn(content[:len(content)-len(r.b)])
	}
}

// learn remembers a piece, and returns its number, zero if it is too short for one.
func (u *unpacking) learn(piece []byte) uint64 {
	if len(piece) < minPiece {
		return 0
	}
	u.pieces = append(u.pieces, piece)
	return uint64(len(u.pieces))
}

// piece returns the piece with number n, nil if there is none.
func (u *unpacking) piece(n uint64) []byte {
	if n > uint64(len(u.pieces)) {
		return nil
	}
	return u.pieces[n-1]
}

// payload reads the message of an event. In a record, it is all that is left.
func (u *unpacking) payload(r *reader, ev *Event) []byte {
	if u == nil {
		return r.b
	}
	size := r.uint()
	if r.b == nil || size > maxRecord {
		r.b = nil
		return nil
	}
	wanted, ifNew := u.lead.wants(ev)
	if size > largeMessage {
		wanted, ifNew = wanted && (u.large == LargeAll || ev.front()), ifNew || u.large == LargeNew
	}
	wanted = wanted && u.last.time >= u.from.time && u.last.seq >= u.from.seq
	begin, known := r.b, len(u.pieces)
	message, news := u.message(r, size, wanted && !ifNew, wanted && ifNew)
	if news {
		r.b, u.pieces = begin, u.pieces[:known]
		message, _ = u.message(r, size, true, false)
	}
	ev.Truncated = ev.Truncated || message == nil && size > 0
	return message
}

// message reads a message of size bytes, and returns it if it is wanted. If ifNew is true, news says whether it has a piece that
// is not known yet.
func (u *unpacking) message(r *reader, size uint64, wanted, ifNew bool) (message []byte, news bool) {
	for uint64(len(message)) < size {
		n := r.uint()
		piece := []byte(nil)
		if n > 0 {
			piece = u.piece(n)
		} else {
			piece = r.bytes()
			n = u.learn(piece)
		}
		if uint64(len(message)+len(piece)) > size || len(piece) == 0 {
			r.b = nil
			return nil, false
		}
		if ifNew && n > 0 {
			u.known = append(u.known, make([]bool, len(u.pieces)-len(u.known))...)
			news = news || !u.known[n-1]
			u.known[n-1] = true
		}
		if !wanted {
			size -= uint64(len(piece))
			continue
		}
		if message == nil {
			if uint64(len(piece)) == size {
				return piece, news
			}
			message = make([]byte, 0, size)
		}
		message = append(message, piece...)
	}
	return message, news
}

// shapes find the maps in messages. Runtimes that are written in Go send the entries of a map in another order each time,
// which means nothing: a decoder does not keep it, either. So a block takes two fields as the same that differ only there.
type shapes struct {
	schema *codec.Schema
	seed   maphash.Seed
	known  map[protoreflect.FullName]*shape
}

// A shape says where a type of messages has maps. Nil stands for none.
type shape struct {
	fields []*shapeField // :: number of a field → what it holds; short
}

type shapeField struct {
	maps bool   // the field has the entries of a map
	into *shape // the field has messages with this shape
}

func newShapes(schema *codec.Schema) *shapes {
	return &shapes{schema: schema, seed: maphash.MakeSeed(), known: map[protoreflect.FullName]*shape{}}
}

// of returns the shape of the message of an event.
func (s *shapes) of(ev *Event) *shape {
	if md := MessageOf(s.schema, ev.Method, ev.Kind); md != nil {
		return s.shape(md)
	}
	return nil
}

func (s *shapes) shape(md protoreflect.MessageDescriptor) *shape {
	if known, ok := s.known[md.FullName()]; ok {
		return known
	}
	s.known[md.FullName()] = nil // messages may contain themselves: their maps are then compared in order
	made := &shape{}
	found := false
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if fd.Number() >= 128 || fd.Message() == nil || fd.Kind() == protoreflect.GroupKind {
			continue
		}
		f := &shapeField{maps: fd.IsMap()}
		if !f.maps {
			f.into = s.shape(fd.Message())
		}
		if f.maps || f.into != nil {
			for len(made.fields) <= int(fd.Number()) {
				made.fields = append(made.fields, nil)
			}
			made.fields[fd.Number()] = f
			found = true
		}
	}
	if !found {
		made = nil
	}
	s.known[md.FullName()] = made
	return made
}

func (s *shape) field(n protowire.Number) *shapeField {
	if s == nil || int(n) >= len(s.fields) {
		return nil
	}
	return s.fields[n]
}

func (s *shapes) bytes(b []byte) uint64 { return maphash.Bytes(s.seed, b) }

// field returns a hash of a field: the same for entries of maps in another order.
func (s *shapes) field(of *shapeField, f wire.Field) uint64 {
	if of == nil || of.into == nil || f.Type != protowire.BytesType {
		return s.bytes(f.Raw)
	}
	content := f.Bytes()
	return mix(s.bytes(f.Raw[:len(f.Raw)-len(content)]), s.message(of.into, content))
}

// message is field, for a message.
func (s *shapes) message(of *shape, b []byte) uint64 {
	if of == nil {
		return s.bytes(b)
	}
	h := uint64(len(b))
	from, at := 0, 0 // b[from:at] is not in h yet
	var entries uint64
	for field, err := range wire.Fields(b) {
		end := at + len(field.Raw)
		f := of.field(field.Number)
		if err != nil || field.Type != protowire.BytesType || f == nil {
			at = end
			continue
		}
		if from < at {
			h, entries = mix(mix(h, entries), s.bytes(b[from:at])), 0
		}
		if f.maps {
			entries += s.bytes(field.Raw)
		} else {
			h, entries = mix(mix(h, entries), s.field(f, field)), 0
		}
		from, at = end, end
	}
	return mix(mix(h, entries), s.bytes(b[from:]))
}

func mix(h, x uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, x^0xd1b54a32d192ed03)
	return hi ^ lo ^ bits.RotateLeft64(h, 17)
}
