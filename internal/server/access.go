// This file decides which calls a client may make, by the access list of the socket that
// it connected to, and hides secrets in the replies to clients that may only read.

package server

import (
	"context"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/profile"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// access is what the access lists of all sockets need of the profile. It does not change: a reload makes another one.
type access struct {
	profile  *director.Profile
	services map[string]bool   // of the API, in all versions: "/runtime.v1.RuntimeService"
	hider    *capture.Redactor // hides the secrets in replies; nil if no socket has rules: every client may see everything
}

// newAccess returns the access for the API. What is secret is what the profile calls so, in all versions. before is the access
// that it replaces, nil for the first.
func newAccess(cfg *config.Config, a API, before *access) (*access, error) {
	all := &access{profile: a.Profile, services: map[string]bool{}}
	schema := a.Profile.AllVersions(a.Schema)
	for _, m := range schema.Methods() {
		all.services[path.Dir(m.Name)] = true
	}
	if !slices.ContainsFunc(cfg.Listeners, func(l config.Listener) bool { return len(l.Access) > 0 }) {
		if before != nil { // clients may still be connected to a socket that the reload removes
			all.hider = before.hider
		}
		return all, nil
	}
	secrets, err := a.Profile.Secrets(schema)
	if err != nil {
		return nil, err
	}
	all.hider = capture.NewRedactor(schema, secrets)
	return all, nil
}

// reads reports whether read-only stands for a method, or for all that a pattern of full names matches: those that change nothing, of
// the profile, also if the schema does not have them, and those of criproxy's own services.
func (a *access) reads(method string) bool {
	return a.services[path.Dir(method)] && a.profile.OnlyReads(path.Base(method)) || profile.Match(config.OwnMethods, method)
}

// matches reports whether the pattern matches the method. A pattern without a slash is about the short names of CRI's methods,
// whatever the version; one that begins with a slash is about full names.
func (a *access) matches(pattern, method string) bool {
	switch {
	case pattern == config.ReadOnly:
		return a.reads(method)
	case strings.HasPrefix(pattern, "/"):
		return profile.Match(pattern, method)
	}
	name, ok := cri.ShortName(method) // other services on the socket may have methods of the same names
	return ok && profile.Match(pattern, name)
}

// allows reports whether the rules let the client call the method: whether one of them names the method, or none, and the
// client. No rules at all allow everything.
func (a *access) allows(rules []config.AccessRule, method string, peer *listen.Peer) bool {
	if len(rules) == 0 {
		return true
	}
	return slices.ContainsFunc(rules, func(r config.AccessRule) bool {
		if len(r.Methods) > 0 && !slices.ContainsFunc(r.Methods, func(p string) bool { return a.matches(p, method) }) {
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
func (p *Proxy) authorize(ctx context.Context, method string) error {
	peer := listen.PeerOf(ctx)
	if peer == nil {
		return status.Error(codes.PermissionDenied, "criproxy: internal error: the listener of this connection is not known; please report it")
	}
	rules := peer.Socket.Access.Load()
	if rules == nil {
		return status.Errorf(codes.PermissionDenied, "criproxy: the socket %s is no longer in the configuration", peer.Socket.Path)
	}
	if p.access.Load().allows(*rules, method, peer) {
		return nil
	}
	peer.Socket.Refused.Add(1)
	klog.V(2).InfoS("Call refused by the access list", "socket", peer.Socket.Path, "method", method, "peer", peer)
	return status.Errorf(codes.PermissionDenied, "criproxy: the access list of %s does not allow %s to %s", peer.Socket.Path, method, peer)
}

// refuseForbidden is authorize as a stream interceptor.
func (p *Proxy) refuseForbidden(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := p.authorize(ss.Context(), info.FullMethod); err != nil {
		p.recordRefused(ss.Context(), info.FullMethod, err)
		return err
	}
	return handler(srv, ss)
}

// refuseForbiddenUnary is authorize as a unary interceptor, for criproxy's own services.
func (p *Proxy) refuseForbiddenUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := p.authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}
