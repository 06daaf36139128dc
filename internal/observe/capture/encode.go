package capture

import (
	"encoding/binary"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// In the ring an event is a record: its length in 4 bytes, its number in 8 bytes, and then the bytes
// that [appendEvent] appends. Records never leave this process.
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
)

func appendString[S ~string | ~[]byte](b []byte, s S) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendEvent appends an event as a record, whose length and number the ring sets. With redact it
// overwrites secret metadata.
func appendEvent(b []byte, ev *Event, redact bool) []byte {
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
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(ev.Kind), flags)
	b = binary.LittleEndian.AppendUint64(b, uint64(ev.Time.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(ev.Mono))
	b = binary.AppendUvarint(b, ev.Call)
	b = binary.AppendUvarint(b, uint64(ev.Leg))
	b = appendString(b, ev.Method)
	b = appendString(b, ev.Backend)
	switch ev.Kind {
	case Start:
		b = binary.AppendUvarint(b, uint64(ev.Peer.PID))
		b = binary.AppendUvarint(b, uint64(ev.Peer.UID))
		b = appendString(b, ev.Peer.Name)
		b = binary.AppendUvarint(b, uint64(ev.Timeout))
	case Request, Reply:
		return append(binary.AppendUvarint(b, uint64(ev.Size)), ev.Payload...)
	case End:
		b = binary.AppendUvarint(b, uint64(ev.Code))
		b = appendString(b, ev.Message)
		b = appendString(b, ev.Details)
	case Changed:
		return append(b, ev.Change.encode()...)
	}
	return appendMetadata(b, ev.Metadata, redact)
}

const recordFlags = recordBody + 1 // offset of the flags

// appendMetadata appends pairs of key and value, with the secret ones overwritten.
func appendMetadata(b []byte, md metadata.MD, redact bool) []byte {
	n := 0
	for _, values := range md {
		n += len(values)
	}
	b = binary.AppendUvarint(b, uint64(n))
	for key, values := range md {
		secret := redact && SecretKey(key)
		for _, v := range values {
			b = appendString(b, key)
			b = appendString(b, v)
			if secret && len(v) > 0 {
				fill(b[len(b)-len(v):])
				b[recordFlags] |= flagRedacted
			}
		}
	}
	return b
}

// reader parses a record. A record that is cut short would be a bug of ours; it yields zeros.
type reader struct {
	b     []byte
	names map[string]string // strings that repeat, so that each is allocated only once
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
		switch key {
		case "content-type", "user-agent", ":authority", "grpc-accept-encoding": // the same for all calls
			md[key] = append(md[key], r.name())
		default:
			md[key] = append(md[key], string(r.bytes()))
		}
	}
	return md
}

// decode reads a record into ev. The payload of ev is a part of the record.
func decode(record []byte, names map[string]string, ev *Event) {
	*ev = Event{Seq: binary.LittleEndian.Uint64(record[recordSeq:])}
	r := reader{b: record[recordBody+2:], names: names}
	ev.Kind = Kind(record[recordBody])
	flags := record[recordFlags]
	ev.Own, ev.Truncated, ev.Redacted = flags&flagOwn != 0, flags&flagTruncated != 0, flags&flagRedacted != 0
	ev.Time = time.Unix(0, int64(r.fixed()))
	ev.Mono = time.Duration(r.fixed())
	ev.Call = r.uint()
	ev.Leg = int(r.uint())
	ev.Method = r.name()
	ev.Backend = r.name()
	switch ev.Kind {
	case Start:
		ev.Peer = Peer{PID: int(r.uint()), UID: int(r.uint()), Name: r.name()}
		ev.Timeout = time.Duration(r.uint())
		ev.Metadata = r.metadata()
	case Request, Reply:
		ev.Size = int(r.uint())
		ev.Payload = r.b
	case Header:
		ev.Metadata = r.metadata()
	case End:
		ev.Code = codes.Code(r.uint())
		ev.Message = string(r.bytes())
		if d := r.bytes(); len(d) > 0 {
			ev.Details = d
		}
		ev.Metadata = r.metadata()
	case Changed:
		ev.Change = decodeChange(r.b)
	}
}
