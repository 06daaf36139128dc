// Package base is the wing of what every other wing stands on: fields on the wire, the memory of messages, messages as
// text, strict YAML, suggestions for misspelt names, what the kernel says of this machine, and gRPC over HTTP/2.
// Nothing here knows what a backend, a proxy or CRI is.
//
// Comes in: imports from all wings and from the public packages.
// Goes out: imports of codec alone, because transport carries its frames.
package base
