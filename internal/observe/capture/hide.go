package capture

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/internal/base/wire"
)

// errUnreadable is the error of a message whose secrets cannot be found.
var errUnreadable = errors.New("malformed protobuf: its secrets cannot be found")

// HasSecrets reports whether replies of a method may contain secrets.
func (r *Redactor) HasSecrets(method string) bool { return r.concerns(method, Reply) != nil }

// HideReply appends a reply of a method to dst without its secrets, and returns dst.
// It removes the fields and map entries that hold them, and copies all others. It does not keep b, and is safe for
// concurrent use.
func (r *Redactor) HideReply(dst []byte, method string, b []byte) ([]byte, error) {
	if !r.HasSecrets(method) {
		return append(dst, b...), nil
	}
	return r.concerns(method, Reply).hide(dst, b, 0)
}

func (n *secretNode) hide(dst, b []byte, depth int) ([]byte, error) {
	if depth > maxDepth {
		return dst, errUnreadable
	}
	for field, err := range wire.Fields(b) {
		if err != nil {
			return dst, errUnreadable
		}
		f := n.field(field.Number)
		switch {
		case f == nil && n.unknown, f.isSecret():
		case f == nil || f.entry == nil && !f.into.isLive():
			dst = append(dst, field.Raw...)
		case field.Type == protowire.BytesType && f.entry != nil:
			dst, err = f.entry.hide(dst, field, depth)
		case field.Type == protowire.BytesType:
			dst, err = f.into.hideIn(dst, field, depth)
		case field.Type == protowire.StartGroupType && f.into != nil:
			body := field.Bytes()
			dst, err = f.into.hide(append(dst, field.Tag()...), body, depth+1)
			dst = append(dst, field.Value[len(body):]...)
		default: // not the type in the schema: decoders treat it as an unknown field
			dst = append(dst, field.Raw...)
		}
		if err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// hideIn appends a length-delimited field that holds a message of type n.
func (n *secretNode) hideIn(dst []byte, field wire.Field, depth int) ([]byte, error) {
	body := field.Bytes()
	dst = append(dst, field.Tag()...)
	at, room := len(dst), protowire.SizeVarint(uint64(len(body)))
	dst, err := n.hide(append(dst, make([]byte, room)...), body, depth+1)
	if err != nil {
		return dst, err
	}
	size := uint64(len(dst) - at - room) // at most the old size
	if need := protowire.SizeVarint(size); need < room {
		copy(dst[at+need:], dst[at+room:])
		dst = dst[:len(dst)-room+need]
	}
	protowire.AppendVarint(dst[at:at], size)
	return dst, nil
}

// hide appends an entry of the map, unless it is secret.
func (m *secretMap) hide(dst []byte, field wire.Field, depth int) ([]byte, error) {
	key, _, ok := wire.MapEntry(field.Bytes())
	switch {
	case !ok:
		return dst, errUnreadable
	case m.some.isSecret(), m.secret != nil && m.secret(key):
		return dst, nil
	case !m.some.into.isLive():
		return append(dst, field.Raw...), nil
	}
	return m.entry.hideIn(dst, field, depth)
}

// isSecret reports whether all content of the field is secret.
func (f *secretField) isSecret() bool { return f != nil && (f.secret || f.into != nil && f.into.all) }

func (n *secretNode) isLive() bool { return n != nil && n.live }
