package plugins

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/internal/base/wire"
)

// fieldPath leads to a field of a message, through messages: "pod_meta.uid".
type fieldPath []protoreflect.FieldDescriptor

func (p fieldPath) String() string {
	var names []string
	for _, fd := range p {
		names = append(names, string(fd.Name()))
	}
	return strings.Join(names, ".")
}

// leaf returns the field at which the path ends.
func (p fieldPath) leaf() protoreflect.FieldDescriptor { return p[len(p)-1] }

// isSet reports whether m has all messages on the way to the leaf.
func (p fieldPath) isSet(m protoreflect.Message) bool {
	for _, fd := range p[:len(p)-1] {
		if !m.Has(fd) {
			return false
		}
		m = m.Get(fd).Message()
	}
	return true
}

// get returns the value in m, or the default if m does not have the field.
func (p fieldPath) get(m protoreflect.Message) protoreflect.Value {
	for _, fd := range p[:len(p)-1] {
		m = m.Get(fd).Message() // empty if the field is not set
	}
	return m.Get(p.leaf())
}

// text is get for a path to a string.
func (p fieldPath) text(m protoreflect.Message) string { return p.get(m).String() }

// strings is get for a path to a map of strings.
func (p fieldPath) strings(m protoreflect.Message) map[string]string { return textMap(p.get(m).Map()) }

// in returns the message that has the leaf. It creates messages that are missing on the way.
func (p fieldPath) in(m protoreflect.Message) protoreflect.Message {
	for _, fd := range p[:len(p)-1] {
		m = m.Mutable(fd).Message()
	}
	return m
}

// decode decodes a message that comes from a plugin, or of a fact.
func decode(t protoreflect.MessageType, data []byte) (protoreflect.Message, error) {
	m := t.New()
	if err := wire.Decode(data, m.Interface()); err != nil {
		return nil, fmt.Errorf("decoding a %s: %w", t.Descriptor().FullName(), err)
	}
	return m, nil
}

func encode(m protoreflect.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
	if err != nil {
		return nil, fmt.Errorf("encoding a %s: %w", m.Descriptor().FullName(), err)
	}
	return b, nil
}

// cloneOf returns a deep copy.
func cloneOf(m protoreflect.Message) protoreflect.Message {
	return proto.Clone(m.Interface()).ProtoReflect()
}
