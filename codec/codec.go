package codec

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Raw is the gRPC codec for frames, which it sends and receives by reference.
//
// It carries the unknown fields of an *emptypb.Empty, as which grpc-proxy's handler forwards every
// message, without parsing them: it sends them by reference, and receives them with one copy. It
// encodes all other protobuf messages as usual, so that typed services can share a server or a
// connection with frames.
//
// The name of the codec is empty, so that the content type stays the plain "application/grpc" that
// protobuf clients send.
var Raw encoding.CodecV2 = raw{}

type raw struct{}

func (raw) Name() string { return "" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	f, err := FrameOf(v)
	if err != nil {
		return nil, err
	}
	f.bufs.Ref() // gRPC frees one reference when the bytes are on the wire
	return f.bufs, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref() // gRPC frees its own reference when Unmarshal returns
	return Decode(v, &Frame{bufs: data})
}
