package server

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
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
func onlyReads(rules []config.AccessRule, method string, peer *listen.Peer) bool {
	for _, r := range rules {
		switch {
		case !isFor(&r, peer):
		case len(r.Methods) == 0, slices.ContainsFunc(r.Methods, func(p string) bool { return !reads(p) || names(p, method) }):
			return false
		}
	}
	return len(rules) > 0
}

// reads reports whether read-only includes all methods that the pattern matches. A star in the
// pattern matches only a star in the patterns of read-only.
func reads(pattern string) bool {
	if pattern == config.ReadOnly || slices.Contains(readOnlyMethods(), pattern) {
		return true
	}
	return slices.ContainsFunc(readOnlyMethods(), func(one string) bool {
		ok, _ := path.Match(one, path.Base(pattern))
		return ok
	})
}

// names reports whether the pattern is the name of the method.
func names(pattern, method string) bool {
	return pattern != config.ReadOnly && !strings.ContainsAny(pattern, `*?[\`) && matchMethod(pattern, method)
}

// A VerboseFilter removes secrets from replies to clients that may only read. The caller must call
// Set before the first call. It is safe for concurrent use: a call has the redactor of its beginning until its end.
type VerboseFilter struct {
	now atomic.Pointer[capture.Redactor]
}

// NewRedactor returns a redactor that hides the secrets in replies, or nil if no socket has rules: then every client may see
// everything. What is secret is what the profile calls so, in all versions of the API.
func NewRedactor(cfg *config.Config, p *director.Profile, schema *codec.Schema) (*capture.Redactor, error) {
	if !slices.ContainsFunc(cfg.Listeners, func(l config.Listener) bool { return len(l.Access) > 0 }) {
		return nil, nil
	}
	schema = p.AllVersions(schema)
	secrets, err := p.Secrets(schema)
	if err != nil {
		return nil, err
	}
	return capture.NewRedactor(schema, secrets), nil
}

// Set makes the filter use r from the next call on. Nil changes nothing: clients may still be
// connected to a socket that a reload has removed.
func (v *VerboseFilter) Set(r *capture.Redactor) {
	if r != nil {
		v.now.Store(r)
	}
}

// Intercept is an interceptor that removes secrets from the replies of each call whose client may
// only read.
func (v *VerboseFilter) Intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if peer := listen.PeerOf(ss.Context()); peer != nil {
		rules, hider := peer.Socket.Access.Load(), v.now.Load()
		if (rules == nil || onlyReads(*rules, info.FullMethod, peer)) && hider.HasSecrets(info.FullMethod) {
			ss = &filteredStream{ss, info.FullMethod, hider}
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
