package daemon

import (
	"context"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/recovery"
)

// logPanic logs a panic that was recovered. Its stack has addresses, but no contents of
// messages.
func logPanic(doing string, value any, stack []byte) {
	klog.ErrorS(nil, "A mistake in criproxy, please report it: a panic ended one call or one task, the process goes on",
		"doing", doing, "panic", value, "panics", recovery.Count(), "stack", string(stack))
}

// recoverStream turns a panic in a call into the failure of that call.
func recoverStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return recovery.Do(info.FullMethod, func() error { return handler(srv, ss) })
}

// recoverUnary is recoverStream for the services that criproxy has itself.
func recoverUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	defer recovery.To(&err, info.FullMethod)
	return handler(ctx, request)
}
