package model

import (
	"context"
	"net"
	"path"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// wire is a connection of one process to a runtime, at one address.
type wire struct {
	runtime *runtime
	address int
	process int
	retired bool // the process ignores its answers; world.mu guards it
}

// dial connects a process to the runtime at an address.
func (w *world) dial(ctx context.Context, p *proxy, at string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.crashed {
		return nil, syscall.ENETDOWN
	}
	for _, r := range w.runtimes {
		number, ok := strings.CutPrefix(at, "/run/"+r.name+"/")
		if !ok {
			continue
		}
		one := &wire{runtime: r, process: p.number, address: int(number[0] - '0')}
		for _, c := range number[1:] {
			one.address = 10*one.address + int(c-'0')
		}
		switch now := r.now(); {
		case now.down || now.address != one.address:
			return nil, syscall.ECONNREFUSED
		case now.barred:
			return nil, syscall.EACCES
		}
		l := newLink()
		l.process, l.wire, l.stalled = p.number, one, r.now().frozen
		r.links = append(r.links, l)
		w.served.Go(func() { r.server.ServeConn(&l.ends[1], nil) })
		return &l.ends[0], nil
	}
	return nil, syscall.ENOENT
}

// newServer returns the gRPC server of a runtime.
func (r *runtime) newServer() *transport.Server {
	return transport.NewServer(transport.ServerConfig{Handler: r.handle})
}

// handle serves a call.
func (r *runtime) handle(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	p, _ := peer.FromContext(ss.Context())
	w := p.Addr.(address).wire
	request := &codec.Frame{}
	if err := ss.RecvMsg(request); err != nil {
		return err
	}
	if path.Base(method) == path.Base(eventsMethod) {
		s := &eventStream{ctx: ss.Context(), wire: w, method: method}
		for {
			event, err := s.next()
			if err != nil {
				return err
			}
			if err := ss.SendMsg(codec.NewFrame(event)); err != nil {
				return err
			}
		}
	}
	out, err := w.serve(ss.Context(), method, append([]byte(nil), request.Bytes()...))
	if err != nil {
		return err
	}
	if !strings.Contains(method, "/Stream") {
		return ss.SendMsg(codec.NewFrame(out))
	}
	for len(out) > 0 {
		n := len(out)
		if _, _, first := protowire.ConsumeField(out); first > 0 {
			n = first
		}
		if err := ss.SendMsg(codec.NewFrame(out[:n:n])); err != nil {
			return err
		}
		out = out[n:]
	}
	return nil
}

// has reports whether the runtime has a method: two of the runtimes have only one way to list, and some have only the
// former version of CRI. world.mu is held.
func (w *wire) has(full string) bool {
	former := w.runtime.now().api == v1alpha2
	if !strings.HasPrefix(full, "/"+w.runtime.now().api+".") {
		return false
	}
	switch path.Base(full) {
	case "StreamPodSandboxes", "StreamContainers", "StreamImages", "StreamContainerStats", "GetContainerEvents":
		return w.runtime.name != "A" && !former
	case "ListPodSandbox", "ListContainers":
		return w.runtime.name != "C"
	case "ListMetricDescriptors":
		return !former
	}
	return true
}

// tokenOf returns the mark of a client's call, or nil if criproxy makes the call itself, such as a list
// by which it looks for the owner of a name.
func tokenOf(ctx context.Context, method string) any {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, token := range md.Get("token") {
		if strings.HasPrefix(token, method+" ") {
			return token
		}
	}
	return nil
}
