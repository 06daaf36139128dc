package capture

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
)

// MessageOf returns the type of the requests of a method, or of its replies, by the kind of event.
// It is nil if the schema does not know the method.
func MessageOf(schema *codec.Schema, method string, kind Kind) protoreflect.MessageDescriptor {
	m := schema.Method(method)
	switch {
	case m == nil:
		return nil
	case kind == Request:
		return m.Input
	default:
		return m.Output
	}
}
