package transport

import (
	"cmp"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// A ServerConfig configures a server. A server with the zero value knows no methods.
type ServerConfig struct {
	// Handler handles each call of a service that is not registered; its srv argument is nil.
	// Its stream sends and receives *codec.Frame, and messages that package codec encodes. The
	// context of the stream holds what gRPC's own servers put there: metadata, peer, method.
	Handler grpc.StreamHandler

	// Interceptors wrap Handler and the streaming methods of registered services, the first one
	// outermost. UnaryInterceptor wraps the unary methods of registered services.
	Interceptors     []grpc.StreamServerInterceptor
	UnaryInterceptor grpc.UnaryServerInterceptor

	// MaxMessage is the length of the longest message that the server receives, in bytes,
	// compressed or not. Zero means DefaultMaxMessage. MaxHeaders is the size of the longest
	// header list (RFC 9113, SETTINGS_MAX_HEADER_LIST_SIZE). Zero means DefaultMaxHeaders.
	MaxMessage, MaxHeaders int

	// Lost is called for each field of metadata that the server cannot send. It must not wait, and must
	// not call the server. Optional.
	Lost func(Loss)

	// MaxStreams is how many calls a connection may have at once. A call counts until its handler
	// has returned, even if the client has gone. The server refuses further calls; clients wait
	// and try again. Zero means DefaultMaxStreams.
	MaxStreams int

	// Window is how many bytes of messages that no handler has received yet a connection may
	// hold, not counting those in the budget. Messages that wait for the budget may take four
	// times as much; the server refuses further messages. Zero means 1 MiB.
	Window int

	// Budget is the memory for messages that do not arrive in one piece. Nil means no bound.
	Budget Budget

	// HandshakeTimeout bounds the handshake and the HTTP/2 connection preface. Zero means 10s.
	HandshakeTimeout time.Duration

	// StallTimeout is how long a client may be silent in the middle of a frame, or of a message
	// for which the server has reserved memory. Zero means 30s.
	StallTimeout time.Duration

	// Pings is how often clients may ping. The server disconnects a client that pings more often,
	// with a GOAWAY frame that says too_many_pings.
	Pings keepalive.EnforcementPolicy

	// PingAfter is how long a client may be silent before the server pings it. Zero means that
	// the server does not ping. PingTimeout is how long the client may take to answer before the
	// server closes the connection. Zero means 20s.
	PingAfter, PingTimeout time.Duration
}

const (
	DefaultMaxMessage = 16 << 20
	DefaultMaxHeaders = 64 << 10
	defaultMaxReply   = 1 << 20
	DefaultMaxStreams = 16 << 10

	// DefaultHandshakeTimeout is for a client: it is on this machine, or has to make TLS.
	DefaultHandshakeTimeout = 10 * time.Second

	defaultWindow = 1 << 20
	stallTimeout  = 30 * time.Second
	workers       = 32 // goroutines of a server that run handlers; see startWorkers
	readBuffer    = 4 << 10
)

// A Handshake prepares a connection: it secures the connection and identifies the client. The
// server uses the connection that Handshake returns; the AuthInfo becomes that of each call's
// peer. The connection has a deadline, which bounds the handshake.
type Handshake func(net.Conn) (net.Conn, credentials.AuthInfo, error)

// A Server serves gRPC. It is safe for concurrent use.
//
// A connection is in greeting while its handshake goes on, and then in conns until it has ended. Once draining is set, Serve
// accepts no more, and each connection drains; once stopped is set, all are closed. Drain and Stop wait for the end of the
// connections; changed wakes them.
// No goroutine holds mu and a connection's mu at once.
type Server struct {
	cfg      ServerConfig
	services map[string]*service
	handler  grpc.StreamHandler // Handler, wrapped by the interceptors; nil if there is none
	work     chan *serverStream
	started  sync.Once
	done     chan struct{} // closed when the server has stopped
	clock    Clock

	mu        sync.Mutex
	changed   sync.Cond // a connection or the last handler has ended, or the server stops
	listeners map[net.Listener]struct{}
	greeting  map[net.Conn]greeting    // :: connection in the handshake
	conns     map[*serverConn]struct{} // connections after the handshake
	handlers  int                      // handlers that have not returned
	draining  bool
	stopped   bool
}

// A greeting is about a connection in the handshake.
type greeting struct {
	listener net.Listener // that accepted it; nil if none did
	began    uint64       // in the time of the server's clock
}

// NewServer returns a server. It starts no goroutine before it serves.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{
		cfg: cfg, services: map[string]*service{}, work: make(chan *serverStream), done: make(chan struct{}),
		listeners: map[net.Listener]struct{}{}, greeting: map[net.Conn]greeting{}, conns: map[*serverConn]struct{}{},
	}
	s.changed.L = &s.mu
	s.cfg.MaxMessage = cmp.Or(cfg.MaxMessage, DefaultMaxMessage)
	s.cfg.MaxHeaders = cmp.Or(cfg.MaxHeaders, DefaultMaxHeaders)
	s.cfg.MaxStreams = cmp.Or(cfg.MaxStreams, DefaultMaxStreams)
	s.cfg.Window = max(cmp.Or(cfg.Window, defaultWindow), firstWindow)
	s.cfg.HandshakeTimeout = cmp.Or(cfg.HandshakeTimeout, DefaultHandshakeTimeout)
	s.cfg.StallTimeout = cmp.Or(cfg.StallTimeout, stallTimeout)
	s.cfg.PingTimeout = cmp.Or(cfg.PingTimeout, pingTimeout)
	s.cfg.Pings.MinTime = cmp.Or(cfg.Pings.MinTime, 5*time.Minute)
	if cfg.Lost == nil {
		s.cfg.Lost = func(Loss) {}
	}
	if cfg.Budget == nil {
		s.cfg.Budget = unlimited{}
	}
	if cfg.Handler != nil {
		s.handler = within(cfg.Interceptors, cfg.Handler)
	}
	return s
}

// within returns h wrapped by all interceptors, the first one outermost. Each of them may call the
// next one at most once.
func within(all []grpc.StreamServerInterceptor, h grpc.StreamHandler) grpc.StreamHandler {
	if len(all) == 0 {
		return h
	}
	return func(srv any, ss grpc.ServerStream) error {
		name, _ := grpc.MethodFromServerStream(ss)
		c := chain{rest: all, last: h, info: grpc.StreamServerInfo{FullMethod: name, IsClientStream: true, IsServerStream: true}}
		c.self = c.next
		return c.next(srv, ss)
	}
}

// A chain is a call on its way through the interceptors. It lasts for one call and belongs to its goroutine.
type chain struct {
	rest []grpc.StreamServerInterceptor // not called yet
	last grpc.StreamHandler
	info grpc.StreamServerInfo
	self grpc.StreamHandler // next, allocated once
}

// next calls the next interceptor, or after the last one the handler.
func (c *chain) next(srv any, ss grpc.ServerStream) error {
	if len(c.rest) == 0 {
		return c.last(srv, ss)
	}
	now := c.rest[0]
	c.rest = c.rest[1:]
	return now(srv, ss, &c.info, c.self)
}

// ErrServerStopped is the error of Serve and ServeConn after Stop.
var ErrServerStopped = errors.New("transport: the server has stopped")
