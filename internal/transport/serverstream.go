package transport

import (
	"context"
	"errors"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// A serverStream is a call that the server handles. As with any [grpc.ServerStream], one goroutine
// may send while another receives. Only the handler's goroutine calls run and finish.
//
// A reply is a header, messages and a trailer. The header goes out with the first message, or earlier if SendHeader says so, or
// with the trailer if there is no message. If the handler has announced a single short message, SendMsg only holds it, and
// finish sends it together with the status, in one write.
type serverStream struct {
	stream
	on       *serverConn
	method   string
	kind     string // the content type of the reply
	encoding string // how the client compresses messages
	cancel   context.CancelFunc
	sent     metadata.MD // the client's metadata
	rejected *rejection  // the answer, if the call does not reach a handler

	// conn.mu guards the fields below.
	header, trailer metadata.MD
	headed          bool         // the header has been sent
	single          bool         // the handler sends only one message; see Unary
	held            *codec.Frame // the only message, which goes out together with the status
}

// newStream begins the call that a header block requests. conn.mu is held.
func (c *serverConn) newStream(h *headerBlock) (*serverStream, error) {
	s := &serverStream{on: c, kind: grpcType}
	s.owner = s
	r := newRequest(h)
	if why := r.malformed(); why != "" {
		return nil, streamError{h.stream, http2.ErrCodeProtocol, why}
	}
	s.init(c.conn, h.stream)
	s.method, s.encoding, s.length = r.path, r.encoding, r.length
	s.ready = make(chan struct{}, 1)
	if s.rejected = r.reject(); s.rejected != nil {
		s.ignore = true
	} else {
		s.kind = replyType(r.contentType)
	}
	s.sent = r.metadata()
	ctx := metadata.NewIncomingContext(c.base, s.sent)
	ctx = grpc.NewContextWithServerTransportStream(ctx, transportStream{s})
	if r.timed {
		s.ctx, s.cancel = context.WithTimeout(ctx, r.timeout)
	} else {
		s.ctx, s.cancel = context.WithCancel(ctx)
	}
	return s, nil
}

// run runs the handler and sends the status.
func (s *serverStream) run() {
	if s.rejected == nil {
		err := s.on.server.handle(s)
		if err != nil && errors.Is(s.ctx.Err(), context.DeadlineExceeded) {
			err = context.DeadlineExceeded // whatever the handler returned
		}
		s.finish(err)
		return
	}
	s.awaitEnd()
	if s.rejected.text {
		s.explain()
	}
	s.finish(s.rejected.status.Err())
}

// Context returns the context of the call, which ends when the call ends.
func (s *serverStream) Context() context.Context { return s.ctx }

// SetHeader adds to the header, which goes out with the first message or the status.
func (s *serverStream) SetHeader(md metadata.MD) error {
	if len(md) == 0 {
		return nil
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.addHeader(md)
}

// addHeader adds to the header. c.mu is held.
func (s *serverStream) addHeader(md metadata.MD) error {
	if s.headed {
		return errHeaderSent
	}
	s.header = metadata.Join(s.header, md)
	return nil
}

var errHeaderSent = status.Error(codes.Internal, "transport: the header has been sent already")

// SendHeader sends the header now.
func (s *serverStream) SendHeader(md metadata.MD) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.addHeader(md); err != nil {
		return err
	}
	err := s.sendHeader()
	c.flush()
	return err
}

// SetTrailer adds to the trailer.
func (s *serverStream) SetTrailer(md metadata.MD) {
	if len(md) == 0 {
		return
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
}

// SendMsg sends a message. The caller may reuse the message when SendMsg returns.
func (s *serverStream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if held := s.held; held != nil { // it was not the only message
		s.held, s.single = nil, false
		err := s.send(held)
		held.Free()
		if err != nil {
			return err
		}
	}
	if s.single && f.Len() <= copied && !s.gone {
		s.held = f.Ref()
		return nil
	}
	return s.send(f)
}

// send sends a message, and before the first message the header. conn.mu is held.
func (s *serverStream) send(f *codec.Frame) error {
	if !s.headed {
		if err := s.sendHeader(); err != nil {
			return err
		}
	}
	if s.gone {
		return s.sendError()
	}
	bufs, err := codec.Raw.Marshal(f)
	if err != nil {
		return err
	}
	defer bufs.Free()
	c := s.conn
	c.guard.earn(guardCall + f.Len()/guardBytes)
	if err = c.send(&s.stream, bufs, false); err == nil && !s.single {
		c.flushSoon()
	}
	return err
}

// RecvMsg waits for a message. It returns io.EOF when the client sends no more.
func (s *serverStream) RecvMsg(m any) error {
	got, err := s.receive()
	if err != nil {
		return err
	}
	f, err := s.decode(got)
	if err != nil {
		return err
	}
	return codec.Decode(m, f)
}

// decode returns a message as a frame, decompressed.
func (s *serverStream) decode(m message) (*codec.Frame, error) {
	if !m.compressed {
		return m.frame(), nil
	}
	f, err := s.stream.decompress(m, s.encoding, s.conn.cfg.maxMessage, codes.Unimplemented)
	if status.Code(err) == codes.Unimplemented {
		_ = s.SetHeader(metadata.Pairs("grpc-accept-encoding", "identity,gzip")) // fails if the header has been sent
	}
	return f, err
}

// finish ends the call: it sends the message that was held back, if there is one, and the status. Then it removes the stream, and
// frees the messages that the handler has not read. If the client still sends, finish also resets the stream, because the reply
// is complete.
func (s *serverStream) finish(err error) {
	c := s.conn
	c.mu.Lock()
	if f := s.held; f != nil {
		s.held = nil
		if err == nil {
			err = s.send(f)
		}
		f.Free()
	}
	s.awaitRoom()
	if !s.gone && !s.endSent {
		s.sendStatus(StatusOf(err))
	}
	if !s.gone {
		if !s.ended {
			c.out = appendReset(c.out, s.id, http2.ErrCodeNo) // asks the client not to send the rest of the request
		}
		c.guard.earn(guardCall)
		c.remove(&s.stream, !s.ended)
	}
	s.kill()
	reserved := s.reserved
	s.reserved = nil
	s.on.running--
	c.nudge()
	c.flushWith(s.on.running > 0)
	s.on.drained()
	c.mu.Unlock()
	s.cancel()
	for _, r := range reserved {
		r.release()
	}
}

// A transportStream is a serverStream as a [grpc.ServerTransportStream], which interceptors and
// handlers find in their context.
type transportStream struct{ *serverStream }

// Method returns the full name of the method, as in /package.Service/Method.
func (t transportStream) Method() string { return t.method }

// SetTrailer implements [grpc.ServerTransportStream].
func (t transportStream) SetTrailer(md metadata.MD) error {
	t.serverStream.SetTrailer(md)
	return nil
}

// Sent returns the metadata that the client sent with the call of context ctx. It makes no copy:
// the caller must not change md. ok is false on servers of other packages.
func Sent(ctx context.Context) (md metadata.MD, ok bool) {
	if t, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream); ok {
		return t.sent, true
	}
	return nil, false
}

// Metadata is [Sent] on any server. The caller must not change the result.
func Metadata(ctx context.Context) metadata.MD {
	if md, ok := Sent(ctx); ok {
		return md
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return md
}

// Unary announces that the handler of the call with context ctx will send only one message. The
// server then writes that message together with the status. Unary does nothing on servers of other
// packages.
func Unary(ctx context.Context) {
	if t, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream); ok {
		t.conn.mu.Lock()
		t.single = true
		t.conn.mu.Unlock()
	}
}
