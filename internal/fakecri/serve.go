package fakecri

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
)

// maxMessage is the limit of containerd and of kubelet.
const maxMessage = 16 << 20

// ServeOn serves the runtime on a listener, which it closes, until ctx ends, and returns when all its goroutines have
// ended. A runtime can be served again: it keeps its pods, containers and images.
func (rt *Runtime) ServeOn(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(rt.interceptUnary), grpc.StreamInterceptor(rt.interceptStream))
	rt.register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case <-ctx.Done():
		s.Stop() // not gracefully: a stream of events never ends
		<-served
		return nil
	case err := <-served:
		s.Stop()
		return fmt.Errorf("serving on %s: %w", l.Addr(), err)
	}
}
