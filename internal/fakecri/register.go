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

// runtimeService and imageService are a runtime as gRPC sees it. They are types
// of their own so that Runtime shows what tests need, not 43 methods.
type runtimeService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	*Runtime
}

type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	*Runtime
}

// newerThanV1alpha2 are the methods that came when v1alpha2 was no more, or that
// it never had.
var newerThanV1alpha2 = []string{
	"CheckpointContainer", "GetContainerEvents", "ListMetricDescriptors", "ListPodSandboxMetrics",
	"RuntimeConfig", "UpdatePodSandboxResources", "CheckpointPod", "RestorePod",
	"StreamPodSandboxes", "StreamContainers", "StreamContainerStats", "StreamPodSandboxStats",
	"StreamPodSandboxMetrics", "StreamImages",
}

var descs = []*grpc.ServiceDesc{&runtimeapi.RuntimeService_ServiceDesc, &runtimeapi.ImageService_ServiceDesc}

// RuntimeService and ImageService return the services to call without a socket.
// Such calls are neither logged nor subject to faults.
func (rt *Runtime) RuntimeService() runtimeapi.RuntimeServiceServer {
	return runtimeService{Runtime: rt}
}

// ImageService is as RuntimeService.
func (rt *Runtime) ImageService() runtimeapi.ImageServiceServer { return imageService{Runtime: rt} }

// Register adds the services to s, under all packages of the Config.
func (rt *Runtime) Register(s *grpc.Server) {
	for _, pkg := range rt.cfg.Packages {
		s.RegisterService(rt.desc(descs[0], pkg), rt.RuntimeService())
		s.RegisterService(rt.desc(descs[1], pkg), rt.ImageService())
	}
}

// desc returns a service under another package name, its methods wrapped in what
// logs calls and injects faults. What a method's messages are called is not on
// the wire: all packages since v1alpha2 share one set of types.
func (rt *Runtime) desc(d *grpc.ServiceDesc, pkg string) *grpc.ServiceDesc {
	renamed := *d
	renamed.ServiceName = pkg + d.ServiceName[strings.LastIndexByte(d.ServiceName, '.'):]
	renamed.Methods, renamed.Streams = nil, nil
	lacks := func(method string) bool {
		return rt.cfg.lacks(method) || pkg == V1alpha2 && slices.Contains(newerThanV1alpha2, method)
	}
	for _, m := range d.Methods {
		handler, full := m.Handler, "/"+renamed.ServiceName+"/"+m.MethodName
		m.Handler = func(srv any, ctx context.Context, decode func(any) error, outer grpc.UnaryServerInterceptor) (any, error) {
			return handler(srv, ctx, decode, rt.unary(full, lacks(m.MethodName), outer))
		}
		renamed.Methods = append(renamed.Methods, m)
	}
	for _, s := range d.Streams {
		handler, full := s.Handler, "/"+renamed.ServiceName+"/"+s.StreamName
		s.Handler = func(srv any, stream grpc.ServerStream) error {
			return handler(srv, &watchedStream{ServerStream: stream, rt: rt, method: full, lacks: lacks(s.StreamName)})
		}
		renamed.Streams = append(renamed.Streams, s)
	}
	return &renamed
}

// unary returns the interceptor of one method, inside of the server's own.
func (rt *Runtime) unary(full string, lacks bool, outer grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		info = &grpc.UnaryServerInfo{Server: info.Server, FullMethod: full}
		inner := func(ctx context.Context, req any) (any, error) {
			if err := rt.begin(ctx, full, lacks, req); err != nil {
				return nil, err
			}
			reply, err := handler(ctx, req)
			if err != nil {
				return nil, err
			}
			return reply, rt.faults.after(ctx, full, req)
		}
		if outer == nil {
			return inner(ctx, req)
		}
		return outer(ctx, req, info, inner)
	}
}

// begin is what happens before a call is carried out.
func (rt *Runtime) begin(ctx context.Context, full string, lacks bool, req any) error {
	md, _ := metadata.FromIncomingContext(ctx)
	rt.calls.add(full, req, md)
	if err := rt.faults.before(ctx, full, req); err != nil {
		return err
	}
	if lacks {
		service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
		return status.Errorf(codes.Unimplemented, "unknown method %s for service %s", method, service)
	}
	return nil
}

// A watchedStream is a server stream that logs its request and injects faults.
type watchedStream struct {
	grpc.ServerStream
	rt      *Runtime
	method  string
	lacks   bool
	request any
}

func (s *watchedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	s.request = m
	return s.rt.begin(s.Context(), s.method, s.lacks, m)
}

func (s *watchedStream) SendMsg(m any) error {
	if err := s.ServerStream.SendMsg(m); err != nil {
		return err
	}
	return s.rt.faults.after(s.Context(), s.method, s.request)
}
