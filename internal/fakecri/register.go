package fakecri

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeService and imageService are the gRPC services of a runtime. They are separate types so that
// Runtime has only the methods that tests need, without CRI's 43.
type runtimeService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	*Runtime
}

type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	*Runtime
}

// newerThanV1alpha2 are the methods that v1alpha2 never had.
var newerThanV1alpha2 = []string{
	"CheckpointContainer", "GetContainerEvents", "ListMetricDescriptors", "ListPodSandboxMetrics",
	"RuntimeConfig", "UpdatePodSandboxResources", "CheckpointPod", "RestorePod",
	"StreamPodSandboxes", "StreamContainers", "StreamContainerStats", "StreamPodSandboxStats",
	"StreamPodSandboxMetrics", "StreamImages",
}

// register adds the services to s, under all packages of the Config. The names of messages are not on
// the wire, so all packages since v1alpha2 share one set of types.
func (rt *Runtime) register(s *grpc.Server) {
	for _, pkg := range rt.cfg.Packages {
		for d, service := range map[*grpc.ServiceDesc]any{
			&runtimeapi.RuntimeService_ServiceDesc: runtimeService{Runtime: rt},
			&runtimeapi.ImageService_ServiceDesc:   imageService{Runtime: rt},
		} {
			renamed := *d
			renamed.ServiceName = pkg + d.ServiceName[strings.LastIndexByte(d.ServiceName, '.'):]
			s.RegisterService(&renamed, service)
		}
	}
}

// interceptUnary logs a call and injects faults.
func (rt *Runtime) interceptUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	full, _ := grpc.Method(ctx) // with the package of the call, which the generated code does not have
	if err := rt.begin(ctx, full, req); err != nil {
		return nil, err
	}
	reply, err := handler(ctx, req)
	if err != nil {
		return nil, err
	}
	return reply, strike(ctx, &rt.after, full, req)
}

// interceptStream logs a call and injects faults.
func (rt *Runtime) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &watchedStream{ServerStream: stream, rt: rt, method: info.FullMethod})
}

// begin runs before each call: it logs the call, and may fail it.
func (rt *Runtime) begin(ctx context.Context, full string, req any) error {
	md, _ := metadata.FromIncomingContext(ctx)
	rt.calls.add(full, req, md)
	if err := strike(ctx, &rt.before, full, req); err != nil {
		return err
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	if rt.cfg.lacks(method) || strings.HasPrefix(service, V1alpha2+".") && slices.Contains(newerThanV1alpha2, method) {
		return status.Errorf(codes.Unimplemented, "unknown method %s for service %s", method, service)
	}
	return nil
}

// A watchedStream is a server stream that logs its request and injects faults.
type watchedStream struct {
	grpc.ServerStream
	rt      *Runtime
	method  string
	request any
}

func (s *watchedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	s.request = m
	return s.rt.begin(s.Context(), s.method, m)
}

func (s *watchedStream) SendMsg(m any) error {
	if err := s.ServerStream.SendMsg(m); err != nil {
		return err
	}
	return strike(s.Context(), &s.rt.after, s.method, s.request)
}
