package director

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/lastknown"
)

// What one backend answers becomes a part of a reply only if a decoder takes it: one that
// is cut off swallows the beginning of the next part, and of a reply in which one string
// is no UTF-8 Go's decoder takes nothing. So each part is looked at, the primary's too:
//
//   - One that is malformed is a [BrokenReplyError] of its backend.
//   - Text that is not valid UTF-8 becomes U+FFFD, in that part alone. An id that was
//     changed so is not the backend's own: the backend finds nothing by it.
//
// The reply of a single backend passes as it is, also where there are several.

// A BrokenReplyError says that the reply of a backend is no message of the method. It is the
// Err of a [Part], for a [Merge] that tells it from the error of a call.
type BrokenReplyError struct {
	Backend string
	Err     error
}

func (e *BrokenReplyError) Error() string {
	return fmt.Sprintf("reply of backend %s: %v", e.Backend, e.Err)
}

func (e *BrokenReplyError) Unwrap() error { return e.Err }

func (t *table) broken(backend int, err error) error {
	return &BrokenReplyError{t.backends[backend].String(), err}
}

// ask does a call on one backend, whose reply becomes a part of a merged one.
func (t *table) ask(ctx context.Context, m *method, backend int, request *codec.Frame, opts []grpc.CallOption) (*codec.Frame, error) {
	reply, err := t.invoke(ctx, m, backend, request, opts)
	if err != nil {
		return nil, err
	}
	return t.toPart(m, backend, reply)
}

// toPart returns the reply of a backend as it can be merged, with front names, and frees
// the one it was given.
func (t *table) toPart(m *method, backend int, reply *codec.Frame) (*codec.Frame, error) {
	if m.shape == nil {
		return t.toFront(m, backend, reply)
	}
	utf8, err := lastknown.CheckFrame(m.shape, reply)
	if err != nil {
		reply.Free()
		return nil, t.broken(backend, err)
	}
	if !utf8 {
		src := reply.Bytes()
		mended, err := m.shape.Mend(make([]byte, 0, len(src)+len(src)/8), src, func(fd protoreflect.FieldDescriptor) {
			if t.mended != nil {
				t.mended(t.backends[backend], m.Name, string(fd.FullName()))
			}
		})
		reply.Free()
		if err != nil {
			return nil, t.broken(backend, err)
		}
		reply = codec.NewFrame(mended)
	}
	return t.toFront(m, backend, reply)
}
