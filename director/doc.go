// Package director makes several gRPC servers answer as one.
//
// A [Director] is a connection ([grpc.ClientConnInterface]) that chooses a backend by the first
// message of each call. [Director.Handler] puts it behind a server socket:
//
//	d, err := director.New(director.Config{
//		Profile:  profile,        // describes the API: which fields hold names, which methods list
//		Schema:   codec.LinkedIn(),
//		Backends: []director.Backend{{Conn: a}, {Name: "beta.io", Conn: b}},
//	})
//	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(d.Handler()))
//	err = srv.Serve(listener)
//
// Package dial makes the connections to the backends; any other [grpc.ClientConnInterface] will do.
// The folder example has a whole program of 60 lines, with an API of its own.
// [Remember] gives a backend a cache that answers while its server is slow or gone.
//
// # How a backend is chosen
//
// The first backend is the primary. For a method that the profile describes:
//
//  1. A name in the request that carries the prefix of a backend decides: "beta.io__7f" belongs
//     to the backend beta.io. If two such names belong to different backends, the director
//     refuses the call. It sends the request of a list to every backend that may have items with
//     these names; if there is none, the reply is empty.
//  2. Else the method's choosers decide, in order: first those that find out where an object is,
//     then those that read where the client wants it, such as from a runtime handler or an
//     annotation.
//  3. Else a name without a prefix decides: "7f" belongs to the primary.
//  4. Else a list goes to all backends, a call that makes something new goes to
//     [Config.NewTo], and any other call goes to the primary.
//
// The director passes a method that the profile does not describe to the primary, with the
// messages untouched, streams included. The profile may name exceptions.
//
// # What happens to a message
//
// Names are front names between clients and the director, and back names between the director
// and a backend. The director translates them. All other bytes pass as they are. It passes on
// metadata, deadlines and cancellation, and returns headers, trailers and status, unchanged.
//
// # What a program sees
//
// The package logs nothing. [Config.Tracer] and the Tracer in package dial see every call,
// [Config.Panicked] sees every panic, [Config.Mirrored] the requests that the director mirrors
// to further backends, and the Watch in package dial whether a backend can be reached.
//
// # Stability
//
// Programs may build on this package, with codec and rewrite. It follows semantic versioning:
// docs/stability.md says what stays the same.
package director
