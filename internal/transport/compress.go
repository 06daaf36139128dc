package transport

import (
	"bytes"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // peers may compress
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
)

// decompress returns a compressed message of s as a frame, using the compressor that is registered
// with gRPC for the encoding how; unknown is the code of the error if there is none. Because the
// decompressed length is not known in advance, decompress reserves memory for most bytes.
func (s *stream) decompress(m message, how string, most int, unknown codes.Code) (*codec.Frame, error) {
	defer m.frame().Free()
	if how == "" || how == encoding.Identity {
		return nil, status.Error(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
	}
	c := encoding.GetCompressor(how)
	if c == nil {
		return nil, status.Errorf(unknown, "grpc: Decompressor is not installed for grpc-encoding %q", how)
	}
	budget := s.conn.cfg.budget
	if err := budget.Reserve(s.ctx, most); err != nil {
		return nil, err
	}
	whole, err := readCompressed(c, m.data, most)
	if err != nil {
		budget.Release(s.ctx, most)
		return nil, err
	}
	taken := &reservation{budget: budget, ctx: s.ctx, n: most}
	return codec.FrameOfBuffers(buffers.OnFree(mem.BufferSlice{mem.NewBuffer(&whole, mem.NopBufferPool{})}, taken.release)), nil
}

// readCompressed decompresses at most most bytes. A few bytes may stand for gigabytes, so it never reads more of them.
func readCompressed(c encoding.Compressor, data []byte, most int) ([]byte, error) {
	r, err := c.Decompress(bytes.NewReader(data))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v", err)
	}
	whole, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v", err)
	}
	if len(whole) > most {
		return nil, status.Errorf(codes.ResourceExhausted, "grpc: message after decompression larger than max (%d vs. %d)", len(whole), most)
	}
	return whole, nil
}
