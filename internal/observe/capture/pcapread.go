package capture

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/internal/transport"
)

// pcapDecoder reads the pcapng files that we write. Each event ends with a packet whose comment holds
// the parts of the event that HTTP/2 has no place for.
type pcapDecoder struct {
	r     *bufio.Reader
	flows map[flowKey]*flow
	paths map[legID]string // :: leg under way → method
}

// flowKey is one direction of a connection.
type flowKey struct {
	iface uint32
	ports uint32
	addrs uint64
}

// flow is the data of one direction since the latest event.
type flow struct {
	data   bytes.Buffer        // what no event is made of yet
	body   []byte              // DATA of the event
	fields []hpack.HeaderField // of its latest HEADERS
}

func newPcapDecoder(r *bufio.Reader) *pcapDecoder {
	return &pcapDecoder{r: r, flows: map[flowKey]*flow{}, paths: map[legID]string{}}
}

const maxBlock = 1 << 20 // of a packet with a comment of 64 KiB

// read returns kind and content of the next block.
func (d *pcapDecoder) read() (uint32, []byte, error) {
	var head [8]byte
	if n, err := io.ReadFull(d.r, head[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return 0, nil, io.EOF
		}
		return 0, nil, io.ErrUnexpectedEOF
	}
	kind, size := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if size < 12 || size%4 != 0 || size > maxBlock {
		return 0, nil, errOther
	}
	b, err := readN(d.r, int(size)-8)
	if err != nil {
		return 0, nil, err
	}
	if binary.LittleEndian.Uint32(b[len(b)-4:]) != size {
		return 0, nil, errOther
	}
	return kind, b[:len(b)-4], nil
}

func (d *pcapDecoder) begin() (FileHeader, error) {
	kind, b, err := d.read()
	if err != nil || kind != blockSection {
		return FileHeader{}, errOther
	}
	h, ok := sectionHeader(b)
	if !ok {
		return FileHeader{}, errOther
	}
	return h, nil
}

func sectionHeader(b []byte) (h FileHeader, ok bool) {
	if len(b) < 16 || binary.LittleEndian.Uint32(b) != byteOrder {
		return h, false
	}
	about, ok := commentOf(b[16:], commentFile)
	return h, ok && json.Unmarshal([]byte(about), &h) == nil && h.Version > 0
}

// commentOf returns the last comment among the options of a block that begins with prefix, without that. Others may have added
// comments of their own.
func commentOf(b []byte, prefix string) (comment string, ok bool) {
	for len(b) >= 4 {
		code, size := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		padded := (size + 3) &^ 3
		if code == optEnd || len(b)-4 < padded {
			break
		}
		if code == optComment && bytes.HasPrefix(b[4:4+size], []byte(prefix)) {
			comment, ok = string(b[4+len(prefix):4+size]), true
		}
		b = b[4+padded:]
	}
	return comment, ok
}

func (d *pcapDecoder) next(ev *Event) error {
	for {
		kind, b, err := d.read()
		if err != nil {
			return err
		}
		switch kind {
		case blockSection: // concatenated captures
			if _, ok := sectionHeader(b); !ok {
				return errOther
			}
			clear(d.flows)
		case blockStats:
			if len(b) < 12 {
				return errOther
			}
			comment, _ := commentOf(b[12:], commentEvent)
			switch fields := parseComment(comment); fields["kind"] {
			case "missed":
				*ev = Event{Kind: Missed, Time: packetTime(b[4:]), Missed: number(fields["missed"]), Seq: number(fields["seq"])}
				return nil
			case "change":
				text, err := base64.StdEncoding.DecodeString(fields["change"])
				if c := decodeChange(text); err == nil && c != nil {
					*ev = Event{Kind: Changed, Time: packetTime(b[4:]), Seq: number(fields["seq"]), Backend: c.Backend, Change: c}
					return nil
				}
			}
		case blockPacket:
			done, err := d.packet(b, ev)
			if done || err != nil {
				return err
			}
		}
	}
}

func packetTime(b []byte) time.Time {
	return time.Unix(0, int64(uint64(binary.LittleEndian.Uint32(b))<<32|uint64(binary.LittleEndian.Uint32(b[4:]))))
}

// packet takes in a packet, and reports whether it completes an event.
func (d *pcapDecoder) packet(b []byte, ev *Event) (bool, error) {
	if len(b) < 20 {
		return false, errOther
	}
	size := int(binary.LittleEndian.Uint32(b[12:]))
	padded := (size + 3) &^ 3
	if size < 40 || size > len(b)-20 || padded > len(b)-20 {
		return false, errOther
	}
	ip := b[20 : 20+size]
	key := flowKey{
		iface: binary.LittleEndian.Uint32(b),
		ports: binary.BigEndian.Uint32(ip[20:]),
		addrs: binary.BigEndian.Uint64(ip[12:]),
	}
	f := d.flows[key]
	if f == nil || ip[33]&tcpSYN != 0 {
		f = &flow{}
		d.flows[key] = f
	}
	f.data.Write(ip[40:])
	comment, ok := commentOf(b[20+padded:], commentEvent)
	if !ok {
		return false, nil
	}
	err := f.read()
	if err == nil {
		err = d.event(parseComment(comment), f, packetTime(b[4:]), ev)
	}
	return err == nil, err
}

