package listen

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/peer"

	"github.com/criproxy/criproxy/internal/limits"
)

// Peer is the client at the other end of a connection. It comes with each call, as gRPC's
// AuthInfo.
type Peer struct {
	Socket *Socket
	Known  bool // what follows; not over TCP
	PID    int32
	Name   string // of its program
	UID    uint32
	GIDs   []uint32 // its own and its supplementary groups

	certificate string // the subject of its certificate, if it has shown one

	limits limits.Client
}

func newPeer(s *Socket) *Peer {
	return &Peer{Socket: s, limits: limits.Client{Socket: &s.Limits}}
}

// Limits is for the room of that name.
func (p *Peer) Limits() *limits.Client { return &p.limits }

// PeerOf returns the client that made the call of ctx, nil if that is unknown.
func PeerOf(ctx context.Context) *Peer {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	who, _ := p.AuthInfo.(*Peer)
	return who
}

// AuthType is for gRPC.
func (*Peer) AuthType() string { return "unix" }

// Program is String with the name of the program.
func (p *Peer) Program() string {
	if p.Name == "" {
		return p.String()
	}
	return p.Name + ", " + p.String()
}

func (p *Peer) String() string {
	switch {
	case p.certificate != "":
		return "a client with the certificate " + p.certificate
	case !p.Known:
		return "an unknown process"
	}
	return fmt.Sprintf("uid %d (process %d)", p.UID, p.PID)
}

// whoIs asks the kernel which process made the connection.
func whoIs(conn net.Conn, s *Socket) *Peer {
	who := newPeer(s)
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return who
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return who
	}
	_ = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return
		}
		who.Known, who.PID, who.UID = true, cred.Pid, cred.Uid
		who.GIDs = append([]uint32{cred.Gid}, peerGroups(fd)...)
	})
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", who.PID)); err == nil { // if it has not ended yet
		who.Name = strings.TrimSpace(string(comm))
	}
	return who
}

// peerGroups returns the supplementary groups of the client, which SO_PEERCRED lacks.
func peerGroups(fd uintptr) []uint32 {
	gids := make([]uint32, 64)
	for {
		size := uint32(len(gids) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return gids[:size/4]
		case errno == syscall.ERANGE && int(size/4) > len(gids):
			gids = make([]uint32, size/4)
		default:
			return nil // a kernel before 4.13
		}
	}
}
