package capture

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// pcapEncoder writes calls as HTTP/2 over made-up TCP connections: one interface for the clients and
// one for each backend.
type pcapEncoder struct {
	schema  *codec.Schema
	header  *FileHeader
	ifaces  map[string]uint32 // :: backend, "" for the clients → interface
	conns   map[connKey]*tcpConn
	streams map[legID]*pcapStream
	missed  uint64
	changes rewrites
	frames  []byte // scratch
	block   []byte
}

// connKey identifies a connection: a client's, or a backend's.
type connKey struct {
	backend string
	pid     int
}

// legID is a leg of a call.
type legID struct {
	call uint64
	leg  int
}

// pcapStream is a leg under way, as an HTTP/2 stream.
type pcapStream struct {
	conn     *tcpConn
	id       uint32
	halfShut bool // the client has ended its half
	headed   bool // the server has sent its headers
	made     bool // the stream is made up: the start of the leg is unknown
}

func newPcapEncoder(schema *codec.Schema) *pcapEncoder {
	return &pcapEncoder{schema: schema, changes: rewrites{schema: schema}}
}

const (
	commentFile  = "criproxy capture "
	commentEvent = "criproxy "
)

func (e *pcapEncoder) Begin(dst []byte, h *FileHeader) []byte {
	e.header = h
	e.ifaces, e.conns, e.streams = map[string]uint32{}, map[connKey]*tcpConn{}, map[legID]*pcapStream{}
	short := *h
	short.Descriptors = nil
	about, _ := json.Marshal(&short) // cannot fail: it holds strings and numbers
	dst = appendSection(dst, h.Program, commentFile+string(about))
	hosts := map[[4]byte]string{e.host(""): "criproxy"}
	order := [][4]byte{e.host("")}
	for _, b := range h.Backends {
		hosts[e.host(b.Name)] = b.Name
		order = append(order, e.host(b.Name))
	}
	dst, _ = e.iface(dst, "")
	for _, b := range h.Backends {
		dst, _ = e.iface(dst, b.Name)
	}
	return appendHosts(dst, hosts, order) // after the interfaces: Wireshark opens the file either way, but saves no other
}

// host returns the address of a backend, or of criproxy itself for "". It is from a network that is
// reserved for documentation.
func (e *pcapEncoder) host(backend string) [4]byte {
	if backend == "" {
		return [4]byte{192, 0, 2, 1}
	}
	return [4]byte{198, 51, 100, byte(1 + e.header.Order(backend)%250)}
}

// iface returns the interface of a backend or, for "", of the clients.
func (e *pcapEncoder) iface(dst []byte, backend string) ([]byte, uint32) {
	if i, ok := e.ifaces[backend]; ok {
		return dst, i
	}
	i := uint32(len(e.ifaces))
	e.ifaces[backend] = i
	name, socket := backend, e.header.address(backend)
	what := "from criproxy to the backend " + backend
	if backend == "" {
		name, socket, what = "clients", e.header.Listen, "from clients to criproxy"
	}
	if socket != "" {
		name += " " + socket
	}
	return appendInterface(dst, name, what), i
}

// conn returns the connection of a leg, and opens a new one if there is none.
func (e *pcapEncoder) conn(dst []byte, ev *Event) ([]byte, *tcpConn) {
	key := connKey{ev.Backend, 0}
	if ev.Leg == 0 {
		key = connKey{"", ev.Peer.PID}
	}
	if c := e.conns[key]; c != nil && c.stream < 1<<30 {
		return dst, c
	}
	dst, iface := e.iface(dst, key.backend)
	n := len(e.conns)
	c := &tcpConn{
		iface: iface, server: e.host(key.backend), client: e.host(""),
		port: uint16(1024 + n%60_000), sent: [2]uint32{1000, 1000}, stream: 1,
	}
	if ev.Leg == 0 {
		c.client = [4]byte{192, 0, 2, byte(2 + n%250)}
	}
	e.conns[key] = c
	dst = c.appendPacket(dst, ev.Time, forth, tcpSYN, nil, nil)
	dst = c.appendPacket(dst, ev.Time, back, tcpSYN|tcpACK, nil, nil)
	dst = c.appendPacket(dst, ev.Time, forth, tcpACK, nil, nil)
	dst = c.appendSegments(dst, ev.Time, forth, appendSettings([]byte(preface)), nil)
	hello := appendFrame(appendSettings(nil), frameSettings, flagAck, 0, nil)
	dst = c.appendSegments(dst, ev.Time, back, hello, nil)
	return c.appendSegments(dst, ev.Time, forth, appendFrame(nil, frameSettings, flagAck, 0, nil), nil), c
}

