package criadapter

import "google.golang.org/protobuf/reflect/protoreflect"

// Given reports fields in which a runtime names what it made: pods, containers, images.
func (n *Names) Given(fd protoreflect.FieldDescriptor) bool {
	switch n.kind(fd) {
	case "sandbox", "container", "image":
		return true
	}
	return false
}

// Bare returns an id as its runtime has it, empty if it has no runtime's prefix.
func (n *Names) Bare(id string) string { return n.profile.Bare(id) }

// Volatile reports fields of CRI that are another in each run of the same calls: those that
// cri.yaml has under volatile.
func Volatile(fd protoreflect.FieldDescriptor) bool { return builtIn().IsVolatile(fd) }
