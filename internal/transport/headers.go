package transport

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A headerBlock is a block of header fields as it is read: one HEADERS frame, and
// CONTINUATION frames. It belongs to the reader, which uses it again for the next one.
type headerBlock struct {
	stream  uint32
	end     bool // of the stream
	fields  []hpack.HeaderField
	regular bool   // there was a field that is no pseudo-header
	size    int    // of the list
	encoded int    // bytes that have come
	max     int    // for size
	tooLong bool   // the list is longer than max; fields has a part of it
	bad     string // what is wrong with it, by RFC 9113, section 8
}

func (h *headerBlock) begin(fh http2.FrameHeader) {
	*h = headerBlock{stream: fh.StreamID, end: fh.Flags.Has(http2.FlagHeadersEndStream), fields: h.fields[:0], max: h.max}
}

// add is called by the decoder.
func (h *headerBlock) add(f hpack.HeaderField) {
	if h.size += int(f.Size()); h.size > h.max {
		h.tooLong = true
		return
	}
	if why := h.wrong(f); why != "" {
		h.bad = why
	}
	h.fields = append(h.fields, f)
}

// wrong returns what is wrong with a field, "" if nothing is.
func (h *headerBlock) wrong(f hpack.HeaderField) string {
	if !validValue(f.Value) {
		return fmt.Sprintf("the value of the header field %q has a control character", f.Name)
	}
	if f.IsPseudo() {
		if h.regular {
			return fmt.Sprintf("the pseudo-header %q comes behind a header field", f.Name)
		}
		for i := range h.fields {
			if h.fields[i].Name == f.Name {
				return fmt.Sprintf("the pseudo-header %q comes twice", f.Name)
			}
		}
		return ""
	}
	h.regular = true
	if !validName(f.Name) {
		return fmt.Sprintf("%q is no name of a header field", f.Name)
	}
	switch f.Name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return fmt.Sprintf("the header field %q is not for HTTP/2", f.Name)
	case "te":
		if f.Value != "trailers" {
			return fmt.Sprintf("the header field te is %q, which is not for HTTP/2", f.Value)
		}
	}
	return ""
}

// validName reports whether s can be the name of a header field in HTTP/2: a token of RFC
// 9110, in lower case.
func validName(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 || !nameBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

var nameBytes = func() (ok [0x80]bool) {
	for c := range ok {
		ok[c] = 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		ok[c] = true
	}
	return ok
}()

// validValue reports whether s can be the value of a header field: no control characters
// but the tab.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// readHeaders reads a HEADERS or a CONTINUATION frame. With the last one of a block it
// hands the block on.
func (c *conn) readHeaders(fh http2.FrameHeader) error {
	if fh.StreamID == 0 {
		return connError{http2.ErrCodeProtocol, "a header block belongs to no stream"}
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
	} else if err := c.nuisance(1); err != nil {
		return err
	}
	// Twice the allowed size of the list: Huffman coding makes it shorter. Fields beyond the
	// allowed size are decoded as well, because they change the decoder's table.
	if c.block.encoded += len(fragment); c.block.encoded > 2*c.block.max {
		return connError{http2.ErrCodeEnhanceYourCalm, fmt.Sprintf("a header block is longer than %d bytes", 2*c.block.max)}
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
	return c.side.headers(&c.block)
}

// payload reads the payload of a frame. It is valid until something else is read.
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

// unexpected is the error of a read in the middle of a frame.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// unwrapHeaders takes padding and priority off the payload of a HEADERS frame.
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
