// Package director makes several gRPC servers answer as one.
//
// A [Director] is a connection ([grpc.ClientConnInterface]) that chooses its
// backend on the first message of each call, and the handler that puts it
// behind a server socket:
//
//	d, err := director.New(director.Config{
//		Profile:  profile,        // what the API means: which fields hold names, what is a list
//		Schema:   codec.LinkedIn(),
//		Backends: []director.Backend{{Conn: a}, {Name: "beta.io", Conn: b}},
//	})
//	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(d.Handler()))
//	err = srv.Serve(listener)
//
// The folder example has a whole program, in less than 60 lines, for an API of its own.
// [Remember] gives a backend a memory that answers for a server that is slow or gone.
//
// # How a backend is chosen
//
// The first backend is the primary. For a method that the profile describes:
//
//  1. A name in the request with the prefix of a backend decides: "beta.io__7f". If two such
//     names disagree the call is refused; a list is empty. A list goes to all backends that
//     may have what the names in it ask for.
//  2. Else the method's choosers decide, in order: first those that find where a thing is,
//     then those that read where the request wants it to be: a runtime handler, an annotation.
//  3. Else a name without a prefix belongs to the primary: "7f".
//  4. Else a list goes to all backends, a call that makes something new goes to
//     [Config.NewTo], and any other call goes to the primary.
//
// A method that the profile does not describe passes to the primary untouched, streams
// included.
//
// # What happens to a message
//
// Names are front names on the client's side of the director, and back names on
// the side of a backend; they are translated here and nowhere else. All other
// bytes pass as they are. Metadata, deadlines, cancellation, headers, trailers
// and status travel both ways unchanged.
//
// # What a program sees
//
// The package logs nothing. [Config.Tracer] and [ConnConfig.Tracer] see every call,
// [Config.Panicked] the panics, [Config.Mirrored] the requests that backends get behind the
// scenes, and [ConnConfig.Watch] whether a backend can be reached.
//
// # Stability
//
// Programs may build on this package, with codec and rewrite. While criproxy is at version 0 a
// minor release may change it, and CHANGELOG.md says how; from 1.0 on it follows
// semantic versioning. A package without this section makes no such promise.
package director
