package capture

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/metadata"

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
	frames  bytes.Buffer  // what a leg sends in an event: HTTP/2 as gRPC uses it
	framer  *http2.Framer // writes there, and so never fails
	scratch []byte
	comment []byte
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
	e := &pcapEncoder{schema: schema, changes: rewrites{schema: schema}}
	e.framer = http2.NewFramer(&e.frames, nil)
	return e
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
	dst, _ = e.iface(dst, "")
	for _, b := range h.Backends {
		dst, _ = e.iface(dst, b.Name)
	}
	dst, at := startBlock(dst, blockNames) // after the interfaces: Wireshark opens the file either way, but saves no other
	dst = appendHost(dst, e.host(""), "criproxy")
	for _, b := range h.Backends {
		dst = appendHost(dst, e.host(b.Name), b.Name)
	}
	return endBlock(endOptions(dst), at)
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
	settings := []http2.Setting{{ID: http2.SettingHeaderTableSize, Val: 0}, {ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1}}
	e.frames.WriteString(http2.ClientPreface)
	_ = e.framer.WriteSettings(settings...)
	dst = e.send(dst, c, ev.Time, forth, nil)
	_ = e.framer.WriteSettings(settings...)
	_ = e.framer.WriteSettingsAck()
	dst = e.send(dst, c, ev.Time, back, nil)
	_ = e.framer.WriteSettingsAck()
	return e.send(dst, c, ev.Time, forth, nil), c
}

// send appends packets that carry the frames; the last one has the comment.
func (e *pcapEncoder) send(dst []byte, c *tcpConn, when time.Time, dir int, comment []byte) []byte {
	dst = c.appendSegments(dst, when, dir, e.frames.Bytes(), comment)
	e.frames.Reset()
	return dst
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
	e.requestHeaders(s, &start)
	return e.send(dst, s.conn, ev.Time, forth, nil), s
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
	var s *pcapStream
	if ev.Kind == Start {
		dst, s = e.open(dst, ev)
	} else {
		dst, s = e.stream(dst, ev)
	}
	dir, md := back, 0
	switch ev.Kind {
	case Start:
		dir, md = forth, e.requestHeaders(s, ev)
	case Request:
		m := e.schema.Method(ev.Method)
		s.halfShut = s.halfShut || m != nil && !m.ClientStreams
		dir = forth
		e.message(s.id, ev.Payload, s.halfShut)
	case Header:
		md = e.replyHeaders(s, ev.Metadata)
	case Reply:
		if !s.headed {
			e.replyHeaders(s, nil)
			dst = e.send(dst, s.conn, ev.Time, back, nil)
		}
		e.message(s.id, ev.Payload, false)
	case End:
		if !s.halfShut {
			_ = e.framer.WriteData(s.id, true, nil)
			dst = e.send(dst, s.conn, ev.Time, forth, nil)
		}
		md = e.trailers(s, ev)
		delete(e.streams, legID{ev.Call, ev.Leg})
	}
	comment := e.about(ev, md)
	if s.made {
		comment = strconv.AppendQuote(append(comment, " method="...), ev.Method)
	}
	for _, change := range e.changes.add(ev, e.header) {
		comment = append(append(comment, '\n'), change...)
	}
	e.comment = comment
	return e.send(dst, s.conn, ev.Time, dir, comment)
}

// about returns the comment of an event: its parts that HTTP/2 has no place for.
func (e *pcapEncoder) about(ev *Event, md int) []byte {
	b := e.comment[:0]
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

// dataSize is the length of DATA frames as gRPC sends them.
const dataSize = 16 << 10

// message writes a gRPC message as DATA frames.
func (e *pcapEncoder) message(stream uint32, payload []byte, last bool) {
	e.scratch = binary.BigEndian.AppendUint32(append(e.scratch[:0], 0), uint32(len(payload)))
	e.scratch = append(e.scratch, payload...)
	for rest := e.scratch; len(rest) > 0; {
		n := min(len(rest), dataSize)
		_ = e.framer.WriteData(stream, last && n == len(rest), rest[:n])
		rest = rest[n:]
	}
}

// headers writes a block of header fields: some, and then metadata, of which it returns the number of fields.
func (e *pcapEncoder) headers(s *pcapStream, last bool, fields []byte, md metadata.MD) int {
	block, n := appendMD(fields, md)
	_ = e.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: block, EndStream: last, EndHeaders: true})
	e.scratch = block
	return n
}

func (e *pcapEncoder) requestHeaders(s *pcapStream, ev *Event) int {
	authority := "localhost"
	if a := ev.Metadata[":authority"]; len(a) > 0 {
		authority = a[0]
	}
	b := append(e.scratch[:0], 0x80|3, 0x80|6) // :method POST, :scheme http
	b = appendField(b, ":path", ev.Method)
	b = appendField(b, ":authority", authority)
	b = appendField(b, "te", "trailers")
	if ev.Timeout > 0 {
		b = appendField(b, "grpc-timeout", transport.EncodeTimeout(ev.Timeout))
	}
	if len(ev.Metadata["content-type"]) == 0 {
		b = appendField(b, "content-type", "application/grpc")
	}
	return e.headers(s, false, b, ev.Metadata)
}

func (e *pcapEncoder) replyHeaders(s *pcapStream, md metadata.MD) int {
	s.headed = true
	b := append(e.scratch[:0], 0x80|8) // :status 200
	if len(md["content-type"]) == 0 {
		b = appendField(b, "content-type", "application/grpc")
	}
	return e.headers(s, false, b, md)
}

func (e *pcapEncoder) trailers(s *pcapStream, ev *Event) int {
	b := e.scratch[:0]
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
	return e.headers(s, true, b, ev.Metadata)
}

// Header blocks in HPACK, of literals without indexing and without Huffman coding: each can be decoded alone, and its text is
// in the file as it is.

func appendField(b []byte, name, value string) []byte {
	b = appendHpackString(append(b, 0), name)
	return appendHpackString(b, value)
}

func appendHpackString(b []byte, s string) []byte {
	const prefix = 1<<7 - 1
	if n := len(s); n < prefix {
		b = append(b, byte(n))
	} else {
		b = binary.AppendUvarint(append(b, prefix), uint64(n-prefix))
	}
	return append(b, s...)
}

// appendMD appends metadata as header fields, and returns their number. It skips pseudo-header
// fields.
func appendMD(b []byte, md map[string][]string) ([]byte, int) {
	n := 0
	for _, key := range slices.Sorted(maps.Keys(md)) {
		if strings.HasPrefix(key, ":") {
			continue
		}
		for _, v := range md[key] {
			if strings.HasSuffix(key, "-bin") {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			b = appendField(b, key, v)
			n++
		}
	}
	return b, n
}
