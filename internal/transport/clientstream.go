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

// A clientStream is one attempt of a call, on one connection. Its receiver reads status without a lock once receive has returned
// io.EOF: nothing changes it then.
//
// A reply has three parts: header, messages, trailer. A reply that ends with its first header block has only a trailer. A
// reply that is not gRPC, such as a page of another proxy, has notGRPC from its header on, and its body is skipped.
type clientStream struct {
	stream
	on *clientConn

	// conn.mu guards the fields below.
	heads       chan struct{} // closed when headed is set; nil for unary calls
	headed      bool          // the response headers have arrived, or never will
	header      metadata.MD   // nil: there are none
	trailer     metadata.MD
	method      string         // full name
	encoding    string         // how the server compresses messages
	status      *status.Status // of the call, from the trailers
	notGRPC     *status.Status // of a reply that is not gRPC
	unprocessed bool           // the server did not process the call
}

// newStream returns the stream of a call that has not begun: it has no id, and c does not know it.
func (c *clientConn) newStream(ctx context.Context) *clientStream {
	s := &clientStream{on: c}
	s.owner = s
	s.conn, s.ctx, s.ready = c.conn, ctx, make(chan struct{}, 1)
	return s
}

// headers handles a header block of a reply: the response headers, or the trailers. It comes from the reader. The returned error
// is a mistake of the server in HTTP/2; a reply that breaks gRPC's rules ends only its call.
func (c *clientConn) headers(h *headerBlock) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.chargeLocked(1); err != nil {
		return err
	}
	s := c.streams[h.stream]
	if s == nil {
		if !c.known(h.stream) {
			return connError{http2.ErrCodeProtocol, "a HEADERS frame for a stream that the client has not opened"}
		}
		return nil // the call has just ended
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
	case cs.notGRPC != nil:
		c.end(s)
		cs.close(cs.notGRPC)
		return nil
	}
	c.account(s, h)
	if h.lost != "" {
		c.client.cfg.Lost(Loss{cs.method, h.lost, true, LossSize})
	}
	r := newReply(h)
	if !cs.headed && !isGRPC(r.contentType) {
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

// account takes memory of the budget for a long header list, until the context of the call ends. If there is none, the
// list becomes short.
func (c *clientConn) account(s *stream, h *headerBlock) {
	n := min(h.size, h.max+leastText)
	if n <= freeHeaders {
		return
	}
	budget, ctx := c.cfg.budget, s.ctx
	if budget.TryReserve(ctx, n) {
		if ctx.Done() == nil {
			budget.Release(ctx, n)
		} else {
			context.AfterFunc(ctx, func() { budget.Release(ctx, n) })
		}
		return
	}
	all := h.fields
	most := h.max
	h.fields, h.size, h.rescued, h.max = nil, 0, 0, min(most, freeHeaders)
	for _, f := range all {
		h.add(f)
	}
	h.max = most
}

// head notes that the response headers have arrived, or never will. conn.mu is held.
func (s *clientStream) head() {
	if s.headed {
		return
	}
	s.headed = true
	if s.heads != nil {
		close(s.heads)
	}
}

// close ends the call with a status, which the receiver gets after the messages that have arrived.
// conn.mu is held.
func (s *clientStream) close(st *status.Status) {
	c := s.conn
	s.status = st
	if st.Code() != codes.OK {
		s.err = nil // the status explains why the stream ended within a message
	}
	c.guard.earn(guardCall)
	if !s.endSent && !s.gone {
		c.out = appendReset(c.out, s.id, http2.ErrCodeNo) // the server does not need the rest of the request
	}
	c.remove(&s.stream, true)
	s.head()
	s.wakeReceiver()
}

// notGRPC handles the headers of a reply that is not gRPC.
func (c *clientConn) notGRPC(s *clientStream, h *headerBlock, r *reply) error {
	code, err := strconv.Atoi(r.http)
	var st *status.Status
	switch {
	case r.http == "":
		st = status.New(codes.Internal, "malformed header: missing HTTP status; "+r.typeError())
	case err != nil:
		st = status.Newf(codes.Internal, "transport: malformed http-status: %v", err)
	case code >= 100 && code < 200 && !h.end:
		return nil // an informational response: the final one follows
	case code >= 100 && code < 200:
		st = status.Newf(codes.Internal, "protocol error: informational header with status code %d must not have END_STREAM set", code)
	default:
		st = status.Newf(statusOfHTTP(code), "unexpected HTTP status code received from server: %d (%s); %s", code, http.StatusText(code), r.typeError())
	}
	s.notGRPC, s.ignore = st, true
	s.drop() // a message that began before the headers: the receiver would wait for the rest
	if h.end {
		c.end(&s.stream)
		s.close(st)
		return nil
	}
	c.reset(&s.stream, http2.ErrCodeCancel, st.Err()) // the body is for people
	return nil
}

// send sends a message, the last one if end is set. conn.mu is held; send releases it while it
// waits.
func (s *clientStream) send(f *codec.Frame, end bool) error {
	bufs, err := codec.Raw.Marshal(f)
	if err != nil {
		return err
	}
	defer bufs.Free()
	s.conn.guard.earn(guardCall + f.Len()/guardBytes)
	return s.conn.send(&s.stream, bufs, end)
}

// cancel ends the attempt with err, if it has not ended. The caller must not receive from it
// afterwards.
func (s *clientStream) cancel(err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset(&s.stream, http2.ErrCodeCancel, err)
	s.kill()
	c.flush()
}

// refused reports whether the attempt has ended without being processed by the server. A nil stream
// was not refused.
func (s *clientStream) refused() bool {
	if s == nil {
		return false
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.unprocessed
}

// next waits for the next message. It returns io.EOF when the call has ended with status OK;
// any other error is the call's.
func (s *clientStream) next() (*codec.Frame, error) {
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
	if m.compressed {
		return s.stream.decompress(m, s.encoding, s.conn.cfg.maxMessage, codes.Internal)
	}
	return m.frame(), nil
}