// read reads the frames of an event.
func (f *flow) read() error {
	if bytes.HasPrefix(f.data.Bytes(), []byte(http2.ClientPreface)) {
		f.data.Next(len(http2.ClientPreface))
	}
	f.body, f.fields = nil, nil
	frames := http2.NewFramer(nil, &f.data)
	for f.data.Len() > 0 {
		frame, err := frames.ReadFrame()
		if err != nil {
			return errOther
		}
		switch frame := frame.(type) {
		case *http2.DataFrame:
			f.body = append(f.body, frame.Data()...)
		case *http2.HeadersFrame:
			if f.fields, err = hpack.NewDecoder(0, nil).DecodeFull(frame.HeaderBlockFragment()); err != nil {
				return errOther
			}
		}
	}
	return nil
}

// parseComment parses the first line of a comment: words, and key=value.
func parseComment(comment string) map[string]string {
	line, _, _ := strings.Cut(comment, "\n")
	fields := map[string]string{}
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimLeft(line, " ") {
		end := strings.IndexAny(line, " =")
		if end < 0 {
			fields[line] = ""
			break
		}
		key := line[:end]
		if line[end] == ' ' {
			fields[key] = ""
			line = line[end:]
			continue
		}
		line = line[end+1:]
		if quoted, err := strconv.QuotedPrefix(line); err == nil {
			fields[key], _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
			line = line[len(quoted):]
			continue
		}
		value, rest, _ := strings.Cut(line, " ")
		fields[key], line = value, rest
	}
	return fields
}

func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

// event makes an event from a comment and the data of the flow.
func (d *pcapDecoder) event(c map[string]string, f *flow, when time.Time, ev *Event) error {
	has := func(flag string) bool { _, ok := c[flag]; return ok }
	*ev = Event{
		Kind: kindOf(c["kind"]), Seq: number(c["seq"]), Call: number(c["call"]), Leg: int(number(c["leg"])), Mono: time.Duration(number(c["mono"])),
		Time: when, Backend: c["backend"], Own: has("own"), Again: has("again"), Truncated: has("truncated"), Redacted: has("redacted"),
		Timeout: time.Duration(number(c["timeout"])), Size: int(number(c["size"])),
		Peer: Peer{PID: int(number(c["pid"])), UID: int(number(c["uid"])), Name: c["name"]},
	}
	id := legID{ev.Call, ev.Leg}
	var err error
	switch ev.Kind {
	case Start:
		d.paths[id] = f.get(":path")
		ev.Metadata, err = f.metadata(number(c["md"]))
		if has("authority") {
			if ev.Metadata == nil {
				ev.Metadata = metadata.MD{}
			}
			ev.Metadata[":authority"] = []string{f.get(":authority")}
		}
	case Header:
		ev.Metadata, err = f.metadata(number(c["md"]))
	case Request, Reply:
		if len(f.body) < 5 || int(binary.BigEndian.Uint32(f.body[1:])) != len(f.body)-5 {
			return fmt.Errorf("event %d has an incomplete message: %w", ev.Seq, errOther)
		}
		ev.Payload = f.body[5:]
	case End:
		ev.Code, ev.Message = codes.Code(number(f.get("grpc-status"))), transport.DecodeMessage(f.get("grpc-message"))
		if ev.Details, err = base64.RawStdEncoding.DecodeString(f.get("grpc-status-details-bin")); err == nil && len(ev.Details) == 0 {
			ev.Details = nil
		}
		if err == nil {
			ev.Metadata, err = f.metadata(number(c["md"]))
		}
	default:
		return fmt.Errorf("a packet has the unknown kind %q: %w", c["kind"], errOther)
	}
	if ev.Method = d.paths[id]; ev.Method == "" {
		ev.Method = c["method"]
	}
	if ev.Kind == End {
		delete(d.paths, id)
	}
	return err
}

func (f *flow) get(name string) string {
	for _, h := range f.fields {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// metadata returns the last n header fields as metadata.
func (f *flow) metadata(n uint64) (metadata.MD, error) {
	if n == 0 {
		return nil, nil
	}
	if n > uint64(len(f.fields)) {
		return nil, fmt.Errorf("a packet has %d header fields instead of %d: %w", len(f.fields), n, errOther)
	}
	md := metadata.MD{}
	for _, h := range f.fields[len(f.fields)-int(n):] {
		v := h.Value
		if strings.HasSuffix(h.Name, "-bin") {
			b, err := base64.RawStdEncoding.DecodeString(v)
			if err != nil {
				return nil, fmt.Errorf("header %s: %w", h.Name, err)
			}
			v = string(b)
		}
		md[h.Name] = append(md[h.Name], v)
	}
	return md, nil
}
