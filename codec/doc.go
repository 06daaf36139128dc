// Package codec carries gRPC messages without decoding them, and knows what they mean.
//
// A [Frame] is one message as it came off the wire. [Raw] is the gRPC codec that reads and
// writes frames, by reference:
//
//	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw))
//	cc, err := grpc.NewClient(target, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
//	err = cc.Invoke(ctx, "/runtime.v1.RuntimeService/Version", codec.NewFrame(nil), &reply)
//
// A [Schema] says of each method which messages go in and out. It comes from generated code
// ([LinkedIn], [NewSchema]), from .proto files ([CompileProto]), from a descriptor set
// ([ParseSchema]), or from the server itself ([Reflect]).
//
// Code that stands between a client and a server, such as the Around of a director, gets its
// messages as any: [FrameOf] and [Deliver] turn them into frames and back, and [MetadataOf]
// finds where the caller wants header and trailer.
//
// # Ownership
//
// A frame owns a reference to its bytes. Functions that take a frame over say so; all others
// leave it to the caller. [Frame.Free] gives the bytes back to their pool; a frame that is
// never freed costs the reuse of its memory and nothing else.
//
// # Stability
//
// Programs may build on this package, with director and rewrite. While criproxy is at version
// 0 a minor release may change it, and CHANGELOG.md says how; from 1.0 on it follows semantic
// versioning. Packages that do not say so promise nothing.
package codec
