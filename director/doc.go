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
//  1. A name in the request that says whose it is decides: "beta.io__7f". If two
//     such names disagree the call is refused, or, if it is a list, is empty. A list
//     goes to all backends that may have what the names in it ask for.
//  2. Else the method's own choosers are asked, in order: first those that know where a
//     thing is, then a runtime handler, an annotation.
//  3. Else a bare name of a kind that has none elsewhere is the primary's: "7f".
//  4. Else the call goes to all backends if it is a list, to [Config.NewTo] if it makes something
//     new, and to the primary if not.
//
// A method that no profile describes passes to the primary untouched, whatever
// its kind of streaming.
//
// # What happens to a message
//
// Names are front names on the client's side of the director, and back names on
// the side of a backend; they are translated here and nowhere else. All other
// bytes pass as they are. Metadata, deadlines, cancellation, headers, trailers
// and status travel both ways unchanged.
//
// # Stability
//
// Programs may build on this package, with codec and rewrite. While criproxy is at version 0 a
// minor release may change it, and CHANGELOG.md says how; from 1.0 on it follows
// semantic versioning. Of packages that do not say so nothing is promised.
package director
