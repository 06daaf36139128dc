// Package grpcgo serves clients with grpc-go instead of criproxy's own HTTP/2. It is the second data path: a
// server with the configuration and the promises of
// package transport, and grpc-proxy's handler for streams.
//
// It is for those who would rather run the library that most programs use than criproxy's own HTTP/2,
// and for tests, which compare the two. What grpc-go cannot do is left out: it has no bound on the
// memory for messages on their way in, no limit on how long a client may stall, and no guard against
// floods of frames other than pings and resets. docs/security.md lists the differences.
package grpcgo

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/transport"
)

// A Server serves gRPC with grpc-go. Its methods promise what those of [transport.Server] promise. It
// is safe for concurrent use. It wraps each listener and connection, to see what grpc-go does not show; mu guards these. No
// method holds mu while it calls grpc-go, which closes connections and so comes back.
type Server struct {
	grpc  *grpc.Server
	clock transport.Clock

	mu        sync.Mutex
	changed   sync.Cond // a client has begun, was asked to leave or has gone, or the server stops
	listeners map[*listener]struct{}
	conns     map[*conn]struct{}
	stopped   bool
}

// NewServer returns a server. It ignores Window and StallTimeout of cfg.
func NewServer(cfg transport.ServerConfig) *Server {
	s := &Server{listeners: map[*listener]struct{}{}, conns: map[*conn]struct{}{}}
	s.changed.L = &s.mu
	limit := cmp.Or(cfg.MaxMessage, transport.DefaultMaxMessage)
	opts := []grpc.ServerOption{
		grpc.Creds(greeter{}),
		grpc.ForceServerCodecV2(codec.Raw),
		grpc.ChainStreamInterceptor(append([]grpc.StreamServerInterceptor{busy, counted(cfg.Budget, limit, cfg.Lost)}, cfg.Interceptors...)...),
		grpc.MaxRecvMsgSize(2 * limit), // grpc-go answers for a longer message itself, before any interceptor
		grpc.MaxHeaderListSize(uint32(cmp.Or(cfg.MaxHeaders, transport.DefaultMaxHeaders))),
		grpc.MaxConcurrentStreams(uint32(cmp.Or(cfg.MaxStreams, transport.DefaultMaxStreams))),
		grpc.ConnectionTimeout(cmp.Or(cfg.HandshakeTimeout, transport.DefaultHandshakeTimeout)),
		grpc.KeepaliveEnforcementPolicy(cfg.Pings),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.PingAfter, Timeout: cfg.PingTimeout}),
	}
	if cfg.UnaryInterceptor != nil {
		opts = append(opts, grpc.UnaryInterceptor(cfg.UnaryInterceptor))
	}
	if cfg.Handler != nil {
		opts = append(opts, grpc.UnknownServiceHandler(cfg.Handler))
	}
	s.grpc = grpc.NewServer(opts...)
	return s
}

// counted returns an interceptor that refuses a message above the limit, reserves the memory of each
// message that a client has sent until the message is freed, and ends a call that panics with an error.
func counted(budget transport.Budget, limit int, lost func(transport.Loss)) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer recovery.To(&err, info.FullMethod)
		return next(srv, &countedStream{ss, budget, limit, func(name string) {
			if lost != nil {
				lost(transport.Loss{Method: info.FullMethod, Field: name, Reply: true, Why: transport.LossBytes})
			}
		}})
	}
}

// A countedStream counts the messages that it receives. grpc-go says how long a message is only when it has all of it.
type countedStream struct {
	grpc.ServerStream
	budget transport.Budget
	limit  int
	lost   func(name string)
}

// SetHeader adds to the header, as the methods below add to it and to the trailer, all that HTTP/2 can carry. The
// methods of grpc-go's own stream refuse what is not printable; the functions of the same names do not.
func (s *countedStream) SetHeader(md metadata.MD) error {
	return grpc.SetHeader(s.Context(), transport.Sendable(md, s.lost))
}

func (s *countedStream) SendHeader(md metadata.MD) error {
	return grpc.SendHeader(s.Context(), transport.Sendable(md, s.lost))
}

func (s *countedStream) SetTrailer(md metadata.MD) {
	_ = grpc.SetTrailer(s.Context(), transport.Sendable(md, s.lost)) // fails if the client has gone
}

// RecvMsg receives a message within the limit, and reserves its memory until it is freed.
func (s *countedStream) RecvMsg(m any) error {
	f := codec.ReplyFrame(m)
	if err := s.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	if n := f.Len(); n > s.limit {
		f.Free()
		return status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", n, s.limit) // as grpc-go says it
	}
	if err := transport.Count(s.Context(), s.budget, f); err != nil {
		return err
	}
	if err := codec.Decode(m, f); err != nil {
		return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err) // as grpc-go says it
	}
	return nil
}

// RegisterService adds a service whose messages are protobuf messages. The caller must register all
// services before Serve.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(desc, impl)
}

// Serve accepts clients at l, and prepares their connections with shake, which may be nil.
func (s *Server) Serve(l net.Listener, shake transport.Handshake) error {
	mine := &listener{l, s, shake}
	s.mu.Lock()
	s.listeners[mine] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, mine)
		s.mu.Unlock()
	}()
	err := s.grpc.Serve(mine)
	switch {
	case errors.Is(err, grpc.ErrServerStopped):
		return transport.ErrServerStopped
	case errors.Is(err, net.ErrClosed):
		return nil
	}
	return err
}

// Drain accepts no more connections, waits for the clients in the handshake, asks all to connect
// elsewhere, and returns when the calls under way have ended. When ctx ends, Drain stops the server.
func (s *Server) Drain(ctx context.Context, notified func()) {
	defer context.AfterFunc(ctx, s.Stop)()
	s.mu.Lock()
	for l := range s.listeners {
		_ = l.Close() // nobody has connected
	}
	// grpc-go would close connections that it has accepted and not read from.
	s.await(func(c *conn) bool { return c.begun })
	s.mu.Unlock()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.grpc.GracefulStop()
	}()
	s.mu.Lock()
	s.await(func(c *conn) bool { return c.announced })
	s.mu.Unlock()
	if notified != nil {
		notified()
	}
	<-drained
}

// await waits until all connections are as done says, or the server stops. s.mu is held.
func (s *Server) await(done func(*conn) bool) {
	for !s.stopped {
		waits := false
		for c := range s.conns {
			waits = waits || !done(c)
		}
		if !waits {
			return
		}
		s.changed.Wait()
	}
}

// Stop closes all listeners and connections at once. It does not wait for the handlers of calls under
// way, whose contexts end.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.changed.Broadcast()
	s.mu.Unlock()
	s.EndSilent(nil) // grpc-go waits for those
	s.grpc.Stop()
}

// EndSilent closes the connections in the handshake: those that the given listener accepted, or all if
// it is nil.
func (s *Server) EndSilent(of net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if !c.begun && (of == nil || c.listener.Listener == of) {
			_ = c.accepted.Close() // the client has not begun
		}
	}
}

// Peers returns the AuthInfo of each connected client, and the listener of each connection in the
// handshake.
func (s *Server) Peers() (known []credentials.AuthInfo, greeting []net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.begun {
			known = append(known, c.info)
		} else {
			greeting = append(greeting, c.listener.Listener)
		}
	}
	return known, greeting
}
