package transport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A rawPeer is one end of a connection, which sends the frames that a test wants.
type rawPeer struct {
	t      testing.TB
	nc     net.Conn
	out    bytes.Buffer // frames that say will send
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder

	reads    *http2.Framer
	goAwayIs func() (http2.ErrCode, string) // the GOAWAY that another goroutine has read
}

func newRawPeer(t testing.TB, nc net.Conn) *rawPeer {
	p := &rawPeer{t: t, nc: nc}
	p.framer = http2.NewFramer(&p.out, nil)
	p.framer.AllowIllegalWrites = true
	p.hpack = hpack.NewEncoder(&p.block)
	p.reads = http2.NewFramer(nil, nc)
	p.reads.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	t.Cleanup(func() { nc.Close() })
	return p
}

// rawClient connects to l and does the handshake.
func rawClient(t testing.TB, l net.Listener) *rawPeer {
	nc, err := net.Dial(l.Addr().Network(), l.Addr().String())
	require.NoError(t, err)
	p := newRawPeer(t, nc)
	p.out.WriteString(http2.ClientPreface)
	require.NoError(t, p.framer.WriteSettings())
	p.say()
	return p
}

// rawServer waits for a client, and does the handshake.
func rawServer(t testing.TB, l net.Listener) *rawPeer {
	nc, err := l.Accept()
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, nc, int64(len(http2.ClientPreface)))
	require.NoError(t, err)
	p := newRawPeer(t, nc)
	require.NoError(t, p.framer.WriteSettings())
	p.say()
	return p
}

// say sends the frames that were written to the framer.
func (p *rawPeer) say() error {
	_, err := p.nc.Write(p.out.Bytes())
	p.out.Reset()
	return err
}

// encode returns a header block.
func (p *rawPeer) encode(fields ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		require.NoError(p.t, p.hpack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return bytes.Clone(p.block.Bytes())
}

// request returns the header block of a call, with additional fields.
func (p *rawPeer) request(more ...string) []byte { return p.requestTo("/test.Service/Method", more...) }

// requestTo is request for another method.
func (p *rawPeer) requestTo(method string, more ...string) []byte {
	return p.encode(append([]string{
		":method", "POST", ":scheme", "http", ":path", method, ":authority", "localhost",
		"content-type", "application/grpc", "te", "trailers",
	}, more...)...)
}

func (p *rawPeer) headers(id uint32, end bool, block []byte) {
	require.NoError(p.t, p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: end}))
}

func (p *rawPeer) data(id uint32, end bool, b []byte) {
	require.NoError(p.t, p.framer.WriteData(id, end, b))
}

// call begins a call and sends its only request.
func (p *rawPeer) call(id uint32, request []byte) {
	p.headers(id, false, p.request())
	p.data(id, true, prefixed(request))
}

// prefixed returns a message with its prefix.
func prefixed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// next reads the next frame. It returns nil at the end of the connection.
func (p *rawPeer) next() http2.Frame {
	_ = p.nc.SetReadDeadline(time.Now().Add(patience))
	f, err := p.reads.ReadFrame()
	if err != nil {
		var timeout net.Error
		require.False(p.t, errors.As(err, &timeout) && timeout.Timeout(), "no frame has come")
		return nil
	}
	return f
}

// until reads up to the first frame that is good, and returns it, or nil if the connection ends
// first.
func (p *rawPeer) until(good func(http2.Frame) bool) http2.Frame {
	for {
		f := p.next()
		if f == nil || good(f) {
			return f
		}
	}
}

// goAway reads until the connection ends, and returns the reason in the peer's GOAWAY.
func (p *rawPeer) goAway() (code http2.ErrCode, why string) {
	p.t.Helper()
	if p.goAwayIs != nil {
		return p.goAwayIs()
	}
	for {
		f := p.next()
		if f == nil {
			return code, why
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			code, why = g.ErrCode, string(g.DebugData())
		}
	}
}

// reset reads until the peer resets a stream, and returns the error code.
func (p *rawPeer) reset(id uint32) http2.ErrCode {
	p.t.Helper()
	f := p.until(func(f http2.Frame) bool { _, ok := f.(*http2.RSTStreamFrame); return ok && f.Header().StreamID == id })
	require.NotNil(p.t, f, "the connection was closed")
	return f.(*http2.RSTStreamFrame).ErrCode
}

// status reads until a call has ended, and returns its trailers.
func (p *rawPeer) status(id uint32) map[string]string {
	p.t.Helper()
	f := p.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.MetaHeadersFrame)
		return ok && h.StreamID == id && h.StreamEnded()
	})
	require.NotNil(p.t, f, "the connection was closed")
	return fieldsOf(f.(*http2.MetaHeadersFrame))
}

// ends reads until all of these calls have ended, and returns their trailers.
func (p *rawPeer) ends(ids ...uint32) map[uint32]map[string]string {
	p.t.Helper()
	all := map[uint32]map[string]string{}
	for len(all) < len(ids) {
		f := p.until(func(f http2.Frame) bool {
			h, ok := f.(*http2.MetaHeadersFrame)
			return ok && slices.Contains(ids, h.StreamID) && h.StreamEnded()
		})
		require.NotNil(p.t, f, "the connection was closed")
		all[f.Header().StreamID] = fieldsOf(f.(*http2.MetaHeadersFrame))
	}
	return all
}

func fieldsOf(h *http2.MetaHeadersFrame) map[string]string {
	all := map[string]string{}
	for _, f := range h.Fields {
		all[f.Name] = f.Value
	}
	return all
}
