package director

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/backend"
)

// The reply of a backend becomes a part of a merged reply only if a decoder accepts it: a part
// that is cut off would swallow the beginning of the next one, and Go's decoder rejects a whole
// reply for one string that is not UTF-8. So the director checks each part, the primary's too:
//
//   - A malformed part is a [BrokenReplyError] of its backend.
//   - Text that is not UTF-8 becomes U+FFFD, in that part alone. An id that was changed so is
//     unknown to the backend.
//
// A reply that is not merged passes as it is.

// A BrokenReplyError says that the reply of a backend is malformed. It is the Err of a [Part] whose
// call succeeded, so that a [Merge] can tell it from the error of a call.
type BrokenReplyError struct {
	Backend string
	Err     error
}

func (e *BrokenReplyError) Error() string {
	return fmt.Sprintf("reply of backend %s: %v", e.Backend, e.Err)
}

func (e *BrokenReplyError) Unwrap() error { return e.Err }

// broken is the error of a reply of a backend that cannot be read.
func (t *table) broken(backend int, err error) error {
	return &BrokenReplyError{t.backends[backend].String(), err}
}

// toPart returns the reply of a backend with front names, checked for merging. It takes ownership
// of the reply that it gets. It mends the text before the names are translated, so that no edit sees
// broken text.
func (t *table) toPart(m *method, from int, reply *codec.Frame) (*codec.Frame, error) {
	if m.shape == nil {
		return t.toFront(m, from, reply)
	}
	utf8, err := backend.CheckFrame(m.shape, reply)
	if err != nil {
		reply.Free()
		return nil, t.broken(from, err)
	}
	if !utf8 {
		src := reply.Bytes()
		mended, err := m.shape.Mend(make([]byte, 0, len(src)+len(src)/8), src, func(fd protoreflect.FieldDescriptor) {
			if t.mended != nil {
				t.mended(t.backends[from], m.Name, string(fd.FullName()))
			}
		})
		reply.Free()
		if err != nil {
			return nil, t.broken(from, err)
		}
		reply = codec.NewFrame(mended)
	}
	return t.toFront(m, from, reply)
}
