package criadapter

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
)

// DefaultEventInterval is how often the lists of a runtime without events are
// looked at, as often as kubelet looks at them without events.
const DefaultEventInterval = time.Second

// MakeUpEvents returns a connection whose GetContainerEvents goes on whatever the
// runtime does. A runtime that has no events, which is said by Unimplemented or,
// by CRI-O, by an end without an event, is watched through its lists. When a
// runtime goes away and comes back, what happened meanwhile is found by its lists
// too: kubelet would take the end of a stream for the end of evented PLEG, and
// with it five times for good.
//
// conn must answer for a runtime that is gone, as [known.Conn] does. An interval
// of zero is [DefaultEventInterval].
func MakeUpEvents(conn grpc.ClientConnInterface, interval time.Duration) grpc.ClientConnInterface {
	if interval == 0 {
		interval = DefaultEventInterval
	}
	return &eventful{conn, interval}
}

type eventful struct {
	grpc.ClientConnInterface
	interval time.Duration
}

// NewStream opens a stream; that of events is an eventStream.
func (c *eventful) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if name != runtimeapi.RuntimeService_GetContainerEvents_FullMethodName {
		return c.ClientConnInterface.NewStream(ctx, desc, name, opts...)
	}
	return &eventStream{ctx: ctx, conn: c.ClientConnInterface, interval: c.interval}, nil
}

// eventStream is the events of one runtime, for one client. One goroutine at a
// time receives; nothing runs between receives.
type eventStream struct {
	ctx      context.Context
	conn     grpc.ClientConnInterface
	interval time.Duration

	request *codec.Frame
	from    grpc.ClientStream // the runtime's own events; nil: its lists are watched
	any     bool              // from has sent something
	lists   *snapshot         // what the events told so far, or should have
	recheck []time.Duration   // when to look at the lists again, after the runtime came back
	queue   []*codec.Frame    // made up, and not yet received
}

// SendMsg takes the request.
func (s *eventStream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	f.Bytes()
	s.request = f.Ref()
	return nil
}

// CloseSend opens the stream: its request is complete.
func (s *eventStream) CloseSend() error { return nil }

// RecvMsg waits for the next event.
func (s *eventStream) RecvMsg(m any) error {
	if s.lists == nil {
		s.lists = newSnapshot()
		if err := s.open(); err != nil {
			return err
		}
		// The first look tells no events, it is what later ones are held against.
		if _, err := s.lists.look(s.ctx, s.conn, false); err != nil && s.ctx.Err() != nil {
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
	for {
		if len(s.queue) > 0 {
			f := s.queue[0]
			s.queue = s.queue[1:]
			return codec.Deliver(m, f)
		}
		if s.from == nil || len(s.recheck) > 0 {
			if err := s.watch(); err != nil {
				return err
			}
			continue
		}
		f := &codec.Frame{}
		err := s.from.RecvMsg(f)
		switch {
		case err == nil:
			s.any = true
			return codec.Deliver(m, f)
		case s.ctx.Err() != nil:
			return status.FromContextError(s.ctx.Err()).Err()
		case status.Code(err) == codes.Unimplemented, errors.Is(err, io.EOF) && !s.any:
			s.from = nil
		case status.Code(err) == codes.Unavailable, errors.Is(err, io.EOF):
			if err := s.reopen(); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func (s *eventStream) open() error {
	cs, err := s.conn.NewStream(s.ctx, &grpc.StreamDesc{ServerStreams: true}, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName)
	if status.Code(err) == codes.Unavailable {
		return s.reopen()
	}
	if err != nil {
		return err
	}
	if s.request == nil {
		s.request = &codec.Frame{}
	}
	if err := cs.SendMsg(s.request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := cs.CloseSend(); err != nil {
		return err
	}
	s.from, s.any = cs, false
	return nil
}

// reopen waits for a runtime that is gone, and subscribes again. What happened
// meanwhile is found in its lists, now and once more when the subscription must
// have taken effect.
func (s *eventStream) reopen() error {
	for {
		if err := s.pause(s.interval); err != nil {
			return err
		}
		cs, err := s.conn.NewStream(s.ctx, &grpc.StreamDesc{ServerStreams: true}, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName)
		if err == nil {
			if err = cs.SendMsg(s.request); err == nil {
				err = cs.CloseSend()
			}
		}
		switch {
		case err == nil, errors.Is(err, io.EOF):
			s.from, s.any, s.recheck = cs, false, []time.Duration{0, s.interval}
			return nil
		case status.Code(err) != codes.Unavailable:
			return err
		}
	}
}

// watch looks at the lists once, when it is time.
func (s *eventStream) watch() error {
	wait := s.interval
	if len(s.recheck) > 0 {
		wait, s.recheck = s.recheck[0], s.recheck[1:]
	}
	if err := s.pause(wait); err != nil {
		return err
	}
	events, err := s.lists.look(s.ctx, s.conn, true)
	if err != nil && s.ctx.Err() != nil {
		return status.FromContextError(s.ctx.Err()).Err()
	}
	s.queue = events // a list that failed is looked at again
	return nil
}

func (s *eventStream) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// Header is empty: the stream may be that of several subscriptions.
func (s *eventStream) Header() (metadata.MD, error) { return nil, nil }

// Trailer is empty, as the header is.
func (s *eventStream) Trailer() metadata.MD { return nil }

// Context is the context of the call.
func (s *eventStream) Context() context.Context { return s.ctx }
