package codec

import (
	"fmt"
	"iter"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/criproxy/criproxy/internal/buffers"
	"github.com/criproxy/criproxy/internal/wire"
)

// A Frame is one gRPC message, not decoded. The zero Frame is the empty message; a receive fills
// one.
//
// A frame owns a reference to its bytes, which may be pooled. The owner of a frame may call
// [Frame.Free] when its bytes are no longer in use; a frame that is never freed costs the reuse
// of its memory and nothing else.
//
// One goroutine at a time may use a frame. Once one has called Bytes, any number may send the
// frame or read its Bytes.
type Frame struct {
	bufs mem.BufferSlice
}

// NewFrame returns a frame of b, which it takes over: the caller does not change b again.
func NewFrame(b []byte) *Frame {
	if len(b) == 0 {
		return &Frame{}
	}
	return &Frame{bufs: mem.BufferSlice{mem.SliceBuffer(b)}}
}

// FrameOfBuffers returns a frame of bufs, which it takes over: the frame owns the caller's
// reference to each, and Free gives it back.
func FrameOfBuffers(bufs mem.BufferSlice) *Frame { return &Frame{bufs: bufs} }

// Buffers returns the buffers that the message is in. They stay the frame's: a caller that keeps
// one beyond Free takes a reference of its own.
func (f *Frame) Buffers() mem.BufferSlice { return f.bufs }

// Concat returns the frames as one message, in their order, without copying.
// It takes the frames over. Concatenated messages are the merged message.
func Concat(frames []*Frame) *Frame {
	all := &Frame{}
	for _, f := range frames {
		all.bufs = append(all.bufs, f.bufs...)
		f.bufs = nil
	}
	return all
}

// Len returns the number of bytes.
func (f *Frame) Len() int { return f.bufs.Len() }

// Bytes returns the message in one piece. The bytes stay the frame's: the caller neither changes
// them nor keeps them beyond Free.
//
// Large messages come in pieces; the first call copies them into one.
func (f *Frame) Bytes() []byte {
	switch len(f.bufs) {
	case 0:
		return nil
	case 1:
		return f.bufs[0].ReadOnlyData()
	}
	whole := f.bufs.MaterializeToBuffer(buffers.Pool)
	f.bufs.Free()
	f.bufs = mem.BufferSlice{whole}
	return whole.ReadOnlyData()
}

// Pieces yields the message in the pieces in which it came, and does not join them. A piece
// stays the frame's: the caller neither changes it nor keeps it beyond Free.
func (f *Frame) Pieces() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, b := range f.bufs {
			if !yield(b.ReadOnlyData()) {
				return
			}
		}
	}
}

// AppendTo appends at most limit bytes of the message to dst and returns dst.
// It does not join the pieces of a large message, so that any number of goroutines may call it
// at once.
func (f *Frame) AppendTo(dst []byte, limit int) []byte {
	for _, b := range f.bufs {
		piece := b.ReadOnlyData()
		if len(piece) > limit {
			piece = piece[:limit]
		}
		dst = append(dst, piece...)
		limit -= len(piece)
	}
	return dst
}

// Ref returns a second frame of the same bytes, with a reference of its own.
func (f *Frame) Ref() *Frame {
	f.bufs.Ref()
	return &Frame{bufs: f.bufs}
}

// Free gives the bytes back. The frame is empty afterwards.
func (f *Frame) Free() {
	f.bufs.Free()
	f.bufs = nil
}

// FrameOf returns the message v as a frame: v itself if it is one, or the encoding of a protobuf
// message. Of an *emptypb.Empty, which grpc-proxy pumps, it takes the unknown fields without a
// copy.
func FrameOf(v any) (*Frame, error) {
	switch m := v.(type) {
	case *Frame:
		return m, nil
	case *emptypb.Empty:
		return NewFrame(m.ProtoReflect().GetUnknown()), nil
	case proto.Message:
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encoding a %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
		}
		return NewFrame(b), nil
	default:
		return nil, fmt.Errorf("cannot send a %T: neither a *codec.Frame nor a protobuf message", v)
	}
}

// Room returns the frame to receive into, in place of v: v itself if it is a frame, otherwise a new
// one. [Deliver] then fills v from it, once it has been received.
func Room(v any) *Frame {
	if f, ok := v.(*Frame); ok {
		return f
	}
	return &Frame{}
}

// Deliver stores f in v, which is a *Frame or a protobuf message, and takes f over, also if it
// fails. With it code that stands in the middle of a call fills the argument of a receive.
func Deliver(v any, f *Frame) error {
	if m, ok := v.(*Frame); ok {
		if m != f {
			*m = *f
		}
		return nil
	}
	defer f.Free()
	switch m := v.(type) {
	case *emptypb.Empty:
		m.ProtoReflect().SetUnknown(f.bufs.Materialize())
	case proto.Message:
		if err := wire.Decode(f.Bytes(), m); err != nil {
			return fmt.Errorf("decoding a %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
		}
	default:
		return fmt.Errorf("cannot receive into a %T: neither a *codec.Frame nor a protobuf message", v)
	}
	return nil
}
