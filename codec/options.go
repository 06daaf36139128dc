package codec

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// MetadataOf returns the addresses at which the options of a call want its header and trailer
// stored. An address is nil if no option asks for it.
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
