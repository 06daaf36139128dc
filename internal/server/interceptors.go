package server

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/transport"
)

// interceptors returns the interceptors of every call, the outermost first. A test holds the order:
// an interceptor that refuses calls must come before those that count them. The order of the last
// two does not matter.
func (p *Proxy) interceptors() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		p.refuseForbidden,      // refuses calls that the access list of the socket does not allow
		p.refuseReturned,       // refuses calls that this proxy has made
		p.memory.Intercept,     // limits the calls of the socket, and counts the memory of replies
		p.callGroups.intercept, // counts the calls under way, for reloads and handovers
		p.hideSecrets,          // removes secrets from replies to clients that may only read
	}
}

// recordRefused records a call that an interceptor refuses: the director, which the recorder watches, never sees it, and without it
// a client that is refused looks as if it made no calls. See [limits.Client.ShowsRefusal].
func (p *Proxy) recordRefused(ctx context.Context, method string, err error) {
	recorder, peer := p.record.Tracer(recordedPeer), listen.PeerOf(ctx)
	if recorder != nil && peer != nil && peer.Limits().ShowsRefusal(time.Now()) {
		_, leg := recorder.Begin(ctx, director.LegInfo{Method: method, Client: true, Metadata: transport.Metadata(ctx)})
		leg.End(err, nil)
	}
}

// refuseReturned is an interceptor that refuses a call that this proxy has made itself, for a client or of its own: a
// backend leads back here. Otherwise each call would go round until the descriptors of the process are used up.
func (p *Proxy) refuseReturned(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	mine := func(value string) bool { return strings.Contains(value, p.via) } // a proxy may have joined several
	if slices.ContainsFunc(sentVia(ss.Context()), mine) {
		err := status.Errorf(codes.FailedPrecondition, "criproxy: %s "+backend.CameBack+", through %s: the socket of a backend leads there, perhaps through another proxy; see \"criproxy check\" and the sockets of the backends",
			path.Base(info.FullMethod), listen.PeerOf(ss.Context()).Socket.Path)
		p.recordRefused(ss.Context(), info.FullMethod, err)
		return err
	}
	return handler(srv, ss)
}

// sentVia returns the proxies that the call of ctx has come through. The caller must not change the result.
func sentVia(ctx context.Context) []string {
	if md, ok := transport.Sent(ctx); ok {
		return md[transport.ViaField]
	}
	return metadata.ValueFromIncomingContext(ctx, transport.ViaField)
}

// recordedPeer returns the process that made the call of ctx, for the recorder: the zero Peer if the kernel does not say it.
func recordedPeer(ctx context.Context) capture.Peer {
	if peer := listen.PeerOf(ctx); peer != nil && peer.Known {
		return capture.Peer{PID: int(peer.PID), UID: int(peer.UID), Name: peer.Name}
	}
	return capture.Peer{}
}
