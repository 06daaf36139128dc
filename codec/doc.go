// Package codec carries gRPC messages without decoding them, and holds the schemas that
// describe them.
//
// A [Frame] is one message as it came off the wire. [Raw] is the gRPC codec that reads and
// writes frames, by reference:
//
//	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw))
//	cc, err := grpc.NewClient(target, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
//	err = cc.Invoke(ctx, "/runtime.v1.RuntimeService/Version", codec.NewFrame(nil), &reply)
//
// A [Schema] describes the methods of services: their names, and the types of their requests and
// replies. It comes from generated code ([LinkedIn], [NewSchema]), from .proto files
// ([CompileProto]), from a descriptor set ([ParseSchema]), or from the server itself ([Reflect]).
//
// Code between a client and a server, such as the connection that the Around of a
// director.Config returns, gets messages as values of type any. [FrameOf] turns such a value into
// a frame, [Decode] stores a frame in one, and [MetadataOf] finds out where the caller wants the
// header and trailer. To a [Caller] calls go as frames; [CallerOf] and [Conn] are the borders.
//
// # Ownership
//
// A frame owns a reference to its bytes. A function that takes ownership of a frame says so; any
// other leaves it with the caller. [Frame.Free] returns the bytes to their pool. It is safe not to
// free a frame: the garbage collector then frees its memory, and no later message reuses it.
//
// # Stability
//
// Programs may build on this package, with director and rewrite. It follows semantic versioning:
// docs/stability.md says what stays the same.
package codec
