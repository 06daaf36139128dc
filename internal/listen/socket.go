// Package listen opens the sockets that clients connect to, and knows who is at the other
// end: unix sockets whose files are restored when somebody deletes them, TCP with TLS, vsock,
// and sockets that systemd or an earlier process passes on.
package listen

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/criproxy/criproxy/internal/certs"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/limits"
	"github.com/criproxy/criproxy/internal/recovery"
)

// Socket is a socket that clients connect to. As a net.Listener it tells each connection on
// which socket it came in. It is safe for concurrent use, except for Cfg, which only a reload
// touches.
type Socket struct {
	net.Listener
	Path   string
	Cfg    config.Listener                     // as of the last reload; only a reload reads it
	Access atomic.Pointer[[]config.AccessRule] // nil when the socket is no longer in the configuration
	tls    atomic.Pointer[certs.Credentials]   // nil if connections are not secured

	// Other connects to where connections pass that do not begin with HTTP/2. It may be nil; its error refuses
	// the connection.
	Other        func(*Socket) (net.Conn, error)
	passing      atomic.Int64 // such connections
	refusedOther atomic.Bool  // one has been, which is logged once

	closing sync.Once
	closed  chan struct{}

	Refused atomic.Int64 // calls, by the access list
	Limits  limits.Socket

	mu      sync.Mutex
	paused  bool
	greeted sync.Cond
	waiting int                        // connections that gRPC has been given and not begun with
	early   map[*acceptedConn]struct{} // those, and those whose handshakes have not ended
	open    map[*acceptedConn]struct{} // all that are not closed, and some that are
	many    int                        // so many that some of them may be
}

// New returns the socket that l listens on.
func New(l net.Listener, cfg config.Listener) *Socket {
	s := &Socket{Listener: l, Path: cfg.Path, closed: make(chan struct{}), early: map[*acceptedConn]struct{}{}, open: map[*acceptedConn]struct{}{}}
	s.greeted.L = &s.mu
	s.Limits.Name = cfg.Path
	s.Configure(cfg)
	return s
}

// Configure applies what cfg says about connections and calls.
func (s *Socket) Configure(cfg config.Listener) {
	s.Cfg = cfg
	rules := cfg.Access
	s.Access.Store(&rules)
	var secured *certs.Credentials
	if cfg.TLS != nil {
		secured = &certs.Credentials{Keys: certs.NewKeyring(*cfg.TLS)}
	}
	s.tls.Store(secured)
	s.Limits.Main.Store(cfg.Main)
	s.Limits.MaxCalls.Store(int64(cfg.MaxCalls))
}

// Accept is for gRPC. While the socket is paused it does not return.
func (s *Socket) Accept() (net.Conn, error) {
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

// Close is for gRPC, and for a reload that removes the socket. Both may call it at once.
func (s *Socket) Close() error {
	err := s.Listener.Close()
	s.closing.Do(func() { close(s.closed) })
	return err
}

// Credentials tell gRPC which client made a connection, and on which socket.
type Credentials struct {
	credentials.TransportCredentials
}

// ServerHandshake is for gRPC.
func (Credentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a, ok := conn.(*acceptedConn)
	if !ok {
		return conn, nil, nil
	}
	a.begin()
	who := newPeer(a.socket)
	err := recovery.Run("asking who connects", func() { who = whoIs(a.Conn, a.socket) })
	a.is(who)
	secured := a.socket.tls.Load()
	if err == nil && secured == nil && !beginsHTTP2(a.Conn) {
		return nil, nil, a.other(who)
	}
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
func (p Credentials) Clone() credentials.TransportCredentials { return p }

// Open returns the socket of l: the inherited one, or a new one. Where l says nothing of the
// mode and owner of its file, they are those of the file at model.
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
