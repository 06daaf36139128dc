package director

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/lastknown"
)

// The reply of one backend becomes a part of a merged reply only if a decoder accepts it: a
// part that is cut off would swallow the beginning of the next one, and Go's decoder rejects a
// whole reply for one string that is not UTF-8. So each part is checked, the primary's too:
//
//   - A part that is malformed is a [BrokenReplyError] of its backend.
//   - Text that is not UTF-8 becomes U+FFFD, in that part alone. The backend does not find
//     anything by an id that was changed so.
//
// A reply that goes to the client alone passes as it is.

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

// toPart returns the reply of a backend with front names, checked for merging, and takes over
// the one it gets.
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
