// Package wire walks over serialized protobuf messages without decoding them.
package wire
