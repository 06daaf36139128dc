// Package rewrite finds and edits named fields of a serialized protobuf
// message, and leaves every other byte as it was.
//
// A [Rule] says which fields matter ("Container.id is a container id"). Rules are resolved
// against descriptors once. What runs for each message is a [Plan], a loop over its bytes that
// decodes nothing but the fields that rules name:
//
//	classes, err := rewrite.Classify(roots, []rewrite.Rule{
//		{Field: "Container.id", Class: container},
//	})
//	plan := classes.Plan(listContainersResponse)
//	out, err := plan.Apply(nil, in, func(dst []byte, c rewrite.Class, v []byte) ([]byte, error) {
//		return append(append(dst, "beta.io__"...), v...), nil
//	})
//
// The law of the package: an edit that returns the value it gets yields the same bytes, for any
// valid input. Field order, unknown fields, invalid UTF-8,
// explicit zeros and oversized varints survive. Malformed input is an error,
// never a panic and never a shortened copy.
//
// Everything here is pure: no goroutine, no gRPC, no I/O. Plans are immutable
// and may be used by any number of goroutines at once.
//
// # Stability
//
// Programs may build on this package, with director and codec. While criproxy is at version 0 a
// minor release may change it, and CHANGELOG.md says how; from 1.0 on it follows
// semantic versioning. Packages that do not say so promise nothing.
package rewrite
