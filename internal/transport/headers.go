package transport

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A headerBlock is a received header block: the fields of a HEADERS frame and the CONTINUATION
// frames that follow it. It belongs to the reader, which reuses it for the next block.
//
// The decoder must read each block to its end, even one that is too long or malformed: it changes the table for the next one.
// add keeps the fields that fit into max. Of a reply that is too long it also keeps what says how the call has ended.
type headerBlock struct {
	stream  uint32
	end     bool // END_STREAM is set
	fields  []hpack.HeaderField
	regular bool   // there was a field that is not a pseudo-header field
	size    int    // of the header list, as SETTINGS_MAX_HEADER_LIST_SIZE counts
	encoded int    // bytes of the block that have arrived
	max     int    // upper bound of size
	reply   bool   // it comes from a server
	tooLong bool   // size exceeds max; fields lacks some
	rescued int    // fields that are kept although the list is too long
	cut     bool   // grpc-message is not complete
	lost    string // a field of the list that is missing or cut
	bad     string // why the block is malformed, by RFC 9113, section 8
}

// begin empties the block for a new HEADERS frame. It keeps the bounds, and the memory of the fields.
func (h *headerBlock) begin(fh http2.FrameHeader) {
	*h = headerBlock{stream: fh.StreamID, end: fh.Flags.Has(http2.FlagHeadersEndStream), fields: h.fields[:0], max: h.max, reply: h.reply}
}

// add adds a field. The decoder calls it.
func (h *headerBlock) add(f hpack.HeaderField) {
	if h.size += int(f.Size()); h.size > h.max {
		h.tooLong = true
		if !h.reply || !h.shorten(&f) {
			return
		}
	}
	if why := h.wrong(f); why != "" {
		h.bad = why
	}
	h.fields = append(h.fields, f)
}

// leastText is how much of the text of a status is kept at least.
const leastText = 4 << 10

// shorten makes f, a field of a reply whose list is too long, as short as it must be, and reports whether to keep it.
// It keeps what says how the call has ended: a long text must not change the code.
func (h *headerBlock) shorten(f *hpack.HeaderField) bool {
	const most = 16 // fields; a reply needs six
	if h.rescued++; h.rescued > most {
		return false
	}
	switch f.Name {
	case ":status", "content-type", "grpc-status", "grpc-encoding":
		return len(f.Value) <= leastText
	case "grpc-message":
		room := max(h.max-(h.size-int(f.Size())), leastText)
		if len(f.Value) <= room {
			return true
		}
		if h.cut {
			return false
		}
		h.cut, h.lost = true, f.Name
		f.Value = cutMessage(f.Value, room)
		return true
	}
	h.rescued--
	h.lost = f.Name
	return false
}

// wrong returns why a field is malformed, or "" if it is not.
func (h *headerBlock) wrong(f hpack.HeaderField) string {
	if !httpguts.ValidHeaderFieldValue(f.Value) {
		return fmt.Sprintf("the value of the header field %q has a control character", f.Name)
	}
	if f.IsPseudo() {
		if h.regular {
			return fmt.Sprintf("the pseudo-header field %q follows a regular field", f.Name)
		}
		for i := range h.fields {
			if h.fields[i].Name == f.Name {
				return fmt.Sprintf("the pseudo-header field %q appears twice", f.Name)
			}
		}
		return ""
	}
	h.regular = true
	if !validName(f.Name) {
		return fmt.Sprintf("%q is not a valid name of a header field", f.Name)
	}
	if h.reply {
		return "" // gRPC's own clients take these from a server; we drop them
	}
	switch f.Name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return fmt.Sprintf("HTTP/2 does not allow the header field %q", f.Name)
	case "te":
		if f.Value != "trailers" {
			return fmt.Sprintf("HTTP/2 does not allow the header field te to be %q", f.Value)
		}
	}
	return ""
}

// validName reports whether s can be the name of a header field in HTTP/2: a token of RFC
// 9110, in lower case.
func validName(s string) bool {
	for _, r := range s {
		if !httpguts.IsTokenRune(r) || 'A' <= r && r <= 'Z' {
			return false
		}
	}
	return s != ""
}