// stream returns the stream of an event's leg. It makes one up if the start of the leg is unknown.
func (e *pcapEncoder) stream(dst []byte, ev *Event) ([]byte, *pcapStream) {
	id := legID{ev.Call, ev.Leg}
	if s := e.streams[id]; s != nil {
		return dst, s
	}
	start := *ev
	start.Kind, start.Metadata = Start, nil
	dst, s := e.open(dst, ev)
	s.made = true
	frames, _ := e.requestHeaders(nil, s, &start)
	return s.conn.appendSegments(dst, ev.Time, forth, frames, nil), s
}

// maxStreams bounds how many legs may be under way. Without a bound, legs whose end was missed would
// pile up.
const maxStreams = 100_000

// open opens a stream.
func (e *pcapEncoder) open(dst []byte, ev *Event) ([]byte, *pcapStream) {
	if len(e.streams) >= maxStreams {
		clear(e.streams)
	}
	s := &pcapStream{}
	dst, s.conn = e.conn(dst, ev)
	s.id = s.conn.stream
	s.conn.stream += 2
	e.streams[legID{ev.Call, ev.Leg}] = s
	return dst, s
}

func (e *pcapEncoder) Append(dst []byte, ev *Event) []byte {
	if ev.Kind == Missed {
		e.missed += ev.Missed
		clear(e.changes.calls)
		return appendDropped(dst, ev.Time, e.missed, fmt.Sprintf("%skind=missed seq=%d missed=%d", commentEvent, ev.Seq, ev.Missed))
	}
	if ev.Kind == Changed { // in a block of statistics, which Wireshark skips
		return appendDropped(dst, ev.Time, e.missed, fmt.Sprintf("%skind=change seq=%d change=%s\n%s", commentEvent, ev.Seq, base64.StdEncoding.EncodeToString(ev.Change.encode()), ev.Change))
	}
	id := legID{ev.Call, ev.Leg}
	frames := e.frames[:0]
	var s *pcapStream
	dir, md := forth, 0
	switch ev.Kind {
	case Start:
		dst, s = e.open(dst, ev)
		frames, md = e.requestHeaders(frames, s, ev)
	case Request:
		dst, s = e.stream(dst, ev)
		m := e.schema.Method(ev.Method)
		s.halfShut = s.halfShut || m != nil && !m.ClientStreams
		frames = e.appendMessage(frames, s.id, ev, s.halfShut)
	case Header:
		dst, s = e.stream(dst, ev)
		dir, s.headed = back, true
		frames, md = e.replyHeaders(frames, s, ev)
	case Reply:
		dst, s = e.stream(dst, ev)
		dir = back
		if !s.headed {
			s.headed = true
			extra, _ := e.replyHeaders(nil, s, &Event{})
			dst = s.conn.appendSegments(dst, ev.Time, back, extra, nil)
		}
		frames = e.appendMessage(frames, s.id, ev, false)
	case End:
		dst, s = e.stream(dst, ev)
		dir = back
		if !s.halfShut {
			shut := appendFrame(nil, frameData, flagEndStream, s.id, nil)
			dst = s.conn.appendSegments(dst, ev.Time, forth, shut, nil)
		}
		frames, md = e.trailers(frames, s, ev)
		delete(e.streams, id)
	}
	e.frames = frames
	comment := e.comment(ev, md)
	if s.made {
		comment = strconv.AppendQuote(append(comment, " method="...), ev.Method)
	}
	for _, change := range e.changes.add(ev, e.header) {
		comment = append(append(comment, '\n'), change...)
	}
	e.block = comment
	return s.conn.appendSegments(dst, ev.Time, dir, frames, comment)
}

