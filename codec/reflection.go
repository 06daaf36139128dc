package codec

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// The two names of the reflection service, whose messages are the same.
var reflections = []string{
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}

// maxReflected bounds how many files a server may send.
const maxReflected = 10_000

// Reflect asks a server, through gRPC's reflection service, which services it has and what their
// messages are. If the server does not offer reflection, the error has the code Unimplemented.
// Reflect leaves out files that the server names but does not have: the fields of messages in
// them have no names, only numbers.
func Reflect(ctx context.Context, cc grpc.ClientConnInterface) (*Schema, error) {
	var err error
	for _, method := range reflections {
		var s *Schema
		if s, err = reflectBy(ctx, cc, method); err == nil || status.Code(err) != codes.Unimplemented {
			return s, err
		}
	}
	return nil, err
}

func reflectBy(ctx context.Context, cc grpc.ClientConnInterface, method string) (*Schema, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	ask := func(request *rpb.ServerReflectionRequest) (*rpb.ServerReflectionResponse, error) {
		if err := cs.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		reply := &rpb.ServerReflectionResponse{}
		if err := cs.RecvMsg(reply); err != nil {
			if errors.Is(err, io.EOF) {
				return nil, status.Error(codes.Unimplemented, "the server ended its reflection service")
			}
			return nil, err
		}
		return reply, nil
	}
	reply, err := ask(&rpb.ServerReflectionRequest{MessageRequest: &rpb.ServerReflectionRequest_ListServices{}})
	if err != nil {
		return nil, err
	}
	set := &descriptorpb.FileDescriptorSet{}
	have := map[string]bool{}
	var missing []string
	take := func(reply *rpb.ServerReflectionResponse) error {
		for _, b := range reply.GetFileDescriptorResponse().GetFileDescriptorProto() {
			fd := &descriptorpb.FileDescriptorProto{}
			if err := proto.Unmarshal(b, fd); err != nil {
				return fmt.Errorf("the server sent a broken FileDescriptorProto: %w", err)
			}
			if !have[fd.GetName()] {
				have[fd.GetName()] = true
				set.File = append(set.File, fd)
				missing = append(missing, fd.GetDependency()...)
			}
		}
		if len(set.File) > maxReflected {
			return fmt.Errorf("the server sends more than %d files", maxReflected)
		}
		return nil
	}
	for _, service := range reply.GetListServicesResponse().GetService() {
		reply, err := ask(&rpb.ServerReflectionRequest{MessageRequest: &rpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service.GetName()}})
		if err != nil {
			return nil, err
		}
		if err := take(reply); err != nil {
			return nil, err
		}
	}
	for len(missing) > 0 {
		name := missing[0]
		missing = missing[1:]
		if have[name] {
			continue
		}
		reply, err := ask(&rpb.ServerReflectionRequest{MessageRequest: &rpb.ServerReflectionRequest_FileByFilename{FileByFilename: name}})
		if err != nil {
			return nil, err
		}
		if err := take(reply); err != nil {
			return nil, err
		}
		have[name] = true // ask once, whatever the answer
	}
	return schemaOf(set)
}