// readHeaders reads a HEADERS or a CONTINUATION frame. After the last one of a block it passes the
// block to the side.
func (c *conn) readHeaders(fh http2.FrameHeader) error {
	if fh.StreamID == 0 {
		return connError{http2.ErrCodeProtocol, "a header block without a stream"}
	}
	payload, err := c.payload(int(fh.Length))
	if err != nil {
		return err
	}
	fragment := payload
	if fh.Type == http2.FrameHeaders {
		c.block.begin(fh)
		if fragment, err = c.unwrapHeaders(fh, payload); err != nil {
			return err
		}
	} else if err := c.charge(1); err != nil {
		return err
	}
	// Fields beyond the allowed size are decoded too, and forgotten: they change the decoder's table.
	if c.block.encoded += len(fragment); c.block.encoded > c.block.longest() {
		return connError{http2.ErrCodeEnhanceYourCalm, fmt.Sprintf("a header block is longer than %d bytes", c.block.longest())}
	}
	if _, err := c.decoder.Write(fragment); err != nil {
		return connError{http2.ErrCodeCompression, err.Error()}
	}
	if _, err := c.in.Discard(c.peeked); err != nil {
		return err
	}
	c.peeked = 0
	if !fh.Flags.Has(http2.FlagHeadersEndHeaders) {
		return nil
	}
	if err := c.decoder.Close(); err != nil {
		return connError{http2.ErrCodeCompression, err.Error()}
	}
	err = c.side.headers(&c.block)
	if c.block.size > freeHeaders {
		c.block.fields = nil // keep no memory of it
	}
	return err
}

// freeHeaders is the size up to which the header list of a reply needs no memory of the budget.
const freeHeaders = 64 << 10

// longestReply and longestRequest are how long an encoded header block of a server and of a client may be: a longer one
// ends the connection, and with it other calls. A server may send as much as grpc-go's client takes. A connection decodes
// one block at a time, and keeps no more of it than max.
const (
	longestReply   = 16 << 20
	longestRequest = 1 << 20
)

// longest returns how long the encoded block may be.
func (h *headerBlock) longest() int {
	if h.reply {
		return max(longestReply, 2*h.max)
	}
	return max(longestRequest, 2*h.max)
}

// payload reads the payload of a frame. It is valid until the next read.
func (c *conn) payload(n int) ([]byte, error) {
	if n <= c.in.Size() {
		b, err := c.in.Peek(n)
		if err != nil {
			return nil, unexpected(err)
		}
		c.peeked = n
		return b, nil
	}
	if cap(c.long) < n {
		c.long = make([]byte, n)
	}
	_, err := io.ReadFull(c.in, c.long[:n])
	return c.long[:n], unexpected(err)
}

// unexpected returns the error of a read in the middle of a frame: io.EOF is unexpected there.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// unwrapHeaders strips padding and priority from the payload of a HEADERS frame.
func (c *conn) unwrapHeaders(fh http2.FrameHeader, b []byte) ([]byte, error) {
	pad := 0
	if fh.Flags.Has(http2.FlagHeadersPadded) {
		if len(b) == 0 {
			return nil, connError{http2.ErrCodeFrameSize, "a HEADERS frame is too short for its padding"}
		}
		pad, b = int(b[0]), b[1:]
	}
	if fh.Flags.Has(http2.FlagHeadersPriority) {
		if len(b) < 5 {
			return nil, connError{http2.ErrCodeFrameSize, "a HEADERS frame is too short for its priority"}
		}
		if on := uint32(b[0]&0x7f)<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]); on == fh.StreamID {
			c.block.bad = "the stream depends on itself"
		}
		b = b[5:]
	}
	if pad > len(b) {
		return nil, connError{http2.ErrCodeProtocol, "the padding of a HEADERS frame is longer than the frame"}
	}
	return b[:len(b)-pad], nil
}
