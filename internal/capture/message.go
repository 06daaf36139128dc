package capture

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
)

// messageOf returns the type of an event's payload, nil if the schema does not
// know it.
func messageOf(schema *codec.Schema, ev *Event) protoreflect.MessageDescriptor {
	m := schema.Method(ev.Method)
	switch {
	case m == nil:
		return nil
	case ev.Kind == Request:
		return m.Input
	default:
		return m.Output
	}
}
