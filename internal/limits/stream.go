package limits

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/buffers"
)

// limitedStream is the stream of a client whose messages take memory before they come.
type limitedStream struct {
	grpc.ServerStream
	ctx         context.Context
	reservation *reservation
	last        int64 // taken for the request before
	sent        int64 // of replies
}

func (s *limitedStream) Context() context.Context { return s.ctx }

// messageReader is how gRPC reads a stream. gRPC reads a message without asking as soon as it
// knows its length, so limitedStream reads in its place. The type is not exported, but its
// methods are: without them, messages would be counted when they are here.
type messageReader interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	RecvCompress() string
}

// RecvMsg reads a message of the client.
func (s *limitedStream) RecvMsg(m any) error {
	s.reservation.give(s.last) // of a stream of many, one is here at a time
	s.last = 0
	f, isFrame := m.(*codec.Frame)
	r, canRead := grpc.ServerTransportStreamFromContext(s.ServerStream.Context()).(messageReader)
	if !isFrame || !canRead {
		return s.ServerStream.RecvMsg(m)
	}
	var header [5]byte
	if err := r.ReadMessageHeader(header[:]); err != nil {
		return received(err)
	}
	n := int(binary.BigEndian.Uint32(header[1:]))
	if n > s.reservation.memory.maxMessage {
		return status.Errorf(codes.ResourceExhausted, "criproxy: the request is %d bytes, more than the limit of %d; raise -max-message-bytes", n, s.reservation.memory.maxMessage)
	}
	compressed := header[0] == 1
	room := int64(n)
	if compressed {
		room = int64(s.reservation.memory.maxMessage) // the length is unknown before
	}
	if err := s.reservation.take(s.ctx, room); err != nil {
		return err
	}
	s.last = room
	bufs, err := r.Read(n)
	if err != nil {
		return received(err)
	}
	if compressed {
		if bufs, err = s.decompress(r.RecvCompress(), bufs); err != nil {
			return err
		}
	}
	defer bufs.Free()
	return codec.Raw.Unmarshal(bufs, f)
}

// received is the status of a message that could not be read.
func received(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return status.Error(codes.Internal, "criproxy: the request ended in the middle of a message")
	}
	return err
}

func (s *limitedStream) decompress(how string, bufs mem.BufferSlice) (mem.BufferSlice, error) {
	defer bufs.Free()
	if how != "gzip" {
		return nil, status.Errorf(codes.Unimplemented, "criproxy: the request is compressed by %q; want gzip, or none", how)
	}
	r := bufs.Reader()
	defer r.Close() // it was only read
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "criproxy: decompressing the request: %v", err)
	}
	whole, err := mem.ReadAll(io.LimitReader(z, int64(s.reservation.memory.maxMessage)+1), mem.DefaultBufferPool())
	switch {
	case err != nil:
		whole.Free()
		return nil, status.Errorf(codes.Internal, "criproxy: decompressing the request: %v", err)
	case whole.Len() > s.reservation.memory.maxMessage:
		whole.Free()
		return nil, status.Errorf(codes.ResourceExhausted, "criproxy: the request is more than the limit of %d bytes when it is decompressed; raise -max-message-bytes", s.reservation.memory.maxMessage)
	}
	return whole, nil
}

// SendMsg sends a reply, and holds its memory until it is on the wire. A reply without room is
// sent all the same: it is here, and the call may have changed something.
func (s *limitedStream) SendMsg(m any) error {
	if f, ok := m.(*codec.Frame); ok {
		n := int64(f.Len())
		s.sent += n
		s.reservation.sends(n)
		if n >= smallMessage {
			*f = *codec.FrameOfBuffers(buffers.OnFree(f.Buffers(), s.reservation.share()))
		}
	}
	return s.ServerStream.SendMsg(m)
}
