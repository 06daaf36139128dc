package daemon

import (
	"context"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/recovery"
)

// logPanic logs a panic that was contained. Its stack has addresses, and nothing of what
// was in messages.
func logPanic(doing string, value any, stack []byte) {
	klog.ErrorS(nil, "A mistake in criproxy, please report it: a panic ended one call or one task, the process goes on",
		"doing", doing, "panic", value, "panics", recovery.Count(), "stack", string(stack))
}

// containStream makes a panic in a call the failure of that call.
func containStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return recovery.Do(info.FullMethod, func() error { return handler(srv, ss) })
}

// containUnary is containStream for the services that criproxy has itself.
func containUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	defer recovery.To(&err, info.FullMethod)
	return handler(ctx, request)
}
