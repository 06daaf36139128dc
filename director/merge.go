package director

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// merged joins the streams of several backends. It yields messages in the order in which they
// come, ends when all streams have ended, and fails when the first one fails: a client takes what a
// shortened list lacks for gone.
//
// One goroutine for each backend receives messages and hands them over without a buffer, so that a
// slow client slows the backends as it would without us. They end with the call's context.
type merged struct {
	ctx     context.Context
	streams []codec.Stream // nil if it could not be opened
	frames  chan *codec.Frame
	several // ends when all goroutines have handed over their last message

	mu     sync.Mutex
	err    error        // of the first backend to fail
	failed codec.Stream // its stream
	left   int          // how many backends lack the method, if that is no failure
}

// merge opens the call on some backends.
func (t *table) merge(ctx context.Context, cancel context.CancelFunc, m *method, among []int, request *codec.Frame) codec.Stream {
	s := &merged{
		ctx:     ctx,
		streams: make([]codec.Stream, len(among)),
		frames:  make(chan *codec.Frame),
		several: newSeveral(),
	}
	request.Bytes() // in one piece, before several goroutines read it
	var wg sync.WaitGroup
	for i, b := range among {
		wg.Go(func() {
			err := t.panics.Do(m.Name, func() (err error) {
				if s.streams[i], err = t.single(ctx, m, b, request, t.toPart); err != nil {
					return err
				}
				return s.pump(s.streams[i])
			})
			if err != nil && s.fail(s.streams[i], m.left(b, err), err) {
				cancel()
			}
		})
	}
	go func() {
		wg.Wait()
		close(s.ended)
	}()
	return s
}

// pump hands over the messages of one backend until its stream ends. Its error is nil if the
// stream ended without one.
func (s *merged) pump(one codec.Stream) error {
	if md, err := one.Header(); err == nil && len(md) > 0 {
		s.head(md)
	}
	for {
		f, err := one.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.head(nil) // messages may come without a header
		select {
		case s.frames <- f:
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
}

// fail notes the failure of one backend, which may be one to leave out, and reports whether the call fails
// with it.
func (s *merged) fail(one codec.Stream, left bool, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left {
		if s.left++; s.left < len(s.streams) {
			return false
		}
	}
	if s.err == nil {
		s.err, s.failed = err, one
	}
	return true
}

// Recv yields the end last: ended is closed only when all messages have been handed over.
func (s *merged) Recv() (*codec.Frame, error) {
	select {
	case f := <-s.frames:
		return f, nil
	case <-s.ended:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err != nil {
			return nil, s.err
		}
		return nil, io.EOF
	}
}

// Trailer joins the trailers of all backends, or returns that of the one with which the call has failed.
func (s *merged) Trailer() metadata.MD {
	<-s.ended
	if s.failed != nil {
		return s.failed.Trailer()
	}
	var all metadata.MD
	for _, one := range s.streams {
		if one != nil {
			all = metadata.Join(all, one.Trailer())
		}
	}
	return all
}

// several is what the streams of several backends have in common, for a client that sends one message. The header is that of
// the first backend that has one, because the client gets it before the others may have begun. It is set once, before headed
// is closed.
type several struct {
	ended  chan struct{} // closed when the backends send nothing more
	first  sync.Once
	headed chan struct{} // closed when header is set
	header metadata.MD   // of the first backend to send one
}

func newSeveral() several {
	return several{ended: make(chan struct{}), headed: make(chan struct{})}
}

// head sets the header, unless it is set already.
func (s *several) head(md metadata.MD) {
	s.first.Do(func() {
		s.header = md
		close(s.headed)
	})
}

// Header waits for a header, or for the end of all streams.
func (s *several) Header() (metadata.MD, error) {
	select {
	case <-s.headed:
	case <-s.ended:
		s.head(nil) // unless the header came just before the end
	}
	return s.header, nil
}

func (s *several) Send(*codec.Frame) error { return nil } // the request is sent already
func (s *several) CloseSend() error        { return nil }
