// Package dial connects a director to one backend: a gRPC server, or several that can stand in for
// each other.
//
//	a, err := dial.New(dial.Config{Name: "beta.io", Address: "/run/beta.sock", Profile: profile, Schema: schema})
//	go a.Run(ctx)
//	b := director.Backend{Name: "beta.io", Conn: a}
//
// A [Conn] finds out which versions of the API its backend has, connects again when the backend
// has been restarted, and says in errors which backend could not be reached.
//
// # Stability
//
// Programs may build on this package, with director. It follows semantic versioning:
// docs/stability.md says what stays the same.
package dial
