package transport

import (
	"errors"
	"net"
	"time"
)

// Serve accepts clients at l until l is closed, or the server drains or stops: then it returns nil.
// Serve also returns on any other error of l, unless the error is temporary. Handshake may be nil.
// Serve may be called for several listeners. The server closes the connections that it accepts.
func (s *Server) Serve(l net.Listener, shake Handshake) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		_ = l.Close() // the server does not use it
		return ErrServerStopped
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	s.started.Do(s.startWorkers)
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
		_ = l.Close() // usually a second time
	}()
	for wait := time.Duration(0); ; {
		nc, err := l.Accept()
		if err == nil {
			wait = 0
			if s.admit(nc, l) {
				go s.serve(nc, shake)
			}
			continue
		}
		s.mu.Lock()
		over := s.draining
		s.mu.Unlock()
		if over || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if t, ok := err.(interface{ Temporary() bool }); !ok || !t.Temporary() { // such as EMFILE
			return err
		}
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(wait):
		case <-s.done:
		}
	}
}

// ServeConn serves one connection until it ends, and closes it. Handshake may be nil.
func (s *Server) ServeConn(nc net.Conn, shake Handshake) {
	if s.admit(nc, nil) {
		s.started.Do(s.startWorkers)
		s.serve(nc, shake)
	}
}

// admit adds a connection to s.greeting, for serve. If the server has stopped, admit closes the connection and returns false.
func (s *Server) admit(nc net.Conn, l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		_ = nc.Close() // nothing was sent on it
		return false
	}
	s.clock.Tick()
	s.greeting[nc] = greeting{l, s.clock.Now()}
	return true
}

// serve serves a connection that admit has added to s.greeting.
func (s *Server) serve(nc net.Conn, shake Handshake) {
	c, err := s.greet(nc, shake)
	s.mu.Lock()
	g, stays := s.greeting[nc] // unless endSilent has ended it
	if c != nil {
		c.listener, c.used = g.listener, s.clock.Now()
	}
	delete(s.greeting, nc)
	s.changed.Broadcast()
	if c == nil || !stays || s.stopped {
		s.mu.Unlock()
		if c != nil {
			nc = c.nc
		}
		_ = nc.Close() // the handshake has failed, or was ended, or the server has stopped
		return
	}
	s.conns[c] = struct{}{}
	draining := s.draining
	s.mu.Unlock()
	if draining && err == nil {
		c.drain()
	}
	if err == nil {
		err = c.read()
	}
	c.over(err)
	s.mu.Lock()
	delete(s.conns, c)
	s.changed.Broadcast()
	s.mu.Unlock()
}

// start runs the handler of a call in another goroutine.
func (s *Server) start(st *serverStream) {
	s.mu.Lock()
	s.handlers++
	s.mu.Unlock()
	select {
	case s.work <- st:
	default:
		go s.do(st)
	}
}

// do runs the handler of a call.
func (s *Server) do(st *serverStream) {
	st.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handlers--; s.handlers == 0 {
		s.changed.Broadcast()
	}
}

// startWorkers starts goroutines that run handlers for as long as the server runs: when the next call
// comes, their stacks have already grown. If all of them are busy, a call gets its own goroutine.
func (s *Server) startWorkers() {
	for range workers {
		go func() {
			for {
				select {
				case st := <-s.work:
					s.do(st)
				case <-s.done:
					return
				}
			}
		}()
	}
}
