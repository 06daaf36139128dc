// Package rude has peers for tests that send whatever HTTP/2 allows, and some of what it does not: a server and a client
// that write each header block field by field, without the checks of a library.
package rude

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A Field is a header field. The peer sends the name and the value as they are.
type Field = hpack.HeaderField

// Fields returns the fields with the given names and values, which alternate.
func Fields(all ...string) []Field {
	var fields []Field
	for i := 0; i < len(all); i += 2 {
		fields = append(fields, Field{Name: all[i], Value: all[i+1]})
	}
	return fields
}

// A Message is a half of a call: the request, or the reply.
type Message struct {
	Header  []Field  // nil: the reply is Trailers-Only, and Trailer is its only block
	Bodies  [][]byte // the messages of gRPC, without their prefixes
	Piece   int      // length of each DATA frame of a reply; zero: a message is one frame
	Trailer []Field  // of a reply
	Reset   error    // in place of an end, for a reply that was received
}

// Get returns the values of the fields with a name, in the header and the trailer.
func (m *Message) Get(name string) []string {
	var values []string
	for _, f := range append(m.Header[:len(m.Header):len(m.Header)], m.Trailer...) {
		if f.Name == name {
			values = append(values, f.Value)
		}
	}
	return values
}

// maxList is larger than any header list of a test.
const maxList = 64 << 20

// A conn is one end of a connection.
type conn struct {
	nc     net.Conn
	framer *http2.Framer
	hpack  *hpack.Encoder
	block  bytes.Buffer
	out    bytes.Buffer
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc}
	c.framer = http2.NewFramer(&c.out, nc)
	c.framer.AllowIllegalWrites = true
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = maxList
	c.hpack = hpack.NewEncoder(&c.block)
	return c
}

// say sends what was written to the framer.
func (c *conn) say() error {
	_, err := c.nc.Write(c.out.Bytes())
	c.out.Reset()
	return err
}

// fields writes a header block, in frames of 16 KiB.
func (c *conn) fields(id uint32, end bool, fields []Field) error {
	c.block.Reset()
	for _, f := range fields {
		if err := c.hpack.WriteField(f); err != nil {
			return err
		}
	}
	const frame = 16 << 10
	b := c.block.Bytes()
	first := b[:min(frame, len(b))]
	b = b[len(first):]
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(b) == 0, EndStream: end})
	for err == nil && len(b) > 0 {
		part := b[:min(frame, len(b))]
		b = b[len(part):]
		err = c.framer.WriteContinuation(id, len(b) == 0, part)
	}
	return err
}

// body writes a message. The tests send fewer bytes than the windows let them.
func (c *conn) body(id uint32, end bool, b []byte) error {
	return c.framer.WriteData(id, end, prefixed(b))
}

// prefixed returns a message after the prefix that gRPC gives it.
func prefixed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// next reads frames, and answers those of the connection, up to one that belongs to a call or answers a ping.
func (c *conn) next() (http2.Frame, error) {
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.framer.WriteSettingsAck() // say returns the error
				err = c.say()
			}
		case *http2.PingFrame:
			if f.IsAck() {
				return f, nil
			}
			_ = c.framer.WritePing(true, f.Data) // say returns the error
			err = c.say()
		case *http2.GoAwayFrame:
			return nil, fmt.Errorf("the other side ends the connection: %v %s", f.ErrCode, f.DebugData())
		case *http2.DataFrame:
			if n := len(f.Data()); n > 0 {
				_ = c.framer.WriteWindowUpdate(0, uint32(n)) // say returns the error
				err = c.say()
			}
			return f, err
		case *http2.MetaHeadersFrame, *http2.RSTStreamFrame:
			return f, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// split returns the messages in the DATA of a half of a call.
func split(b []byte) [][]byte {
	var all [][]byte
	for len(b) >= 5 {
		n := 5 + int(binary.BigEndian.Uint32(b[1:]))
		if n > len(b) {
			break
		}
		all, b = append(all, b[5:n]), b[n:]
	}
	return all
}

// Serve serves the connections of l until the test ends. It answers each call with what answer returns for the full name
// of the method, and the request. Calls of a connection are answered one after another.
func Serve(t testing.TB, l net.Listener, answer func(method string, request *Message) *Message) {
	t.Cleanup(func() { l.Close() }) // there is nothing else to do
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { nc.Close() })
			go func() {
				_ = newConn(nc).serve(answer) // the other side has gone, or sees that we have
				nc.Close()
			}()
		}
	}()
}

