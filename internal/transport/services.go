package transport

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// A service is a registered service.
type service struct {
	impl    any
	unary   map[string]grpc.MethodDesc
	streams map[string]grpc.StreamHandler // wrapped by the interceptors
}

// RegisterService adds a service whose messages are protobuf messages; code that
// protoc-gen-go-grpc generates calls it. The caller must register all services before Serve.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if s.services[desc.ServiceName] != nil {
		panic(fmt.Sprintf("transport: the service %s is registered twice", desc.ServiceName))
	}
	sv := &service{impl, map[string]grpc.MethodDesc{}, map[string]grpc.StreamHandler{}}
	for _, m := range desc.Methods {
		sv.unary[m.MethodName] = m
	}
	for _, m := range desc.Streams {
		sv.streams[m.StreamName] = within(s.cfg.Interceptors, m.Handler)
	}
	s.services[desc.ServiceName] = sv
}

// handle finds the handler of a call and calls it. A panic ends only that call.
func (s *Server) handle(st *serverStream) (err error) {
	defer recovery.To(&err, st.method)
	slash := strings.LastIndexByte(st.method, '/')
	name, method := st.method[1:slash], st.method[slash+1:]
	sv := s.services[name]
	if sv != nil {
		if m, ok := sv.unary[method]; ok {
			return s.unary(sv, m, st)
		}
		if h, ok := sv.streams[method]; ok {
			return h(sv.impl, st)
		}
	}
	switch {
	case s.handler != nil:
		return s.handler(nil, st)
	case sv != nil:
		return status.Errorf(codes.Unimplemented, "unknown method %s for service %s", method, name)
	}
	return status.Errorf(codes.Unimplemented, "unknown service %s", name)
}

// unary serves a call of a unary method.
func (s *Server) unary(sv *service, m grpc.MethodDesc, st *serverStream) error {
	receive := func(request any) error {
		err := st.RecvMsg(request)
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Internal, "the client ended the call without sending a request")
		}
		return err
	}
	reply, err := m.Handler(sv.impl, st.ctx, receive, s.cfg.UnaryInterceptor)
	if err != nil {
		return err
	}
	Unary(st.ctx)
	return st.SendMsg(reply)
}
