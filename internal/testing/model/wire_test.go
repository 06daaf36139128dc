package model

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
)

// wire is a connection of one process to a runtime, at one address.
type wire struct {
	runtime *runtime
	address int
	process int
	retired bool // the process ignores its answers; world.mu guards it
}

// Invoke makes a unary call.
func (w *wire) Invoke(ctx context.Context, name string, args, reply any, _ ...grpc.CallOption) error {
	request, err := codec.FrameOf(args)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	answer, err := w.serve(ctx, name, append([]byte(nil), request.Bytes()...))
	if err != nil {
		return err
	}
	return codec.Decode(reply, codec.NewFrame(answer))
}

// has reports whether the runtime has a method: two of the runtimes have only one way to list.
func (w *wire) has(method string) bool {
	switch method {
	case "StreamPodSandboxes", "StreamContainers", "StreamImages", "StreamContainerStats":
		return w.runtime.name != "A"
	case "ListPodSandbox", "ListContainers":
		return w.runtime.name != "C"
	}
	return true
}

// NewStream opens a streaming call.
func (w *wire) NewStream(ctx context.Context, _ *grpc.StreamDesc, name string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	if name == eventsMethod {
		return &eventStream{ctx: ctx, wire: w}, nil
	}
	return &stream{ctx: ctx, wire: w, name: name}, nil
}

// stream is a list in several messages.
type stream struct {
	ctx     context.Context
	wire    *wire
	name    string
	request []byte
	asked   bool
	rest    []byte
}

func (s *stream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err == nil {
		s.request = append([]byte(nil), f.Bytes()...)
	}
	return err
}

func (s *stream) CloseSend() error { return nil }

func (s *stream) RecvMsg(m any) error {
	if !s.asked {
		s.asked = true
		var err error
		if s.rest, err = s.wire.serve(s.ctx, s.name, s.request); err != nil {
			return err
		}
	}
	if len(s.rest) == 0 {
		return io.EOF
	}
	n := len(s.rest)
	if _, _, first := protowire.ConsumeField(s.rest); first > 0 {
		n = first
	}
	part := s.rest[:n]
	s.rest = s.rest[n:]
	return codec.Decode(m, codec.NewFrame(part))
}

func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) Trailer() metadata.MD         { return nil }
func (s *stream) Context() context.Context     { return s.ctx }
