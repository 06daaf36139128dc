package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/recovery"
)

// socket is one of the sockets that clients connect to. As a net.Listener it tells
// each connection where it came in.
type socket struct {
	net.Listener
	path   string
	cfg    config.Listener                     // what it was last; who reloads reads it
	access atomic.Pointer[[]config.AccessRule] // nil when the socket is no longer in the configuration
	tls    atomic.Pointer[tlsCredentials]      // nil if connections are not secured

	closing sync.Once
	closed  chan struct{}

	refused  atomic.Int64 // calls, by the access list
	calls    atomic.Int64 // under way
	maxCalls atomic.Int64
	main     atomic.Bool // it is the one that kubelet connects to

	once  sync.Once
	bytes *semaphore.Weighted // of the memory for messages, if it is not the main one; see shares

	mu      sync.Mutex
	paused  bool
	greeted sync.Cond
	waiting int                        // connections that gRPC has been given and not begun with
	early   map[*acceptedConn]struct{} // those, and those whose handshakes have not ended
	open    map[*acceptedConn]struct{} // all that are not closed, and some that are
	many    int                        // so many that some of them may be
}

// newSocket returns the socket whose listener is l.
func newSocket(l net.Listener, cfg config.Listener) *socket {
	s := &socket{Listener: l, path: cfg.Path, closed: make(chan struct{}), early: map[*acceptedConn]struct{}{}, open: map[*acceptedConn]struct{}{}}
	s.greeted.L = &s.mu
	s.configure(cfg)
	return s
}

// configure takes over what is about connections and calls.
func (s *socket) configure(cfg config.Listener) {
	s.cfg = cfg
	rules := cfg.Access
	s.access.Store(&rules)
	var secured *tlsCredentials
	if cfg.TLS != nil {
		secured = &tlsCredentials{keys: newKeyring(*cfg.TLS)}
	}
	s.tls.Store(secured)
	s.main.Store(cfg.Main)
	s.maxCalls.Store(int64(cfg.MaxCalls))
}

// Accept is for gRPC. While the socket is paused it returns nothing.
func (s *socket) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		a := &acceptedConn{Conn: conn, socket: s}
		s.waiting++
		s.early[a] = struct{}{}
		s.opensLocked(a)
		return a, nil
	}
	if s.paused && !errors.Is(err, net.ErrClosed) {
		s.mu.Unlock()
		<-s.closed
		s.mu.Lock()
		err = net.ErrClosed
	}
	return nil, err
}

// Close is for gRPC, and for a reload that takes the socket out: both may come at once.
func (s *socket) Close() error {
	err := s.Listener.Close()
	s.closing.Do(func() { close(s.closed) })
	return err
}

// peerCredentials tell gRPC who is at the other end of a connection, and on which
// socket it came in.
type peerCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake is for gRPC.
func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a, ok := conn.(*acceptedConn)
	if !ok {
		return conn, nil, nil
	}
	a.begin()
	who := &peerInfo{socket: a.socket}
	err := recovery.Run("asking who connects", func() { who = whoIs(a.Conn, a.socket) })
	a.is(who)
	secured := a.socket.tls.Load()
	if err != nil || secured == nil {
		return a.Conn, who, err
	}
	secret, info, err := secured.ServerHandshake(a.Conn)
	if tls, ok := info.(credentials.TLSInfo); ok && len(tls.State.PeerCertificates) > 0 {
		who.certificate = tls.State.PeerCertificates[0].Subject.String()
	}
	return secret, who, err
}

// Clone is for gRPC.
func (p peerCredentials) Clone() credentials.TransportCredentials { return p }

// whoIs asks the kernel who connected.
func whoIs(conn net.Conn, s *socket) *peerInfo {
	who := &peerInfo{socket: s}
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
		who.known, who.pid, who.uid = true, cred.Pid, cred.Uid
		who.gids = append([]uint32{cred.Gid}, peerGroups(fd)...)
	})
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", who.pid)); err == nil { // if it has not ended yet
		who.name = strings.TrimSpace(string(comm))
	}
	return who
}

// peerGroups returns the supplementary groups of who connected, which SO_PEERCRED
// does not tell.
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

// openListener returns the socket of l: the one that was inherited, or a new one. What l leaves
// out about its file is as the file at model has it.
func openListener(l config.Listener, model string, inherited *inheritance) (*socket, error) {
	listener := inherited.take(l.Path)
	if l.IsFile() {
		return openFile(l, model, listener)
	}
	if listener == nil {
		var err error
		if listener, err = listenNet(l.Path); err != nil {
			return nil, fmt.Errorf("listeners: listening on %s: %w", l.Path, err)
		}
	}
	return newSocket(listener, l), nil
}
