package grpcgo

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"

	"github.com/mwitkow/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Pass passes the messages of a call to conn and back, with grpc-proxy's handler. ctx has the metadata
// that conn gets. grpc-proxy sends the client the header with the first message, not before, and would
// lose it if there is none: then Pass sends it with the status. The client gets its own failure, such as
// that of a message that is too long, as it is, without grpc-proxy's words.
func Pass(ctx context.Context, conn grpc.ClientConnInterface, ss grpc.ServerStream) error {
	client := &clientStream{ServerStream: ss}
	err := proxy.TransparentHandler(func(context.Context, string) (context.Context, grpc.ClientConnInterface, error) {
		return ctx, headed{conn, ss}, nil
	})(nil, client)
	if failed := client.failed.Load(); failed != nil && strings.HasPrefix(status.Convert(err).Message(), "failed proxying s2c: ") {
		return *failed
	}
	return err
}

// clientStream notes why receiving from the client failed.
type clientStream struct {
	grpc.ServerStream
	failed atomic.Pointer[error]
}

// RecvMsg receives a message, and notes an error. The end of the messages is none.
func (s *clientStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed.Store(&err)
	}
	return err
}

// headed is a connection whose streams give the header of a call without messages to the client.
type headed struct {
	grpc.ClientConnInterface
	client grpc.ServerStream
}

// NewStream opens a stream on the connection.
func (h headed) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cs, err := h.ClientConnInterface.NewStream(ctx, desc, name, opts...)
	if err != nil {
		return nil, err
	}
	return &headedStream{ClientStream: cs, client: h.client}, nil
}

// A headedStream passes on the header itself if the call ends without a message, because grpc-proxy then does not.
type headedStream struct {
	grpc.ClientStream
	client grpc.ServerStream
	begun  bool // a message has come: grpc-proxy sends the header
}

// RecvMsg receives a message. If the first one is an error, the header goes to the client from here.
func (s *headedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !s.begun {
		if header, none := s.Header(); none == nil {
			_ = s.client.SetHeader(header) // fails if the call has ended: nobody reads the header
		}
	}
	s.begun = true
	return err
}
