package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
)

// readOnly is the pattern that stands for those of readOnlyMethods.
const readOnly = "read-only"

// readOnlyMethods are the methods of CRI, and of ourselves, that only look.
var readOnlyMethods = []string{
	"Version", "Status", "RuntimeConfig", "ImageFsInfo", "GetContainerEvents",
	"List*", "Stream*", "*Status", "*Stats",
	"/grpc.health.v1.Health/*",
}

// criPackages are where the short names of methods are looked for. Other services
// that a runtime may have on its socket have methods of the same names.
var criPackages = []string{"/runtime.v1.", "/runtime.v1alpha2.", "/runtime."}

// matchMethod reports whether the method is one of those that the pattern means.
func matchMethod(pattern, method string) bool {
	if pattern == readOnly {
		return slices.ContainsFunc(readOnlyMethods, func(one string) bool { return matchMethod(one, method) })
	}
	if strings.HasPrefix(pattern, "/") {
		ok, _ := path.Match(pattern, method)
		return ok
	}
	service := path.Dir(method)
	for _, pkg := range criPackages {
		if service == pkg+"RuntimeService" || service == pkg+"ImageService" {
			ok, _ := path.Match(pattern, path.Base(method))
			return ok
		}
	}
	return false
}

// allows reports whether the rules let the peer call the method.
func allows(rules []config.AccessRule, method string, who *peerInfo) bool {
	if len(rules) == 0 {
		return true
	}
	return slices.ContainsFunc(rules, func(r config.AccessRule) bool {
		if len(r.Methods) > 0 && !slices.ContainsFunc(r.Methods, func(p string) bool { return matchMethod(p, method) }) {
			return false
		}
		return isFor(&r, who)
	})
}

// isFor reports whether the rule is about the peer.
func isFor(r *config.AccessRule, who *peerInfo) bool {
	if len(r.UIDs)+len(r.GIDs) == 0 {
		return true
	}
	return who.known && (slices.Contains(r.UIDs, who.uid) ||
		slices.ContainsFunc(who.gids, func(gid uint32) bool { return slices.Contains(r.GIDs, gid) }))
}

// authorize returns the error of a call that the socket's access list does not allow.
func authorize(ctx context.Context, method string) error {
	who := peerOf(ctx)
	if who == nil {
		return status.Error(codes.PermissionDenied, "criproxy: nobody knows on which socket this call came")
	}
	rules := who.socket.access.Load()
	if rules == nil {
		return status.Errorf(codes.PermissionDenied, "criproxy: the socket %s is no longer in the configuration", who.socket.path)
	}
	if allows(*rules, method, who) {
		return nil
	}
	who.socket.refused.Add(1)
	klog.V(2).InfoS("Call refused by the access list", "socket", who.socket.path, "method", method, "peer", who)
	return status.Errorf(codes.PermissionDenied, "criproxy: the access list of %s does not allow %s to %s", who.socket.path, method, who)
}

// authorizeStream is authorize as an interceptor.
func authorizeStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := authorize(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, ss)
}

// authorizeUnary is authorize for the services that criproxy has itself.
func authorizeUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// peerInfo is who is at the other end of a connection.
type peerInfo struct {
	socket *socket
	known  bool // what follows; not over TCP
	pid    int32
	name   string // of its program
	uid    uint32
	gids   []uint32 // its own and its supplementary groups

	certificate string // the subject of its certificate, if it has shown one

	once  sync.Once
	parts shares // of the memory for messages
	debt  debt   // what it has not read, beyond that
}

// peerOf returns who made a call, nil if nobody knows.
func peerOf(ctx context.Context) *peerInfo {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	who, _ := p.AuthInfo.(*peerInfo)
	return who
}

// AuthType is for gRPC.
func (*peerInfo) AuthType() string { return "unix" }

// program is String with the name of the process.
func (p *peerInfo) program() string {
	if p.name == "" {
		return p.String()
	}
	return p.name + ", " + p.String()
}

func (p *peerInfo) String() string {
	switch {
	case p.certificate != "":
		return "who has the certificate of " + p.certificate
	case !p.known:
		return "an unknown process"
	}
	return fmt.Sprintf("uid %d (process %d)", p.uid, p.pid)
}