// comment returns the comment of an event: its parts that HTTP/2 has no place for.
func (e *pcapEncoder) comment(ev *Event, md int) []byte {
	b := e.block[:0]
	b = append(append(append(b, commentEvent...), "kind="...), ev.Kind.String()...)
	number := func(name string, v int64) { b = strconv.AppendInt(append(b, name...), v, 10) }
	number(" seq=", int64(ev.Seq))
	number(" call=", int64(ev.Call))
	number(" leg=", int64(ev.Leg))
	number(" mono=", int64(ev.Mono))
	number(" md=", int64(md))
	if ev.Backend != "" {
		b = append(b, " backend="...)
		b = strconv.AppendQuote(b, ev.Backend)
	}
	flag := func(name string, on bool) {
		if on {
			b = append(append(b, ' '), name...)
		}
	}
	flag("own", ev.Own)
	flag("again", ev.Again)
	flag("truncated", ev.Truncated)
	flag("redacted", ev.Redacted)
	switch ev.Kind {
	case Start:
		_, hasAuthority := ev.Metadata[":authority"]
		flag("authority", hasAuthority)
		if ev.Timeout > 0 {
			number(" timeout=", int64(ev.Timeout))
		}
		if ev.Peer.PID != 0 {
			number(" pid=", int64(ev.Peer.PID))
			number(" uid=", int64(ev.Peer.UID))
			b = strconv.AppendQuote(append(b, " name="...), ev.Peer.Name)
		}
	case Request, Reply:
		number(" size=", int64(ev.Size))
	}
	return b
}

// appendMessage appends a gRPC message as DATA frames.
func (e *pcapEncoder) appendMessage(b []byte, stream uint32, ev *Event, last bool) []byte {
	var head [5]byte
	binary.BigEndian.PutUint32(head[1:], uint32(len(ev.Payload)))
	prefix := head[:]
	rest := ev.Payload
	for {
		n := min(len(rest), dataSize-len(prefix))
		var flags byte
		if last && n == len(rest) {
			flags = flagEndStream
		}
		b = appendFrame(b, frameData, flags, stream, prefix)
		size := len(prefix) + n
		at := len(b) - len(prefix) - 9
		b[at], b[at+1], b[at+2] = byte(size>>16), byte(size>>8), byte(size)
		b = append(b, rest[:n]...)
		prefix, rest = nil, rest[n:]
		if len(rest) == 0 {
			return b
		}
	}
}

func (e *pcapEncoder) headers(b []byte, s *pcapStream, last bool, fields func(b []byte) ([]byte, int)) ([]byte, int) {
	flags := byte(flagEndHeaders)
	if last {
		flags |= flagEndStream
	}
	at := len(b)
	b = appendFrame(b, frameHeaders, flags, s.id, nil)
	b, md := fields(b)
	n := len(b) - at - 9
	b[at], b[at+1], b[at+2] = byte(n>>16), byte(n>>8), byte(n)
	return b, md
}

func (e *pcapEncoder) requestHeaders(b []byte, s *pcapStream, ev *Event) ([]byte, int) {
	return e.headers(b, s, false, func(b []byte) ([]byte, int) {
		authority := "localhost"
		if a := ev.Metadata[":authority"]; len(a) > 0 {
			authority = a[0]
		}
		b = append(b, 0x80|3, 0x80|6) // :method POST, :scheme http
		b = appendField(b, ":path", ev.Method)
		b = appendField(b, ":authority", authority)
		b = appendField(b, "te", "trailers")
		if ev.Timeout > 0 {
			b = appendField(b, "grpc-timeout", transport.EncodeTimeout(ev.Timeout))
		}
		if len(ev.Metadata["content-type"]) == 0 {
			b = appendField(b, "content-type", "application/grpc")
		}
		return appendMD(b, ev.Metadata)
	})
}

func (e *pcapEncoder) replyHeaders(b []byte, s *pcapStream, ev *Event) ([]byte, int) {
	return e.headers(b, s, false, func(b []byte) ([]byte, int) {
		b = append(b, 0x80|8) // :status 200
		if len(ev.Metadata["content-type"]) == 0 {
			b = appendField(b, "content-type", "application/grpc")
		}
		return appendMD(b, ev.Metadata)
	})
}

func (e *pcapEncoder) trailers(b []byte, s *pcapStream, ev *Event) ([]byte, int) {
	return e.headers(b, s, true, func(b []byte) ([]byte, int) {
		if !s.headed {
			b = append(b, 0x80|8)
			b = appendField(b, "content-type", "application/grpc")
		}
		b = appendField(b, "grpc-status", strconv.Itoa(int(ev.Code)))
		if ev.Message != "" {
			b = appendField(b, "grpc-message", transport.EncodeMessage(ev.Message))
		}
		if len(ev.Details) > 0 {
			b = appendField(b, "grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(ev.Details))
		}
		return appendMD(b, ev.Metadata)
	})
}
