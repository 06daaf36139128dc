package codec

import (
	"fmt"
	"iter"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/criproxy/criproxy/internal/base/buffers"
	"github.com/criproxy/criproxy/internal/base/wire"
)

// A Frame is one gRPC message that is not decoded. The zero Frame is the empty message, and a
// frame to receive into.
//
// A frame owns a reference to its bytes, which may be pooled. The owner of a frame may call
// [Frame.Free] when its bytes are no longer in use; if nothing frees a frame, the garbage
// collector frees its memory.
//
// One goroutine at a time may use a frame. After a call of Bytes, several goroutines may send the
// frame or read its Bytes at once.
type Frame struct {
	bufs mem.BufferSlice
}

// NewFrame returns a frame whose message is b. It takes ownership of b, which the caller must not
// change again.
func NewFrame(b []byte) *Frame {
	if len(b) == 0 {
		return &Frame{}
	}
	return &Frame{bufs: mem.BufferSlice{mem.SliceBuffer(b)}}
}

// FrameOfBuffers returns a frame whose message is in bufs. It takes ownership of the caller's
// reference to each buffer, and Free releases it.
func FrameOfBuffers(bufs mem.BufferSlice) *Frame { return &Frame{bufs: bufs} }

// Buffers returns the buffers that the message is in. They belong to the frame: a caller that
// keeps one beyond Free must take a reference of its own.
func (f *Frame) Buffers() mem.BufferSlice { return f.bufs }

// Concat joins frames, in their order and without copying, and takes ownership of them. To a
// protobuf decoder, concatenated messages are the merged message.
func Concat(frames []*Frame) *Frame {
	all := &Frame{}
	for _, f := range frames {
		all.bufs = append(all.bufs, f.bufs...)
		f.bufs = nil
	}
	return all
}

// Len returns the length of the message in bytes.
func (f *Frame) Len() int { return f.bufs.Len() }

// Bytes returns the message in one piece. The bytes belong to the frame: the caller must neither
// change them nor keep them beyond Free.
//
// A large message comes in several pieces, which the first call of Bytes copies into one.
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

// Pieces yields the message in the pieces in which it came, without joining them. A piece belongs
// to the frame: the caller must neither change it nor keep it beyond Free.
func (f *Frame) Pieces() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, b := range f.bufs {
			if !yield(b.ReadOnlyData()) {
				return
			}
		}
	}
}

// AppendTo appends the message, but no more than its first limit bytes, to dst and returns dst.
// It does not join the pieces of a large message, so several goroutines may call it at once.
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

// Ref returns a second frame with the same bytes and a reference of its own to them.
func (f *Frame) Ref() *Frame {
	f.bufs.Ref()
	return &Frame{bufs: f.bufs}
}

// Free releases the frame's reference to its bytes. The frame is empty afterwards.
func (f *Frame) Free() {
	f.bufs.Free()
	f.bufs = nil
}

// FrameOf returns the message v as a frame: v itself if it is a *Frame, the unknown fields of an
// *emptypb.Empty, without a copy, or the encoding of any other protobuf message.
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

// ReplyFrame returns a frame to receive into in place of v: v itself if it is a *Frame, otherwise a new
// one. After the receive, [Decode] fills v from that frame.
func ReplyFrame(v any) *Frame {
	if f, ok := v.(*Frame); ok {
		return f
	}
	return &Frame{}
}

// Decode stores f in v, which is a *Frame or a protobuf message. It takes ownership of f, even if
// it fails. Code in the middle of a call fills in the argument of a receive with it.
func Decode(v any, f *Frame) error {
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
