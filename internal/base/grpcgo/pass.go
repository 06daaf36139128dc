package grpcgo

import (
	"context"

	"github.com/mwitkow/grpc-proxy/proxy"
	"google.golang.org/grpc"
)

// Pass passes the messages of a call to conn and back, with grpc-proxy's handler. ctx has the metadata
// that conn gets. grpc-proxy sends the client the header with the first message, not before.
func Pass(ctx context.Context, conn grpc.ClientConnInterface, ss grpc.ServerStream) error {
	return proxy.TransparentHandler(func(context.Context, string) (context.Context, grpc.ClientConnInterface, error) {
		return ctx, conn, nil
	})(nil, ss)
}
