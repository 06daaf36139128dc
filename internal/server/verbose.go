package server

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/buffers"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// Clients that may only read do not see fields that the profile calls secret, because a read-only
// socket is often open to every process on the node. Clients that may do more see them: they could
// get the secrets in other ways.

// onlyReads reports whether the rules allow the client only to read, and none of them has the name
// of the method: with the name, an administrator allows the client to see everything in its replies.
func (a *access) onlyReads(rules []config.AccessRule, method string, peer *listen.Peer) bool {
	for _, r := range rules {
		switch {
		case !isFor(&r, peer):
		case len(r.Methods) == 0, slices.ContainsFunc(r.Methods, func(p string) bool { return !a.includes(p) || a.names(p, method) }):
			return false
		}
	}
	return len(rules) > 0
}

// includes reports whether read-only includes all methods that the pattern matches. A star in the
// pattern matches only a star in the patterns of read-only.
func (a *access) includes(pattern string) bool {
	switch {
	case pattern == config.ReadOnly:
		return true
	case strings.HasPrefix(pattern, "/"):
		return a.reads(pattern)
	}
	return IsCRI(a.profile) && a.profile.OnlyReads(pattern)
}

// names reports whether the pattern is the name of the method.
func (a *access) names(pattern, method string) bool {
	return pattern != config.ReadOnly && !strings.ContainsAny(pattern, `*?[\`) && a.matches(pattern, method)
}

// hideSecrets is an interceptor that removes secrets from the replies of each call whose client may only read. A call has the
// access of its beginning until its end.
func (p *Proxy) hideSecrets(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if peer := listen.PeerOf(ss.Context()); peer != nil {
		rules, a := peer.Socket.Access.Load(), p.access.Load()
		if (rules == nil || a.onlyReads(*rules, info.FullMethod, peer)) && a.hider.HasSecrets(info.FullMethod) {
			ss = &filteredStream{ss, info.FullMethod, a.hider}
		}
	}
	return handler(srv, ss)
}

// filteredStream is a stream whose replies have no secrets. If they cannot be removed, because a reply is malformed, the call
// fails.
type filteredStream struct {
	grpc.ServerStream
	method string
	hider  *capture.Redactor
}

// SendMsg sends a reply without its secrets.
func (d *filteredStream) SendMsg(m any) error {
	f, err := codec.FrameOf(m)
	if err != nil {
		return err
	}
	b := f.Bytes()
	out, err := buffers.Fill(len(b), func(dst []byte) ([]byte, error) { return d.hider.HideReply(dst, d.method, b) })
	if err != nil {
		return status.Error(codes.Internal, fmt.Sprintf("criproxy: %s: secrets cannot be removed for a client that may only read: %v", path.Base(d.method), err))
	}
	shown := codec.FrameOfBuffers(out)
	defer shown.Free() // gRPC has its own reference
	return d.ServerStream.SendMsg(shown)
}
