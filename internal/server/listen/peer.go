package listen

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/peer"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/server/limits"
)

// Peer is the client at the other end of a connection. It comes with each call, as gRPC's
// AuthInfo. The handshake fills it in; afterwards it does not change, except for its limits, which have locks of their own.
type Peer struct {
	Socket *Socket
	Known  bool // the fields below are known; they are not over TCP
	PID    int32
	Name   string // of its program
	UID    uint32
	GIDs   []uint32 // its own and its supplementary groups

	certificate string // the subject of its certificate, if it has shown one

	limits limits.Client
}

// newPeer returns a client of which nothing is known.
func newPeer(s *Socket) *Peer {
	return &Peer{Socket: s, limits: limits.Client{Socket: &s.Limits}}
}

// Limits returns the limits of the connection, for package limits.
func (p *Peer) Limits() *limits.Client { return &p.limits }

// PeerOf returns the client that made the call of ctx, or nil if it is unknown.
func PeerOf(ctx context.Context) *Peer {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	peer, _ := p.AuthInfo.(*Peer)
	return peer
}

// AuthType implements AuthInfo of package credentials.
func (*Peer) AuthType() string { return "unix" }

// Program returns String with the name of the program before it.
func (p *Peer) Program() string {
	if p.Name == "" {
		return p.String()
	}
	return p.Name + ", " + p.String()
}

// String says who the client is, for errors and the log: by its certificate, or else by what the kernel knows.
func (p *Peer) String() string {
	switch {
	case p.certificate != "":
		return "a client with the certificate " + p.certificate
	case !p.Known:
		return "an unknown process"
	}
	return fmt.Sprintf("uid %d (process %d)", p.UID, p.PID)
}

// whoIs asks the kernel which process made the connection. It is the one that called connect: a descriptor that was passed on
// does not change that.
func whoIs(conn net.Conn, s *Socket) *Peer {
	peer := newPeer(s)
	p, err := host.Of(conn)
	if err != nil {
		return peer
	}
	peer.Known, peer.PID, peer.UID, peer.Name = true, p.PID, p.UID, p.Name
	peer.GIDs = append([]uint32{p.GID}, host.Groups(conn)...)
	return peer
}
