// Package dump shows serialized messages to people: on one line ([Text.Append]), on many
// ([Lines]), as JSON ([AppendJSON]), and as what differs between two ([Text.Diff]).
//
// One tree ([Text.Tree]) has what a message says, in the order of the wire, with guesses at
// what the schema does not know; secrets are not in it. JSON is made without the tree,
// because it merges what a decoder would merge, and because captures are written at the rate
// of calls.
package dump

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Text says how to print frames for people. The zero Text prints everything but
// secrets, on one line:
//
//	container_id: "7f" timeout: 10 labels["app"]: "web" 99: "unknown field"
//
// It never fails: fields that the schema does not know are printed by number with a guess at
// their meaning, and a message that is malformed is printed up to there.
type Text struct {
	// Secret reports fields to hide beyond those that the schema itself marks
	// with debug_redact. Optional.
	Secret func(protoreflect.FieldDescriptor) bool
	// SecretKey reports entries of maps to hide, by their key. Optional.
	SecretKey func(fd protoreflect.FieldDescriptor, key []byte) bool
	// Unsafe prints secrets too.
	Unsafe bool
	// MaxValue cuts strings and bytes that are longer, in bytes. Zero means
	// no limit.
	MaxValue int
}

// Redacted stands in place of a secret.
const Redacted = "[redacted]"

// maxDepth bounds how deep messages may nest.
const maxDepth = 100

// isSecret reports whether the content of fd must not be shown.
func (t Text) isSecret(fd protoreflect.FieldDescriptor) bool {
	return !t.Unsafe && (MarkedSecret(fd) || t.Secret != nil && t.Secret(fd))
}

// HidesUnknown reports whether fields of md that the schema does not know must not be shown:
// if one field of a message is secret, as in one with credentials, a newer one most likely
// is, too.
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
