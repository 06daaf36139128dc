package transport

import (
	"context"
	"maps"
	"net"
	"slices"

	"google.golang.org/grpc/credentials"
)

// Peers returns the AuthInfo of each connected client, and the listener of each connection in the
// handshake.
func (s *Server) Peers() (known []credentials.AuthInfo, greeting []net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		known = append(known, c.peer.AuthInfo)
	}
	for _, g := range s.greeting {
		greeting = append(greeting, g.listener)
	}
	return known, greeting
}

// Drain accepts no more connections, sends GOAWAY to the clients, and returns when the calls
// under way have ended and all connections are closed. When ctx ends, Drain stops the server. A
// client in the handshake gets GOAWAY after the handshake; see EndSilent. Drain calls notified, which
// may be nil, as soon as each client reads the GOAWAY before the end of any call.
func (s *Server) Drain(ctx context.Context, notified func()) {
	s.mu.Lock()
	s.draining = true
	s.closeListeners()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.drain()
	}
	if notified != nil {
		notified()
	}
	defer context.AfterFunc(ctx, s.Stop)()
	s.mu.Lock()
	for len(s.greeting)+len(s.conns) > 0 || s.handlers > 0 && !s.stopped {
		s.changed.Wait()
	}
	s.mu.Unlock()
	s.Stop()
}

// EndSilent closes the connections in the handshake: those that the given listener accepted, or all
// if it is nil.
func (s *Server) EndSilent(of net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for nc, g := range s.greeting {
		if of == nil || g.listener == of {
			_ = nc.Close() // greet then returns an error
		}
	}
}

// Stop closes all listeners and connections at once. The contexts of calls under way end; Stop does
// not wait for their handlers.
func (s *Server) Stop() {
	s.mu.Lock()
	first := !s.stopped
	s.draining, s.stopped = true, true
	s.closeListeners()
	for nc := range s.greeting {
		_ = nc.Close() // its goroutine notices
	}
	conns := slices.Collect(maps.Keys(s.conns))
	s.changed.Broadcast()
	s.mu.Unlock()
	if first {
		close(s.done)
	}
	for _, c := range conns {
		c.shut(ErrServerStopped)
	}
	s.mu.Lock()
	for len(s.greeting)+len(s.conns) > 0 {
		s.changed.Wait()
	}
	s.mu.Unlock()
}

// closeListeners has all calls of Serve return. s.mu is held.
func (s *Server) closeListeners() {
	for l := range s.listeners {
		_ = l.Close() // Serve returns
	}
}