func (c *conn) serve(answer func(method string, request *Message) *Message) error {
	if _, err := io.CopyN(io.Discard, c.nc, int64(len(http2.ClientPreface))); err != nil {
		return err
	}
	_ = c.framer.WriteSettings() // say returns the error
	if err := c.say(); err != nil {
		return err
	}
	type half struct {
		request Message
		data    []byte
	}
	calls := map[uint32]*half{}
	for {
		f, err := c.next()
		if err != nil {
			return err
		}
		id, end := f.Header().StreamID, false
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			calls[id] = &half{request: Message{Header: append([]Field(nil), f.Fields...)}}
			end = f.StreamEnded()
		case *http2.DataFrame:
			if calls[id] != nil {
				calls[id].data = append(calls[id].data, f.Data()...)
			}
			end = f.StreamEnded()
		default:
			delete(calls, id)
		}
		if call := calls[id]; end && call != nil {
			delete(calls, id)
			call.request.Bodies = split(call.data)
			if err := c.answer(id, answer(call.request.Get(":path")[0], &call.request)); err != nil {
				return err
			}
		}
	}
}

func (c *conn) answer(id uint32, reply *Message) error {
	if reply.Header != nil {
		if err := c.fields(id, false, reply.Header); err != nil {
			return err
		}
	}
	var data [][]byte
	for _, b := range reply.Bodies {
		data = append(data, prefixed(b))
	}
	if reply.Piece > 0 {
		data = slices.Collect(slices.Chunk(bytes.Join(data, nil), reply.Piece))
	}
	for _, b := range data {
		if err := c.framer.WriteData(id, false, b); err != nil {
			return err
		}
	}
	if err := c.fields(id, true, reply.Trailer); err != nil {
		return err
	}
	return c.say()
}

// A Client is a connection to a server. It makes one call at a time.
type Client struct {
	*conn
	last uint32
}

// Dial connects to a unix socket.
func Dial(t testing.TB, socket string) *Client {
	t.Helper()
	nc, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() }) // there is nothing else to do
	c := &Client{conn: newConn(nc)}
	c.out.WriteString(http2.ClientPreface)
	_ = c.framer.WriteSettings() // the next call returns the error
	return c
}

// open sends the header of a call.
func (c *Client) open(method string, more []Field) (id uint32, err error) {
	c.last = max(c.last+2, 1) | 1
	return c.last, c.fields(c.last, false, append(Fields(":method", "POST", ":scheme", "http", ":path", method, ":authority", "localhost",
		"content-type", "application/grpc", "te", "trailers"), more...))
}

// Call makes a call with more fields in its header, and returns the reply.
func (c *Client) Call(method string, body []byte, more ...Field) (*Message, error) {
	id, err := c.open(method, more)
	if err != nil {
		return nil, err
	}
	if err := c.body(id, true, body); err != nil {
		return nil, err
	}
	return c.reply(id)
}

// Begin begins a call whose request says that it has n bytes, sends some of them, and returns when the server has read
// these. The function that it returns sends the rest, and returns the reply.
func (c *Client) Begin(method string, n int, some []byte) (end func(rest []byte) (*Message, error), err error) {
	id, err := c.open(method, nil)
	if err != nil {
		return nil, err
	}
	if err := c.framer.WriteData(id, false, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), some...)); err != nil {
		return nil, err
	}
	if err := c.framer.WritePing(false, [8]byte{}); err != nil { // a server reads frames in their order
		return nil, err
	}
	if err := c.say(); err != nil {
		return nil, err
	}
	for {
		if f, err := c.next(); err != nil {
			return nil, err
		} else if _, answered := f.(*http2.PingFrame); answered {
			return func(rest []byte) (*Message, error) {
				if err := c.framer.WriteData(id, true, rest); err != nil {
					return nil, err
				}
				return c.reply(id)
			}, nil
		}
	}
}

// reply sends what was written, and returns the reply to a call.
func (c *Client) reply(id uint32) (*Message, error) {
	if err := c.say(); err != nil {
		return nil, err
	}
	var reply Message
	var data []byte
	for {
		f, err := c.next()
		if err != nil {
			return nil, err
		}
		if f.Header().StreamID != id {
			continue // the rest of an earlier call
		}
		end := false
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if end = f.StreamEnded(); end {
				reply.Trailer = append(reply.Trailer, f.Fields...)
			} else {
				reply.Header = append(reply.Header, f.Fields...)
			}
		case *http2.DataFrame:
			data = append(data, f.Data()...)
			end = f.StreamEnded()
		case *http2.RSTStreamFrame:
			reply.Reset = fmt.Errorf("reset: %v", f.ErrCode)
			end = true
		}
		if end {
			reply.Bodies = split(data)
			return &reply, nil
		}
	}
}
