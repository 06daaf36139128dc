// Package listen opens the sockets to which clients connect, and asks the kernel which process is at
// the other end. There are unix sockets, whose files it restores after they were deleted, TCP with
// TLS, vsock, and sockets that systemd or an earlier process passes on.
//
// A [Socket] is what the proxy serves: a listener with its settings. Under it may be a [File], whose listener changes when the
// file was deleted. Which process owns the file of a socket changes with a handover: the one that called listen last.
package listen

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/limits"
)

// Socket is a socket to which clients connect. It is safe for concurrent use, except for Cfg,
// which only a reload uses.
//
// A socket lives as long as its path is in the configuration: a reload changes its settings in place, so that clients stay
// connected. One that was taken out still has its connections, until each has no call; Access is nil then, and refuses calls.
type Socket struct {
	net.Listener
	Path   string
	Cfg    config.Listener                     // as of the last reload; only a reload reads it
	Access atomic.Pointer[[]config.AccessRule] // nil when the socket is no longer in the configuration
	tls    atomic.Pointer[Credentials]         // nil if connections are not secured

	// Other returns a connection to the server that gets connections which do not begin with HTTP/2. If it fails or is
	// nil, such a connection is refused.
	Other        func(*Socket) (net.Conn, error)
	passing      atomic.Int64 // connections that pass to Other now
	refusedOther atomic.Bool  // such a connection was refused, and that was logged
	others       sync.Map     // :: such a connection, while it passes → struct{}

	// Room makes room for one more connection, and reports whether there is some. Nil means that there always is.
	Room  func(*Socket) bool
	Ended atomic.Int64 // connections that ended, or were refused, to make room

	Refused atomic.Int64 // calls, by the access list
	Limits  limits.Socket
}

// New returns the socket that l listens on.
func New(l net.Listener, cfg config.Listener) *Socket {
	s := &Socket{Listener: l, Path: cfg.Path}
	s.Limits.Name = cfg.Path
	s.Configure(cfg)
	return s
}

// Configure applies the settings in cfg for connections and calls.
func (s *Socket) Configure(cfg config.Listener) {
	s.Cfg = cfg
	rules := cfg.Access
	s.Access.Store(&rules)
	var secured *Credentials
	if cfg.TLS != nil {
		secured = &Credentials{Keys: NewKeyring(*cfg.TLS)}
	}
	s.tls.Store(secured)
	s.Limits.Main.Store(cfg.Main)
	s.Limits.MaxCalls.Store(int64(cfg.MaxCalls))
}

// Accept waits for a connection for which there is room, and closes the others.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil || s.Room == nil || s.Room(s) {
			return conn, err
		}
		_ = conn.Close() // nothing was sent on it
	}
}

// Silent reports whether a connection whose handshake is not done has nothing under way.
func (s *Socket) Silent(conn net.Conn) bool {
	_, passes := s.others.Load(conn)
	return !passes
}

// Handshake finds out which client made a connection, and secures the connection if the socket has
// certificates. The server calls it, and keeps the [Peer] for the calls of that client.
func (s *Socket) Handshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	peer := newPeer(s)
	if err := recovery.Run("finding out which process connects", func() { peer = whoIs(conn, s) }); err != nil {
		return nil, nil, err
	}
	secured := s.tls.Load()
	if secured == nil && !beginsHTTP2(conn) {
		return nil, nil, s.other(conn, peer)
	}
	if secured == nil {
		return conn, peer, nil
	}
	secret, info, err := secured.ServerHandshake(conn)
	if tls, ok := info.(credentials.TLSInfo); ok && len(tls.State.PeerCertificates) > 0 {
		peer.certificate = tls.State.PeerCertificates[0].Subject.String()
	}
	return secret, peer, err
}

// Open returns the socket of l: the inherited one, or a new one. If l has no mode or owner for its
// file, it gets those of the file at model.
func Open(l config.Listener, model string, inherited *Inheritance) (*Socket, error) {
	listener := inherited.Take(l.Path)
	if l.IsFile() {
		return openFile(l, model, listener)
	}
	if listener == nil {
		var err error
		if listener, err = listenNet(l.Path); err != nil {
			return nil, fmt.Errorf("listeners: listening on %s: %w", l.Path, err)
		}
	}
	return New(listener, l), nil
}
