// Package dump shows serialized messages to people: on one line ([Text.Append]), on several lines
// ([Lines]), as JSON ([AppendJSON]), and as the differences between two messages ([Text.Diff]).
//
// A tree ([Text.Tree]) holds the fields of a message in wire order, with guesses at fields that the
// schema does not know, and without secrets. AppendJSON uses no tree, because it merges fields as a
// decoder does, and because captures are written at the rate of calls.
package dump

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Text says how to print messages for people. The zero Text prints everything except secrets, on
// one line:
//
//	container_id: "7f" timeout: 10 labels["app"]: "web" 99: "unknown field"
//
// Printing never fails: fields that the schema does not know are printed by number with a guess at
// their values, and a malformed message is printed up to the malformed field.
type Text struct {
	Secrets Secrets // not to print
	// Unsafe prints secrets too.
	Unsafe bool
	// MaxValue is the length from which strings and bytes are cut, in bytes. Zero means no limit.
	MaxValue int
}

// Redacted replaces a secret.
const Redacted = "[redacted]"

// maxDepth bounds how deep messages may nest.
const maxDepth = 100

// isSecret reports whether the content of fd must not be shown.
func (t Text) isSecret(fd protoreflect.FieldDescriptor) bool {
	return !t.Unsafe && t.Secrets.HasField(fd)
}

// HidesUnknown reports whether fields of md that the schema does not know must be hidden. If one
// field of a message is secret, as in a message with credentials, a field of a newer version
// probably is, too.
func (t Text) HidesUnknown(md protoreflect.MessageDescriptor) bool {
	if md == nil || t.Unsafe {
		return false
	}
	for i := range md.Fields().Len() {
		if fd := md.Fields().Get(i); !fd.IsMap() && t.isSecret(fd) {
			return true
		}
	}
	return false
}

// MarkedSecret reports whether the schema marks fd with debug_redact. Go's protobuf ignores
// that mark when it prints a message.
func MarkedSecret(fd protoreflect.FieldDescriptor) bool {
	o, ok := fd.Options().(*descriptorpb.FieldOptions)
	return ok && o.GetDebugRedact()
}
