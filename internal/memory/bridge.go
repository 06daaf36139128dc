package memory

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
)

// Bridge returns a connection on which each list has both its methods, even if the backend has
// only one of them: List, which answers in one message, or Stream. A client may stop streaming for
// good, from all backends, at the first Unimplemented.
//
// A backend that has both methods gets exactly the calls that clients make.
func Bridge(conn grpc.ClientConnInterface, lists []List, schema *codec.Schema, pkg string) (grpc.ClientConnInterface, error) {
	compiled, err := compileLists(lists, schema, pkg)
	if err != nil {
		return nil, err
	}
	b := &bridge{ClientConnInterface: conn, pairs: map[string]*list{}}
	for _, l := range compiled {
		if l.unary != nil && l.stream != nil {
			b.pairs[l.unary.Name], b.pairs[l.stream.Name] = l, l
		}
	}
	return b, nil
}

// Lacks reports whether err says that a backend does not have a method. Some servers say it in words, with the code of an
// error that has none.
func Lacks(err error) bool {
	switch s := status.Convert(err); s.Code() {
	case codes.Unimplemented:
		return true
	case codes.Unknown, codes.Internal:
		text := strings.ToLower(s.Message())
		return strings.Contains(text, "not implemented") && !strings.Contains(text, "function not implemented") || // that is ENOSYS
			strings.Contains(text, "unimplemented")
	}
	return false
}

type bridge struct {
	grpc.ClientConnInterface
	pairs map[string]*list // :: full method → its list
}

// Invoke makes a unary call. It makes the reply of a List from a Stream if the backend has no List.
func (b *bridge) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	return codec.Invoke(ctx, b, name, args, reply, opts)
}

// Call is Invoke.
func (b *bridge) Call(ctx context.Context, call *codec.Call) error {
	err := call.On(ctx, b.ClientConnInterface)
	if l := b.pairs[call.Method]; l != nil && Lacks(err) {
		if streamErr := l.collect(ctx, b.ClientConnInterface, call); !Lacks(streamErr) {
			return streamErr
		} // else it has neither method: the client gets the error of the one it called
	}
	return err
}

// NewStream opens a stream. It makes the messages of a Stream from a List if the backend has no
// Stream.
func (b *bridge) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cs, err := b.ClientConnInterface.NewStream(ctx, desc, name, opts...)
	l := b.pairs[name]
	if err != nil || l == nil {
		return cs, err
	}
	return &bridgedStream{ClientStream: cs, ctx: ctx, conn: b.ClientConnInterface, list: l}, nil
}

// bridgedStream is a stream that calls the unary list instead if the first receive shows that
// the backend has no such stream.
type bridgedStream struct {
	grpc.ClientStream
	ctx     context.Context // the call's, not the stream's, which ends when the stream fails
	conn    grpc.ClientConnInterface
	list    *list
	request *codec.Frame
	began   bool
	listed  bool // the unary list has been called instead
	rest    []*codec.Frame
	header  metadata.MD
	trailer metadata.MD
}

func (s *bridgedStream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	f.Bytes()
	s.request = f.Ref()
	return s.ClientStream.SendMsg(f)
}

// Header waits for the first message as well: only that shows whether the header is the
// stream's or the list's.
func (s *bridgedStream) Header() (metadata.MD, error) {
	if s.listed {
		return s.header, nil
	}
	return s.ClientStream.Header()
}

func (s *bridgedStream) Trailer() metadata.MD {
	if s.listed {
		return s.trailer
	}
	return s.ClientStream.Trailer()
}

func (s *bridgedStream) RecvMsg(m any) error {
	if !s.listed {
		err := s.ClientStream.RecvMsg(m)
		if s.began || !Lacks(err) || s.request == nil {
			s.began = true
			return err
		}
		var answer codec.Frame
		listErr := s.conn.Invoke(s.ctx, s.list.unary.Name, s.request, &answer, grpc.Header(&s.header), grpc.Trailer(&s.trailer))
		s.request.Free()
		if Lacks(listErr) {
			s.began = true
			return err // it has neither
		}
		s.listed = true
		if listErr != nil {
			return listErr
		}
		if s.rest, err = s.list.split(&answer); err != nil {
			return err
		}
	}
	if len(s.rest) == 0 {
		return io.EOF
	}
	f := s.rest[0]
	s.rest = s.rest[1:]
	return codec.Decode(m, f)
}

// maxCollected and maxParts bound a list that a backend streams: the bytes are 16 times
// what fits in one message.
const (
	maxCollected = 256 << 20
	maxParts     = 1 << 20
)

// collect asks for a list by its streaming method and joins the parts into one message. It
// checks each part, because one that is cut off would swallow the beginning of the next.
func (l *list) collect(ctx context.Context, conn grpc.ClientConnInterface, call *codec.Call) error {
	name := l.stream.Name
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cs, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := cs.SendMsg(call.Request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := cs.CloseSend(); err != nil {
		return err
	}
	var parts []*codec.Frame
	utf8 := true
	size := 0
	for {
		f := &codec.Frame{}
		err := cs.RecvMsg(f)
		if err == nil {
			text, err := wellFormed(l.shape, name, f)
			if err != nil {
				return err
			}
			utf8 = utf8 && text
			parts = append(parts, f)
			if size += f.Len(); size > maxCollected || len(parts) > maxParts {
				return status.Errorf(codes.ResourceExhausted, "criproxy: %s: the backend streams a list of more than %d bytes or %d messages, which is the limit", name, maxCollected, maxParts)
			}
			continue
		}
		call.Header, _ = cs.Header()
		call.Trailer = cs.Trailer()
		if errors.Is(err, io.EOF) {
			call.Reply, call.UTF8, call.WellFormed = codec.Concat(parts), utf8, true
			return nil
		}
		return err
	}
}
