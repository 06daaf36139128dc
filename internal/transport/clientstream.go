package transport

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// A clientStream is one attempt of a call, on one connection.
type clientStream struct {
	stream
	on *clientConn

	// conn.mu guards what follows.
	heads       chan struct{} // closed when headed is set; nil if no goroutine waits for it
	headed      bool          // the header has come, or will not come
	header      metadata.MD   // nil: there was none
	trailer     metadata.MD
	encoding    string         // of compressed messages
	status      *status.Status // of the call, from the trailers
	notGRPC     *status.Status // of a reply that is not gRPC's, whose body is still to come
	unprocessed bool           // the server has not looked at the call
}

func (c *clientConn) newStream(ctx context.Context) *clientStream {
	s := &clientStream{on: c}
	s.owner = s
	s.conn, s.ctx, s.ready = c.conn, ctx, make(chan struct{}, 1)
	return s
}

// headers takes over the header of a reply, or its trailers.
func (c *clientConn) headers(h *headerBlock) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.nuisanceLocked(1); err != nil {
		return err
	}
	s := c.streams[h.stream]
	if s == nil {
		if !c.known(h.stream) {
			return connError{http2.ErrCodeProtocol, "a reply to a call that was not made"}
		}
		return nil // it has just ended
	}
	cs := s.owner.(*clientStream)
	fail := func(code http2.ErrCode, to codes.Code, why string) error {
		c.reset(s, code, status.Error(to, why))
		return nil
	}
	switch {
	case h.bad != "":
		return streamError{s.id, http2.ErrCodeProtocol, h.bad}
	case cs.headed && !h.end:
		return fail(http2.ErrCodeProtocol, codes.Internal, "a HEADERS frame cannot appear in the middle of a stream")
	case h.tooLong:
		return fail(http2.ErrCodeFrameSize, codes.Internal, "peer header list size exceeded limit")
	case cs.notGRPC != nil:
		c.end(s)
		cs.close(cs.notGRPC)
		return nil
	}
	r := newReply(h)
	if !cs.headed && r.contentType == "" || r.wrongType() && !cs.headed {
		return c.notGRPC(cs, h, &r)
	}
	if r.wrong != "" {
		return fail(http2.ErrCodeProtocol, r.wrongCode, r.wrong)
	}
	if h.end {
		cs.trailer = r.md.md
		c.end(s)
		cs.close(newStatus(r.code, r.message, r.md.md[detailsField]))
		return nil
	}
	cs.header, cs.encoding = r.md.md, r.encoding
	cs.head()
	return nil
}

// head notes that the header has come, or will not come. conn.mu is held.
func (s *clientStream) head() {
	if s.headed {
		return
	}
	s.headed = true
	if s.heads != nil {
		close(s.heads)
	}
}

// close ends the call with a status, after what has come. conn.mu is held.
func (s *clientStream) close(st *status.Status) {
	c := s.conn
	s.status = st
	if st.Code() != codes.OK {
		s.err = nil // that it ended within a message is explained
	}
	c.guard.earn(guardCall)
	if !s.said && !s.gone {
		c.out = appendReset(c.out, s.id, http2.ErrCodeNo) // it does not want the rest of the request
	}
	c.remove(&s.stream, true)
	s.head()
	s.tell()
}

// notGRPC takes over a reply that is not gRPC's.
func (c *clientConn) notGRPC(s *clientStream, h *headerBlock, r *reply) error {
	code, err := strconv.Atoi(r.http)
	var st *status.Status
	switch {
	case r.http == "":
		st = status.New(codes.Internal, "malformed header: missing HTTP status; "+r.typeError())
	case err != nil:
		st = status.Newf(codes.Internal, "transport: malformed http-status: %v", err)
	case code >= 100 && code < 200 && !h.end:
		return nil // there is more to come
	case code >= 100 && code < 200:
		st = status.Newf(codes.Internal, "protocol error: informational header with status code %d must not have END_STREAM set", code)
	default:
		st = status.Newf(statusOfHTTP(code), "unexpected HTTP status code received from server: %d (%s); %s", code, http.StatusText(code), r.typeError())
	}
	s.notGRPC, s.ignore = st, true
	if h.end {
		c.end(&s.stream)
		s.close(st)
		return nil
	}
	c.reset(&s.stream, http2.ErrCodeCancel, st.Err()) // its body says nothing to programs
	return nil
}

// send sends a message; end says that it is the last one. conn.mu is held.
func (s *clientStream) send(f *codec.Frame, end bool) error {
	bufs, err := codec.Raw.Marshal(f)
	if err != nil {
		return err
	}
	defer bufs.Free()
	s.conn.guard.earn(guardCall + f.Len()/guardBytes)
	return s.conn.send(&s.stream, bufs, end)
}

// cancel ends the attempt with err, if it has not ended. The caller must not receive from it again.
func (s *clientStream) cancel(err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset(&s.stream, http2.ErrCodeCancel, err)
	s.kill()
	c.flush()
}

// refused reports whether the call has ended and the server has not looked at it.
func (s *clientStream) refused() bool {
	if s == nil {
		return false
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.unprocessed
}

// next waits for the next message. io.EOF is the end of a call that went well; any other
// error is that of the call.
func (s *clientStream) next(o *callOptions) (*codec.Frame, error) {
	m, err := s.receive()
	if errors.Is(err, io.EOF) {
		if err := s.status.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	if err != nil {
		return nil, err
	}
	if n := len(m.data); n > o.receive {
		m.drop()
		return nil, status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", n, o.receive)
	}
	if m.compressed {
		return s.stream.decompress(m, s.encoding, o.receive, codes.Internal)
	}
	return m.frame(), nil
}
