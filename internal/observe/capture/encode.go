package capture

import (
	"encoding/binary"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// In the ring an event is a record: its length in 4 bytes, its number in 8 bytes, and then the bytes that [appendEvent]
// appends. In a block it is only these bytes, in which what the block has said before is not said again: see [packing].
const (
	recordLen  = 0
	recordSeq  = 4
	recordBody = 12
)

const (
	flagOwn = 1 << iota
	flagTruncated
	flagRedacted
	flagFrame // the payload is a frame; the record ends with its place in the chunk
	flagPassed
)

func appendString[S ~string | ~[]byte](b []byte, s S) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendRecord appends an event as a record, whose length and number the ring sets. With redact it overwrites secret
// metadata.
func appendRecord(b []byte, ev *Event, redact bool) []byte {
	return appendEvent(append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), ev, redact, nil)
}

// appendEvent appends an event to a record, or to the block of p.
func appendEvent(b []byte, ev *Event, redact bool, p *packing) []byte {
	var flags byte
	if ev.Own {
		flags |= flagOwn
	}
	if ev.Truncated {
		flags |= flagTruncated
	}
	if ev.Redacted {
		flags |= flagRedacted
	}
	if ev.Passed {
		flags |= flagPassed
	}
	body := len(b)
	b = append(b, byte(ev.Kind), flags)
	b = p.appendNumbers(b, ev)
	b = binary.AppendUvarint(b, uint64(ev.Leg))
	b, at := p.open(b)
	b = appendString(b, ev.Method)
	b = appendString(b, ev.Backend)
	b = p.fold(b, at)
	switch ev.Kind {
	case Start:
		b = binary.AppendUvarint(b, uint64(ev.Timeout))
		b, at = p.open(b)
		b = binary.AppendUvarint(b, uint64(ev.Peer.PID))
		b = binary.AppendUvarint(b, uint64(ev.Peer.UID))
		b = appendString(b, ev.Peer.Name)
		b = appendMetadata(b, ev.Metadata, redact, body)
		return p.fold(b, at)
	case Request, Reply:
		b = binary.AppendUvarint(b, uint64(ev.Size))
		return p.appendPayload(b, ev)
	case End:
		b, at = p.open(b)
		b = binary.AppendUvarint(b, uint64(ev.Code))
		b = appendString(b, ev.Message)
		b = appendString(b, ev.Details)
	case Changed:
		return appendString(b, ev.Change.encode())
	default:
		b, at = p.open(b)
	}
	b = appendMetadata(b, ev.Metadata, redact, body)
	return p.fold(b, at)
}

const recordFlags = recordBody + 1 // offset of the flags

// appendMetadata appends pairs of key and value, with the secret ones overwritten. The event begins at body.
func appendMetadata(b []byte, md metadata.MD, redact bool, body int) []byte {
	at, n := len(b), 0
	b = append(b, 0) // how many pairs
	if redact || len(md) < 2 {
		for key, values := range md {
			b, n = appendPairs(b, key, values, redact && SecretKey(key), body), n+len(values)
		}
	} else {
		var room [16]string
		for _, key := range sortedKeys(room[:0], md) { // so that a block can find that it is the same again
			b, n = appendPairs(b, key, md[key], false, body), n+len(md[key])
		}
	}
	if n < 0x80 {
		b[at] = byte(n)
		return b
	}
	return slices.Replace(b, at, at+1, binary.AppendUvarint(nil, uint64(n))...)
}

// sortedKeys appends the keys of md to keys, which is empty, in their order.
func sortedKeys(keys []string, md metadata.MD) []string {
	for key := range md {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func appendPairs(b []byte, key string, values []string, secret bool, body int) []byte {
	for _, v := range values {
		b = appendString(b, key)
		b = appendString(b, v)
		if secret && len(v) > 0 {
			fill(b[len(b)-len(v):])
			b[body+1] |= flagRedacted
		}
	}
	return b
}

// reader parses events. If a record or block is cut short, it yields zeros, and b is nil.
type reader struct {
	b     []byte
	names map[string]string      // strings that repeat, so that each is allocated only once
	known map[string]metadata.MD // likewise, metadata
	alone bool                   // nothing follows the metadata
}

func newReader() reader {
	return reader{names: map[string]string{}, known: map[string]metadata.MD{}}
}

func (r *reader) uint() uint64 {
	x, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b = nil
		return 0
	}
	r.b = r.b[n:]
	return x
}

func (r *reader) fixed() uint64 {
	if len(r.b) < 8 {
		r.b = nil
		return 0
	}
	x := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return x
}

func (r *reader) int() int64 {
	x := r.uint()
	return int64(x>>1) ^ -int64(x&1)
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.b = nil
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.b = nil
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// name returns a string that is likely to repeat.
func (r *reader) name() string {
	b := r.bytes()
	if s, ok := r.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(r.names) < 4096 {
		r.names[s] = s
	}
	return s
}

func (r *reader) metadata() metadata.MD {
	if r.alone && len(r.b) > 1 {
		if md, ok := r.known[string(r.b)]; ok {
			r.b = r.b[len(r.b):]
			return md
		}
	}
	all := r.b
	n := r.uint()
	if n == 0 {
		return nil
	}
	md := make(metadata.MD, min(n, 64))
	for range n {
		if r.b == nil {
			break
		}
		key := r.name()
		if OfConnection(key) { // the same for all calls
			md[key] = append(md[key], r.name())
		} else {
			md[key] = append(md[key], string(r.bytes()))
		}
	}
	if r.alone && r.b != nil && len(r.b) == 0 && r.known != nil {
		if len(r.known) >= 256 {
			clear(r.known)
		}
		r.known[string(all)] = md
	}
	return md
}

// decode reads a record into ev. Events may share their metadata. The payload of ev is a part of the record.
func (r *reader) decode(record []byte, ev *Event) {
	r.b, r.alone = record[recordBody:], true
	r.event(ev, nil)
	ev.Seq = binary.LittleEndian.Uint64(record[recordSeq:])
}

// event reads an event of a record, or of the block of u.
func (r *reader) event(ev *Event, u *unpacking) {
	*ev = Event{Kind: Kind(r.byte())}
	flags := r.byte()
	ev.Own, ev.Truncated, ev.Redacted = flags&flagOwn != 0, flags&flagTruncated != 0, flags&flagRedacted != 0
	ev.Passed = flags&flagPassed != 0
	u.numbers(r, ev)
	ev.Leg = int(r.uint())
	u.group(r, func() { ev.Method, ev.Backend = r.name(), r.name() })
	switch ev.Kind {
	case Start:
		ev.Timeout = time.Duration(r.uint())
		u.group(r, func() {
			ev.Peer = Peer{PID: int(r.uint()), UID: int(r.uint()), Name: r.name()}
			ev.Metadata = r.metadata()
		})
	case Request, Reply:
		ev.Size = int(r.uint())
		ev.Payload = u.payload(r, ev)
	case End:
		u.group(r, func() {
			ev.Code = codes.Code(r.uint())
			ev.Message = string(r.bytes())
			if d := r.bytes(); len(d) > 0 {
				ev.Details = d
			}
			ev.Metadata = r.metadata()
		})
	case Changed:
		ev.Change = decodeChange(r.bytes())
	default:
		u.group(r, func() { ev.Metadata = r.metadata() })
	}
}
