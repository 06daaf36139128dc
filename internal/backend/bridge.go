package backend

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/inventory"
)

// Bridge returns a connection to a backend without a cache on which each list has both its methods, even if the backend has
// only one of them: List, which answers in one message, or Stream. A client may stop streaming for good, from all backends, at
// the first Unimplemented. A backend that has both methods gets exactly the calls that clients make.
func Bridge(conn codec.Caller, lists []inventory.List, schema *codec.Schema, pkg string) (codec.Caller, error) {
	plan, err := inventory.Compile(inventory.Spec{Lists: lists}, schema, pkg, nil)
	if err != nil {
		return nil, err
	}
	b := &bridge{Caller: conn, pairs: map[string]*inventory.ListPlan{}}
	for _, l := range plan.Lists {
		if l.Unary != nil && l.Stream != nil {
			b.pairs[l.Unary.Name], b.pairs[l.Stream.Name] = l, l
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

// bridge is the connection of Bridge. It is immutable.
type bridge struct {
	codec.Caller
	pairs map[string]*inventory.ListPlan // :: full method → its list
}

// Call makes a unary call. It makes the reply of a List from a Stream if the backend has no List.
func (b *bridge) Call(ctx context.Context, call *codec.Call) error {
	err := b.Caller.Call(ctx, call)
	if l := b.pairs[call.Method]; l != nil {
		return or(l, err, func() error { return collect(ctx, b.Caller, l, call, nil) })
	}
	return err
}

// or returns err of one method of a list, or the error of the other one if err says that the backend lacks only the first.
func or(l *inventory.ListPlan, err error, other func() error) error {
	if l.Unary != nil && l.Stream != nil && Lacks(err) {
		if otherErr := other(); !Lacks(otherErr) {
			return otherErr
		}
	}
	return err
}

// Open opens a stream. It makes the messages of a Stream from a List if the backend has no Stream, which
// only its first answer shows.
func (b *bridge) Open(ctx context.Context, desc *grpc.StreamDesc, name string, first *codec.Frame) (codec.Stream, error) {
	s, err := b.Caller.Open(ctx, desc, name, first)
	l := b.pairs[name]
	if err != nil || l == nil || first == nil {
		return s, err
	}
	f, err := s.Recv()
	if Lacks(err) {
		call := &codec.Call{Method: l.Unary.Name, Request: first}
		if listErr := b.Caller.Call(ctx, call); !Lacks(listErr) {
			return streamOf(call, listErr), nil
		} // else it has neither
	}
	return &begunStream{s, f, err}, nil
}

// begunStream is a stream from which somebody has received once.
type begunStream struct {
	codec.Stream
	first *codec.Frame // nil: it has been received
	err   error
}

func (s *begunStream) Recv() (*codec.Frame, error) {
	if f := s.first; f != nil || s.err != nil {
		s.first = nil
		return f, s.err
	}
	return s.Stream.Recv()
}

// maxCollected and maxParts bound a list that a backend streams: the bytes are 16 times what fits in one message.
const (
	maxCollected = 256 << 20
	maxParts     = 1 << 20
)

// collect asks for a list by its streaming method and joins the parts into one message. It
// checks each part, because one that is cut off would swallow the beginning of the next.
func collect(ctx context.Context, next codec.Caller, l *inventory.ListPlan, call *codec.Call, reserve func(context.Context, int) error) error {
	name := l.Stream.Name
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := next.Open(ctx, &grpc.StreamDesc{ServerStreams: true}, name, call.Request)
	if err != nil {
		return err
	}
	var parts []*codec.Frame
	utf8 := true
	size := 0
	for {
		f, err := s.Recv()
		if err == nil && reserve != nil {
			err = reserve(ctx, f.Len())
		}
		if err == nil {
			text, err := wellFormed(l.Shape, name, f)
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
		call.Header, _ = s.Header()
		call.Trailer = s.Trailer()
		if errors.Is(err, io.EOF) {
			call.Reply, call.UTF8, call.WellFormed = codec.Concat(parts), utf8, true
			return nil
		}
		return err
	}
}
