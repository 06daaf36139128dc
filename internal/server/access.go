// This file decides which calls a client may make, by the access list of the socket that
// it connected to, and hides secrets in the replies to clients that may only read.

package server

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// readOnlyMethods returns patterns of the methods that change nothing: those of CRI, from reads in
// cri.yaml, and those of criproxy's own services.
var readOnlyMethods = sync.OnceValue(func() []string { return append(cri.Reads(), "/grpc.health.v1.Health/*") })

// matchMethod reports whether the pattern matches the method. A pattern without a slash is about the short names of CRI's methods,
// whatever the version; one that begins with a slash is about full names.
func matchMethod(pattern, method string) bool {
	if pattern == config.ReadOnly {
		return slices.ContainsFunc(readOnlyMethods(), func(one string) bool { return matchMethod(one, method) })
	}
	if strings.HasPrefix(pattern, "/") {
		ok, _ := path.Match(pattern, method)
		return ok
	}
	name, ok := cri.ShortName(method) // other services on the socket may have methods of the same names
	if ok {
		ok, _ = path.Match(pattern, name)
	}
	return ok
}

// allows reports whether the rules let the client call the method: whether one of them names the method, or none, and the
// client. No rules at all allow everything.
func allows(rules []config.AccessRule, method string, peer *listen.Peer) bool {
	if len(rules) == 0 {
		return true
	}
	return slices.ContainsFunc(rules, func(r config.AccessRule) bool {
		if len(r.Methods) > 0 && !slices.ContainsFunc(r.Methods, func(p string) bool { return matchMethod(p, method) }) {
			return false
		}
		return isFor(&r, peer)
	})
}

// isFor reports whether the rule applies to the client. A client of which the kernel does not say who it is, as over TCP, gets
// only what everybody may.
func isFor(r *config.AccessRule, peer *listen.Peer) bool {
	if len(r.UIDs)+len(r.GIDs) == 0 {
		return true
	}
	return peer.Known && (slices.Contains(r.UIDs, peer.UID) ||
		slices.ContainsFunc(peer.GIDs, func(gid uint32) bool { return slices.Contains(r.GIDs, gid) }))
}

// authorize returns the error for a call that the socket's access list does not allow. Whatever is not known for sure is refused: a
// call of which nobody knows the socket, and one through a socket that was taken out of the configuration.
func authorize(ctx context.Context, method string) error {
	peer := listen.PeerOf(ctx)
	if peer == nil {
		return status.Error(codes.PermissionDenied, "criproxy: internal error: the listener of this connection is not known; please report it")
	}
	rules := peer.Socket.Access.Load()
	if rules == nil {
		return status.Errorf(codes.PermissionDenied, "criproxy: the socket %s is no longer in the configuration", peer.Socket.Path)
	}
	if allows(*rules, method, peer) {
		return nil
	}
	peer.Socket.Refused.Add(1)
	klog.V(2).InfoS("Call refused by the access list", "socket", peer.Socket.Path, "method", method, "peer", peer)
	return status.Errorf(codes.PermissionDenied, "criproxy: the access list of %s does not allow %s to %s", peer.Socket.Path, method, peer)
}

// refuseForbidden is authorize as a stream interceptor.
func (p *Proxy) refuseForbidden(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := authorize(ss.Context(), info.FullMethod); err != nil {
		p.recordRefused(ss.Context(), info.FullMethod, err)
		return err
	}
	return handler(srv, ss)
}

// InterceptUnary is authorize as a unary interceptor, for criproxy's own services.
func InterceptUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}
