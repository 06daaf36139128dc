package transport

import (
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// A ServerConfig says what a server does. Its zero value is a server that knows no method.
type ServerConfig struct {
	// Handler is called for each call of a service that is not registered, without a service
	// (nil). Its stream takes and gives *codec.Frame, and messages that package codec
	// encodes. The context of the stream has what gRPC's own servers put there: metadata, the
	// peer, the method.
	Handler grpc.StreamHandler

	// Interceptors are around Handler and around the streams of registered services, the first
	// one outermost; UnaryInterceptor is around their unary methods.
	Interceptors     []grpc.StreamServerInterceptor
	UnaryInterceptor grpc.UnaryServerInterceptor

	// MaxMessage is the longest message that is received, in bytes, compressed or not. Zero
	// means DefaultMaxMessage. MaxHeaders is the longest list of header fields. Zero means
	// DefaultMaxHeaders.
	MaxMessage, MaxHeaders int

	// MaxStreams is how many calls a connection may have at once. A call counts until its handler
	// has returned, even if the client has gone. The server refuses one more, and clients then
	// wait and try again. Zero means DefaultMaxStreams.
	MaxStreams int

	// Window is how many bytes of messages a connection may have that no handler has received,
	// not counting those in the budget. Messages that wait for the budget may have four times as
	// much; the server refuses one more. Zero means 1 MiB.
	Window int

	// Budget is the memory for messages that do not come in one piece. Optional: there is
	// enough.
	Budget Budget

	// HandshakeTimeout bounds the handshake and HTTP/2's preface. Zero means 10s.
	HandshakeTimeout time.Duration

	// StallTimeout is how long a client may be silent in the middle of a frame, or of a message for
	// which memory was taken. Zero means 30s.
	StallTimeout time.Duration

	// MaxConns is how many connections there may be, those included that have just begun. One
	// more is closed. Zero means any number.
	MaxConns int

	// Pings is how often clients may ping. The server cuts off a client that pings more often,
	// with too_many_pings.
	Pings keepalive.EnforcementPolicy

	// PingAfter is how long a client may be silent before the server pings it. Zero means that
	// the server does not ping. PingTimeout is how long the client may take to answer before the
	// server cuts it off. Zero means 20s.
	PingAfter, PingTimeout time.Duration
}

const (
	DefaultMaxMessage = 16 << 20
	DefaultMaxHeaders = 64 << 10
	DefaultMaxStreams = 16 << 10

	defaultWindow    = 1 << 20
	handshakeTimeout = 10 * time.Second
	stallTimeout     = 30 * time.Second
	workers          = 32 // goroutines of a server that do calls; see hire
	readBuffer       = 4 << 10
)

// A Handshake makes a connection ready: it secures it, and finds out who is at the other
// end, which becomes the AuthInfo of the peer of its calls. Its time is bounded by a
// deadline of the connection. The connection that it returns is the one that is used.
type Handshake func(net.Conn) (net.Conn, credentials.AuthInfo, error)

// A Server serves gRPC. It is safe for concurrent use.
type Server struct {
	cfg      ServerConfig
	services map[string]*service
	handler  grpc.StreamHandler // Handler within the interceptors; nil if there is none
	work     chan *serverStream
	hired    sync.Once
	done     chan struct{} // closed when the server has stopped

	mu        sync.Mutex
	changed   sync.Cond // of what follows
	listeners map[net.Listener]struct{}
	greeting  map[net.Conn]net.Listener // that are in the handshake, and where they came in
	conns     map[*serverConn]struct{}  // that have done it
	handlers  int                       // that have not returned
	draining  bool
	stopped   bool
}

// NewServer returns a server. It has no goroutine before it serves.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{
		cfg: cfg, services: map[string]*service{}, work: make(chan *serverStream), done: make(chan struct{}),
		listeners: map[net.Listener]struct{}{}, greeting: map[net.Conn]net.Listener{}, conns: map[*serverConn]struct{}{},
	}
	s.changed.L = &s.mu
	s.cfg.MaxMessage = orDefault(cfg.MaxMessage, DefaultMaxMessage)
	s.cfg.MaxHeaders = orDefault(cfg.MaxHeaders, DefaultMaxHeaders)
	s.cfg.MaxStreams = orDefault(cfg.MaxStreams, DefaultMaxStreams)
	s.cfg.Window = max(orDefault(cfg.Window, defaultWindow), firstWindow)
	s.cfg.HandshakeTimeout = orDefault(cfg.HandshakeTimeout, handshakeTimeout)
	s.cfg.StallTimeout = orDefault(cfg.StallTimeout, stallTimeout)
	s.cfg.PingTimeout = orDefault(cfg.PingTimeout, pingTimeout)
	s.cfg.Pings.MinTime = orDefault(cfg.Pings.MinTime, 5*time.Minute)
	if cfg.Budget == nil {
		s.cfg.Budget = unlimited{}
	}
	if cfg.Handler != nil {
		s.handler = within(cfg.Interceptors, cfg.Handler)
	}
	return s
}

func orDefault[T comparable](v, otherwise T) T {
	if zero := *new(T); v == zero {
		return otherwise
	}
	return v
}

// within returns h with all around it, the first outermost. Each calls the next one once at most.
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

// A chain is a call on its way through the interceptors.
type chain struct {
	rest []grpc.StreamServerInterceptor // those that have not been called yet
	last grpc.StreamHandler
	info grpc.StreamServerInfo
	self grpc.StreamHandler // next, allocated once
}

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
