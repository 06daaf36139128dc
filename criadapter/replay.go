package criadapter

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Given reports fields in which a runtime names what it made: pods, containers, images.
func (n *Names) Given(fd protoreflect.FieldDescriptor) bool {
	switch n.kind(fd) {
	case "sandbox", "container", "image":
		return true
	}
	return false
}

// Volatile reports fields of CRI that are another in each run of the same calls: times,
// what is measured, and the addresses of pods.
func Volatile(fd protoreflect.FieldDescriptor) bool {
	if !isCRI(fd) {
		return false
	}
	switch fd.Name() {
	case "created_at", "started_at", "finished_at", "timestamp", "ip":
		return true
	}
	switch parent := string(fd.Parent().Name()); {
	case fd.Message() != nil || fd.Kind() == protoreflect.StringKind || fd.IsList():
		return false
	case strings.HasSuffix(parent, "Usage"), strings.HasPrefix(parent, "Psi"), parent == "UInt64Value", parent == "Metric":
		return true
	}
	return false
}

func isCRI(fd protoreflect.FieldDescriptor) bool {
	pkg := string(fd.ParentFile().Package())
	return pkg == "runtime" || strings.HasPrefix(pkg, "runtime.v1")
}
