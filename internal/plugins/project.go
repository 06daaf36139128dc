package plugins

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/rewrite"
)

// projection copies fields of a request into the message about an object. It leaves a field as it
// is if that of the request is empty.
type projection []fill

// fill is one field of a projection.
type fill struct{ to, from *rewrite.Path }

// run copies fields of the request src into m. left names the fields that it left out because they
// are not UTF-8, which a message cannot hold.
func (p projection) run(m protoreflect.Message, src []byte) (left []string, err error) {
	var t taking
	var filled []byte
	for _, f := range p {
		err := f.from.All(src, func(content []byte) error {
			content, ok, err := t.content(f.to.String(), f.to.Leaf(), f.from.Leaf(), content)
			if ok {
				filled = f.to.Append(filled, content)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	taken, err := decode(m.Type(), filled)
	if err == nil {
		update(m, taken)
	}
	return t.left, err
}

// update sets the fields of m that from has: messages field by field, maps entry by entry.
func update(m, from protoreflect.Message) {
	from.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			entries := m.Mutable(fd).Map()
			v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
				entries.Set(k, e)
				return true
			})
		case fd.Message() != nil && !fd.IsList():
			update(m.Mutable(fd).Message(), v.Message())
		default:
			m.Set(fd, v)
		}
		return true
	})
}

// taking takes fields of serialized requests for messages to plugins.
type taking struct{ left []string }

// content returns what the field to gets of the content of the field from, which is a message, a
// string, or an item or an entry of one of those. ok is false if it gets nothing.
func (t *taking) content(name string, to, from protoreflect.FieldDescriptor, src []byte) (content []byte, ok bool, err error) {
	switch {
	case to.IsMap(): // from may be a list of messages that have the fields of entries, key and value
		if key, value, _ := wire.MapEntry(src); !utf8.Valid(key) || !utf8.Valid(value) {
			t.left = append(t.left, fmt.Sprintf("%s[%q]", name, key))
			return nil, false, nil
		}
	case to.Message() != nil:
		content, err = t.message(name, to.Message(), from.Message(), src)
		return content, true, err
	case !utf8.Valid(src):
		t.left = append(t.left, name)
		return nil, false, nil
	}
	return src, true, nil
}

// message returns the fields of src that to and from have under the same name and number.
func (t *taking) message(name string, to, from protoreflect.MessageDescriptor, src []byte) (message []byte, err error) {
	for f, err := range wire.Fields(src) {
		if err != nil {
			return nil, err
		}
		a, b := to.Fields().ByNumber(f.Number), from.Fields().ByNumber(f.Number)
		switch {
		case a == nil || b == nil || a.Name() != b.Name():
		case f.Type != protowire.BytesType:
			message = append(message, f.Raw...)
		default:
			content, ok, err := t.content(name+"."+string(a.Name()), a, b, f.Bytes())
			if err != nil {
				return nil, err
			}
			if ok {
				message = protowire.AppendBytes(append(message, f.Tag()...), content)
			}
		}
	}
	return message, nil
}
