// Package rewrite finds and edits named fields of a serialized protobuf
// message, and leaves every other byte as it was.
//
// A [Rule] gives a field a class: "Container.id is a container id". [Classify] resolves rules
// against descriptors, once. The [Plan] that it makes for a message type is a loop over the bytes
// of a message, and decodes nothing but the fields that the rules name:
//
//	classes, err := rewrite.Classify(roots, []rewrite.Rule{
//		{Field: "Container.id", Class: container},
//	})
//	plan := classes.Plan(listContainersResponse)
//	out, err := plan.Apply(nil, in, func(dst []byte, c rewrite.Class, v []byte) ([]byte, error) {
//		return append(append(dst, "beta.io__"...), v...), nil
//	})
//
// An edit that returns the value it gets leaves every byte of a valid message as it was: field
// order, unknown fields, invalid UTF-8, explicit zeros and oversized varints survive. Malformed
// input is an error, never a panic and never a shortened copy.
//
// Everything here is pure: no goroutine, no gRPC, no I/O. Plans are immutable
// and may be used by any number of goroutines at once.
//
// # Stability
//
// Programs may build on this package, with director and codec. It follows semantic versioning:
// docs/stability.md says what stays the same.
package rewrite
