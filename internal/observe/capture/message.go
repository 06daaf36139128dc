package capture

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
)

// MessageOf returns the type of a method's requests if kind is Request, and of its replies
// otherwise. It returns nil if the schema does not know the method.
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
