package transport

import (
	"errors"
	"net/http"
	"strconv"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// sendHeader appends the response headers to the buffer. conn.mu is held.
func (s *serverStream) sendHeader() error {
	if s.gone {
		return s.sendError()
	}
	s.headed = true
	return s.appendHeader(nil, false)
}

// sendStatus appends the trailers to the buffer. If no headers have been sent and the handler has
// set none, the reply is Trailers-Only. The details of a status, which say the same as its code and
// text and more, have a field of their own.
func (s *serverStream) sendStatus(st *status.Status) {
	if !s.headed && len(s.header) > 0 {
		if s.sendHeader() != nil {
			return
		}
	}
	var some [4]field
	fields := some[:0]
	if message := st.Message(); message != "" {
		fields = append(fields, field{"grpc-message", EncodeMessage(message)})
	}
	if b := Details(st); b != nil {
		s.trailer.Delete(detailsField)
		fields = appendMetadata(fields, metadata.MD{detailsField: {string(b)}}, s.lost)
	}
	fields = appendMetadata(fields, s.trailer, s.lost)
	if err := s.appendHeader(append(fields, field{"grpc-status", strconv.Itoa(int(st.Code()))}), true); err == nil {
		s.endSent = true
	}
}

// lost notes that HTTP/2 cannot carry a field of the reply.
func (s *serverStream) lost(name string) {
	s.on.server.cfg.Lost(Loss{s.method, name, true, LossBytes})
}

// awaitRoom waits until the buffer of the connection has room for the status. Meanwhile the call
// counts as running, so a client that does not read has no more replies in the buffer than it
// may have calls at once. If the call's context ends first, awaitRoom resets the stream. conn.mu is
// held; awaitRoom releases it while it waits.
func (s *serverStream) awaitRoom() {
	c := s.conn
	for waited := false; !s.gone && !c.mayAppend(waited); waited = true {
		if err := c.awaitTurn(s.ctx); err != nil {
			c.reset(&s.stream, http2.ErrCodeCancel, err)
		}
	}
}

// appendHeader appends one header block to the buffer: the response headers, unless they have been
// sent, and fields. end says that it is the last of the reply. A list that is longer than the client accepts is made to fit;
// the call fails only if even the code does not.
func (s *serverStream) appendHeader(fields []field, end bool) error {
	c := s.conn
	first := !end || !s.headed
	if first {
		fields = appendMetadata(fields, s.header, s.lost)
		s.header = nil
	}
	if room := c.peerHeaders - 2*64; listSize(fields) > room {
		if fields = s.fit(fields, room); listSize(fields) > room {
			c.reset(&s.stream, http2.ErrCodeInternal, errHeaderList)
			return errHeaderList
		}
	}
	e := c.encoder
	b := e.begin(c.scratch[:0])
	if first {
		if s.rejected == nil || s.rejected.http == http.StatusOK {
			b = e.static(b, statusOK)
		} else {
			b = e.once(b, ":status", strconv.Itoa(s.rejected.http))
		}
		b = e.repeated(b, "content-type", s.kind)
	}
	for _, f := range fields {
		if f.name == "grpc-status" {
			b = e.repeated(b, f.name, f.value)
		} else {
			b = e.once(b, f.name, f.value)
		}
	}
	c.sentData = true
	c.out = appendHeaders(c.out, b, s.id, end, c.peerFrame)
	if c.scratch = b[:0]; cap(b) > freeHeaders {
		c.scratch = nil
	}
	return nil
}

// fit leaves out fields, and cuts the text of a status, until the others take no more than room, which is what the client
// accepts. The code stays in any case: a long text must not change it.
func (s *serverStream) fit(fields []field, room int) []field {
	lost := func(f field) { s.on.server.cfg.Lost(Loss{s.method, f.name, true, LossSize}) }
	var text, code, others []field
	for _, f := range fields {
		switch f.name {
		case "grpc-status":
			code, room = append(code, f), room-listSize([]field{f})
		case "grpc-message":
			text = append(text, f)
		default:
			others = append(others, f)
		}
	}
	kept := code
	for _, f := range text {
		if over := listSize([]field{f}) - room; over > 0 {
			lost(f)
			if over += len(CutMark); over > len(f.value) {
				continue
			}
			f.value = cutMessage(f.value, len(f.value)-over) + CutMark
		}
		kept, room = append(kept, f), room-listSize([]field{f})
	}
	for _, f := range others {
		if size := listSize([]field{f}); size <= room {
			kept, room = append(kept, f), room-size
		} else {
			lost(f)
		}
	}
	return kept
}

const statusOK = 8 // index of ":status: 200" in the static table

var (
	errHeaderList = status.Error(codes.Internal, "transport: trying to send header list size larger than the limit set by peer")
	errDone       = errors.New("transport: the stream has ended")
)
