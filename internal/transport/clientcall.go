package transport

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
)

// A clientCall is a streaming call. As with any [grpc.ClientStream], one goroutine may send
// while another receives.
//
// It makes at most two attempts, each a clientStream. The second one follows if the server did not process the first, and the
// call has only one request, which request then still holds. Sender, receiver and whoever waits for the header may find that
// out at the same time: repeating lets one of them begin the second attempt, and the others take it over.
//
// end ends the call, once: with the first error that a receiver gets, or with the context. No goroutine holds mu and a
// connection's mu at once.
type clientCall struct {
	client *Client
	ctx    context.Context
	method string
	md     metadata.MD
	single bool // there is only one request

	ending    sync.Once  // held by end
	repeating sync.Mutex // held by again

	mu      sync.Mutex
	stop    func() bool   // from the context.AfterFunc that ends the call with its context
	at      *clientStream // the current attempt
	request *codec.Frame  // the only request, for a second attempt; nil: there will be none
	over    bool
	err     error // why the call ended
}

// Open begins a streaming call.
func (c *Client) Open(ctx context.Context, desc *grpc.StreamDesc, method string, first *codec.Frame) (codec.Stream, error) {
	call := &clientCall{client: c, ctx: ctx, method: method, single: !desc.ClientStreams}
	call.md, _ = metadata.FromOutgoingContext(ctx)
	if call.single {
		call.request = first
	}
	if err := call.open(); err != nil {
		return nil, err
	}
	call.mu.Lock()
	call.stop = context.AfterFunc(ctx, func() { call.end(contextError(ctx)) })
	call.mu.Unlock()
	if first != nil {
		_ = call.Send(first) // Recv returns the failure
	}
	return call, nil
}

// open begins an attempt. If the call has only one request, the headers go out together with it.
func (s *clientCall) open() error {
	at, err := s.client.open(s.ctx, s.method, s.md)
	if err != nil {
		return err
	}
	at.heads = make(chan struct{})
	if !s.single {
		at.conn.flush()
	}
	at.conn.mu.Unlock()
	s.mu.Lock()
	s.at = at
	over, err := s.over, s.err
	s.mu.Unlock()
	if over { // the context has ended meanwhile
		at.cancel(cmp.Or(err, errDone))
	}
	return nil
}

// attempt returns the current attempt. Whoever uses it must expect that it has failed, and that another one follows.
func (s *clientCall) attempt() *clientStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// Send sends a message. It returns io.EOF if the call has ended; Recv returns why.
func (s *clientCall) Send(f *codec.Frame) error {
	if err := s.attempt().sendNow(f, s.single); err == nil || s.single {
		return nil // Recv returns the failure of a call with one request
	}
	if s.ctx.Err() != nil {
		s.end(contextError(s.ctx))
	}
	return io.EOF
}

// sendNow sends a message. If end is set, it is the last one, and sendNow writes it at once.
func (s *clientStream) sendNow(f *codec.Frame, end bool) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	err := s.send(f, end)
	if end {
		s.conn.flush()
	} else {
		s.conn.flushSoon()
	}
	return err
}

// CloseSend says to the server that the client sends no more messages.
func (s *clientCall) CloseSend() error {
	at := s.attempt()
	c := at.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !at.endSent && !at.gone {
		at.endSent = true
		c.out = appendFrame(c.out, 0, http2.FrameData, http2.FlagDataEndStream, at.id)
		c.flush()
	}
	return nil
}

// Recv waits for a message. It returns io.EOF when the call has ended with status OK.
func (s *clientCall) Recv() (*codec.Frame, error) {
	f, err := s.receive()
	if err != nil {
		s.end(err)
	}
	return f, err
}

// receive waits for a message. If the server did not process the call, receive makes the call once
// more.
func (s *clientCall) receive() (*codec.Frame, error) {
	at := s.attempt()
	f, err := at.next()
	if err == nil {
		s.mu.Lock()
		s.request = nil
		s.mu.Unlock()
		return f, nil
	}
	if next, failed := s.again(at); failed != nil {
		err = failed
	} else if next != at {
		f, err = next.next()
	}
	s.mu.Lock()
	over, result := s.over, s.err
	s.mu.Unlock()
	if over && err != nil { // the context has ended, or the call had ended before
		if result == nil {
			result = io.EOF
		}
		err = result
	}
	return f, err
}

// again returns the attempt that follows the failed attempt at. That is a new attempt if the server
// did not process the call, or the one that another goroutine has begun meanwhile. If there is none,
// again returns the failed attempt itself.
func (s *clientCall) again(at *clientStream) (*clientStream, error) {
	s.repeating.Lock()
	defer s.repeating.Unlock()
	s.mu.Lock()
	now, request, over := s.at, s.request, s.over
	s.request = nil
	s.mu.Unlock()
	if request == nil || over || !at.refused() {
		return now, nil
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	now = s.attempt()
	_ = now.sendNow(request, true) // receiving returns the failure
	return now, nil
}

// Header waits for the response headers. It returns nil without an error if the call ends before
// they arrive.
func (s *clientCall) Header() (metadata.MD, error) {
	at := s.attempt()
	md := at.awaitHeader()
	if md == nil {
		if next, err := s.again(at); err == nil && next != at {
			md = next.awaitHeader()
		}
	}
	return md, nil
}

// awaitHeader waits for the response headers, or the end of the attempt or of the context. It returns nil if there are none.
func (s *clientStream) awaitHeader() metadata.MD {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
	c.mu.Unlock()
	select {
	case <-s.heads:
	case <-s.ctx.Done():
	}
	c.mu.Lock()
	if s.header == nil {
		return nil
	}
	return s.header.Copy()
}

// Trailer returns the trailers. They are complete once Recv has returned an error.
func (s *clientCall) Trailer() metadata.MD {
	at := s.attempt()
	at.conn.mu.Lock()
	defer at.conn.mu.Unlock()
	return at.trailer.Copy()
}

// end ends the call, if it has not ended. An err of io.EOF means success.
func (s *clientCall) end(err error) {
	s.ending.Do(func() {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		s.mu.Lock()
		s.over, s.err = true, err
		at := s.at
		s.stop()
		s.mu.Unlock()
		at.cancel(cmp.Or(err, errDone))
	})
}
