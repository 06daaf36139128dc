package codec

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// MetadataOf returns where the options of a call want its header and trailer stored; nil for
// what they do not want.
func MetadataOf(opts []grpc.CallOption) (header, trailer *metadata.MD) {
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			header = o.HeaderAddr
		case grpc.TrailerCallOption:
			trailer = o.TrailerAddr
		}
	}
	return header, trailer
}
