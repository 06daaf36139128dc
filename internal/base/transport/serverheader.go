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
// set none, the reply is Trailers-Only.
func (s *serverStream) sendStatus(st *status.Status) {
	if !s.headed && len(s.header) > 0 {
		if s.sendHeader() != nil {
			return
		}
	}
	var some [4]field
	fields := some[:0]
	if message := st.Message(); message != "" {
		fields = append(fields, field{"grpc-message", encodeMessage(message)})
	}
	if b := details(st); b != nil {
		s.trailer.Delete(detailsField)
		fields = appendMetadata(fields, metadata.MD{detailsField: {string(b)}}, s.lost)
	}
	fields = appendMetadata(fields, s.trailer, s.lost)
	if err := s.appendHeader(append(fields, field{"grpc-status", strconv.Itoa(int(st.Code()))}), true); err == nil {
		s.said = true
	}
}

// lost tells that HTTP/2 cannot carry a field of the reply.
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
// sent, and fields.
func (s *serverStream) appendHeader(fields []field, end bool) error {
	c := s.conn
	first := !end || !s.headed
	if first {
		fields = appendMetadata(fields, s.header, s.lost)
		s.header = nil
	}
	if size := listSize(fields) + 2*64; size > c.peerHeaders {
		c.reset(&s.stream, http2.ErrCodeInternal, errHeaderList)
		return errHeaderList
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
	c.spoke = true
	c.out = appendHeaders(c.out, b, s.id, end, c.peerFrame)
	if c.scratch = b[:0]; cap(b) > freeHeaders {
		c.scratch = nil
	}
	return nil
}

const statusOK = 8 // index of ":status: 200" in the static table

var (
	errHeaderList = status.Error(codes.Internal, "transport: trying to send header list size larger than the limit set by peer")
	errDone       = errors.New("transport: the stream has ended")
)
