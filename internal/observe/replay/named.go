package replay

import (
	"context"
	"os"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
)

// socketMethod is a method to which only a fixture answers, with the path of its socket.
const socketMethod = "/criproxy.replay.v1.Fixture/Socket"

// Named wraps the handler of a fixture at a socket, so that [IsFixture] recognizes it.
func Named(socket string, h grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(ss); method != socketMethod {
			return h(srv, ss)
		}
		if err := ss.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		return ss.SendMsg(codec.NewFrame([]byte(socket)))
	}
}

// IsFixture reports whether a fixture serves the socket that conn is connected to. It is false for a multiplexer in
// front of a fixture, since other servers may be behind it.
func IsFixture(ctx context.Context, conn grpc.ClientConnInterface, socket string) bool {
	reply := &codec.Frame{}
	if conn.Invoke(ctx, socketMethod, codec.NewFrame(nil), reply, grpc.ForceCodecV2(codec.Raw)) != nil {
		return false // a runtime does not know the method
	}
	defer reply.Free()
	said, err := os.Stat(string(reply.Bytes()))
	if err != nil {
		return false
	}
	asked, err := os.Stat(socket)
	return err == nil && os.SameFile(said, asked)
}
