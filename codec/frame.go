package codec

import (
	"fmt"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A Frame is one gRPC message, not decoded. The zero Frame is the empty
// message, and what a receive is given to fill.
//
// A frame owns a reference to its bytes, which may be pooled. Whoever ends up
// with a frame may call [Frame.Free] when nobody looks at its bytes any more;
// a frame that is never freed costs nothing but the reuse of its memory.
//
// A frame must not be used by two goroutines at once, except that any number
// may send it, or read its Bytes, once Bytes has been called.
type Frame struct {
	bufs mem.BufferSlice
}

// NewFrame returns a frame of b, which it takes over: b must not change again.
func NewFrame(b []byte) *Frame {
	if len(b) == 0 {
		return &Frame{}
	}
	return &Frame{bufs: mem.BufferSlice{mem.SliceBuffer(b)}}
}

// NewPooledFrame is NewFrame for a buffer that goes back to pool when the frame
// is freed.
func NewPooledFrame(b *[]byte, pool mem.BufferPool) *Frame {
	return &Frame{bufs: mem.BufferSlice{mem.NewBuffer(b, pool)}}
}

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

// Held returns how much memory the bytes keep from being used for anything else: Len, and
// what is left over of the buffers they are in.
func (f *Frame) Held() int {
	n := 0
	for _, b := range f.bufs {
		n += cap(b.ReadOnlyData())
	}
	return n
}

// Bytes returns the message in one piece. The bytes are the frame's: they must
// not be changed, nor be kept beyond Free.
//
// Large messages come in pieces; the first call joins them.
func (f *Frame) Bytes() []byte {
	switch len(f.bufs) {
	case 0:
		return nil
	case 1:
		return f.bufs[0].ReadOnlyData()
	}
	whole := f.bufs.MaterializeToBuffer(Pool)
	f.bufs.Free()
	f.bufs = mem.BufferSlice{whole}
	return whole.ReadOnlyData()
}

// Pieces yields the message in the pieces that it came in. Like AppendTo it leaves them as
// they are. A piece is the frame's: it must not be changed, nor be kept beyond Free.
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
// Unlike Bytes it leaves the pieces of a large message as they are: any number of
// goroutines may call it at once.
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

// Ref returns a second frame of the same bytes, to be freed on its own.
func (f *Frame) Ref() *Frame {
	f.bufs.Ref()
	return &Frame{bufs: f.bufs}
}

// Head returns a frame of the pieces that the first n bytes of the message are in, to be freed
// on its own. It may have more than n bytes, since it copies none.
func (f *Frame) Head(n int) *Frame {
	head := &Frame{}
	for _, b := range f.bufs {
		if n <= 0 {
			break
		}
		b.Ref()
		head.bufs = append(head.bufs, b)
		n -= b.Len()
	}
	return head
}

// Free gives the bytes back. The frame is empty afterwards.
func (f *Frame) Free() {
	f.bufs.Free()
	f.bufs = nil
}

// FrameOf returns the message v as a frame: v itself if it is one, or the bytes
// of a protobuf message. grpc-proxy pumps messages of type *emptypb.Empty, all
// of whose fields are unknown.
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

// Deliver stores f in v, which is a *Frame or a protobuf message, and takes f
// over. It is how a message that was made up here, or edited, reaches the
// argument of a receive.
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
		if err := Decode(f.Bytes(), m); err != nil {
			return fmt.Errorf("decoding a %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
		}
	default:
		return fmt.Errorf("cannot receive into a %T: neither a *codec.Frame nor a protobuf message", v)
	}
	return nil
}

// OnFree has done called, once, when nobody holds the bytes of the frame any more: not
// the caller, which frees it as usual, and not gRPC, which holds what was sent until it is
// on the wire. Where somebody forgets to free, it is called when the memory is reclaimed.
// It may be called before OnFree returns, and in any goroutine.
func (f *Frame) OnFree(done func()) {
	h := &holder{done: sync.OnceFunc(done)}
	runtime.AddCleanup(h, func(done func()) { done() }, h.done)
	h.left.Store(1)                              // until all pieces are counted
	pieces := make(mem.BufferSlice, len(f.bufs)) // those of f may be others' as well
	for i, b := range f.bufs {
		data := b.ReadOnlyData()
		if mem.IsBelowBufferPoolingThreshold(cap(data)) {
			pieces[i] = b // gRPC does not count who holds it, and it is small
			continue
		}
		h.left.Add(1)
		pieces[i] = mem.NewBuffer(&data, &piece{b, h})
	}
	f.bufs = pieces
	h.freed()
}

// holder counts the pieces of a frame that somebody holds.
type holder struct {
	left atomic.Int32
	done func()
}

func (h *holder) freed() {
	if h.left.Add(-1) == 0 {
		h.done()
	}
}

// piece is where a piece of a frame goes when it is freed. It is a pool for one.
type piece struct {
	mem.Buffer
	holder *holder
}

// Get is not called: nothing is taken from here.
func (p *piece) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put gives the piece back to where it is from.
func (p *piece) Put(*[]byte) {
	p.Free()
	p.holder.freed()
}
