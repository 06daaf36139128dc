// Package codec carries gRPC messages that nobody has decoded, and knows what
// they would mean.
//
// A [Frame] is one message as it came off the wire. [Raw] is the gRPC codec
// that reads and writes frames, by reference:
//
//	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw))
//	cc, err := grpc.NewClient(target, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Raw)))
//	err = cc.Invoke(ctx, "/runtime.v1.RuntimeService/Version", codec.NewFrame(nil), &reply)
//
// A [Schema] says of each method which messages go in and out, and
// [Text.Append] prints a frame for people, without its secrets.
//
// # Stability
//
// Programs may build on this package, with director and rewrite. While criproxy is at version 0 a
// minor release may change it, and CHANGELOG.md says how; from 1.0 on it follows
// semantic versioning. Of packages that do not say so nothing is promised.
package codec
