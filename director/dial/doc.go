// Package dial connects a director to one backend: a gRPC server, or several that can stand in for
// each other.
//
//	a, err := dial.New(dial.Config{Name: "beta.io", Address: "/run/beta.sock", Profile: profile, Schema: schema})
//	go a.Run(ctx)
//	b := director.Backend{Name: "beta.io", Conn: a}
//
// A [Conn] finds out which versions of the API its backend speaks, connects again when the backend
// has been restarted, and says in errors which backend could not be reached.
//
// # Stability
//
// Programs may build on this package, with director. While criproxy is at version 0 a minor release
// may change it, and CHANGELOG.md says how; from 1.0 on it follows semantic versioning.
package dial
