package server

import (
	"context"

	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// interceptors returns the interceptors of every call, the outermost first. A test holds the order:
// an interceptor that refuses calls must come before those that count them. The order of the last
// two does not matter.
func (p *Proxy) interceptors() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		InterceptStream,    // refuses calls that the access list of the socket does not allow
		p.memory.Intercept, // limits the calls of the socket, and counts the memory of replies
		p.epochs.intercept, // counts the calls under way, for reloads and handovers
		p.filter.Intercept, // removes secrets from replies to clients that may only read
	}
}

// recordedPeer returns the process that made the call of ctx, for the recorder.
func recordedPeer(ctx context.Context) capture.Peer {
	if peer := listen.PeerOf(ctx); peer != nil && peer.Known {
		return capture.Peer{PID: int(peer.PID), UID: int(peer.UID), Name: peer.Name}
	}
	return capture.Peer{}
}
