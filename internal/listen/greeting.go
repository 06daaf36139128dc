package listen

import (
	"maps"
	"net"
	"syscall"
	"time"
)

// GreetTime is how long a new connection may take, when criproxy stops, to send what a
// connection begins with: a TLS handshake, if there is to be one, and the preface of HTTP/2.
// Clients send both as they connect. gRPC would wait 10s for a client that sends nothing, and
// could end nothing else meanwhile.
const GreetTime = 250 * time.Millisecond

// HandoverGreet is GreetTime after a handover, when nothing waits for this process, and no call
// may fail however busy the machine is.
const HandoverGreet = 2 * time.Second

// acceptedConn is a connection that a client has made.
type acceptedConn struct {
	net.Conn
	socket *Socket
	who    *Peer // nil before gRPC begins with it; socket.mu guards it, and what follows
	begun  bool  // gRPC has begun with it
}

// begin notes that gRPC has begun with the connection.
func (a *acceptedConn) begin() {
	a.socket.mu.Lock()
	defer a.socket.mu.Unlock()
	a.beginLocked()
}

// is notes which process made the connection.
func (a *acceptedConn) is(who *Peer) {
	a.socket.mu.Lock()
	defer a.socket.mu.Unlock()
	a.who = who
}

func (a *acceptedConn) beginLocked() {
	if !a.begun {
		a.begun = true
		a.socket.waiting--
		a.socket.greeted.Broadcast()
	}
}

// leave notes that the handshakes have ended, or will never begin.
func (a *acceptedConn) leave() {
	a.socket.mu.Lock()
	defer a.socket.mu.Unlock()
	a.beginLocked()
	delete(a.socket.early, a)
}

// SetDeadline is for gRPC, which bounds the handshakes by a deadline, and removes it when they
// have ended.
func (a *acceptedConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		a.leave()
	}
	return a.Conn.SetDeadline(t)
}

// Close is for gRPC, which calls it when the handshakes have failed or it stops.
func (a *acceptedConn) Close() error {
	a.leave()
	return a.Conn.Close()
}

// isOpen asks the connection itself. After the handshakes gRPC works with the net.UnixConn, from
// which it reads with less memory than from a type of ours, and closes that.
func (a *acceptedConn) isOpen() bool {
	c, ok := a.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	return err == nil && raw.Control(func(uintptr) {}) == nil
}

// opensLocked notes a connection. When there are many, it forgets those that are closed.
func (s *Socket) opensLocked(a *acceptedConn) {
	s.open[a] = struct{}{}
	if len(s.open) > s.many {
		maps.DeleteFunc(s.open, func(a *acceptedConn, _ struct{}) bool { return !a.isOpen() })
		s.many = 2*len(s.open) + 16
	}
}

// Counts returns how many connections are in their handshakes, and how many connections the
// socket remembers.
func (s *Socket) Counts() (early, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.early) - s.waiting, len(s.open)
}

// Connected counts the open connections of each client: the name of the client → how many.
func (s *Socket) Connected() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]int{}
	for a := range s.open {
		if !a.isOpen() {
			continue
		}
		who := "a client that has sent nothing yet"
		if a.who != nil {
			who = a.who.Program()
		}
		all[who]++
	}
	return all
}

// Pause stops accepting connections. Later ones wait in the kernel for the process that has the
// socket next. Pause returns when gRPC has begun with each accepted connection: gRPC would close
// the others unheard.
func (s *Socket) Pause() {
	s.mu.Lock()
	s.paused = true
	s.mu.Unlock()
	if l, ok := s.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = l.SetDeadline(time.Unix(1, 0)) // fails when it is closed, which is as good
	}
	s.mu.Lock()
	for s.waiting > 0 {
		s.greeted.Wait()
	}
	s.mu.Unlock()
}

// EndSilent closes the connections whose handshakes have not ended.
func (s *Socket) EndSilent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.early {
		_ = a.Conn.Close() // which gRPC notices, and leaves
	}
}
