package listen

import (
	"maps"
	"net"
	"syscall"
	"time"
)

// GreetTime is how long those who have just connected may take, when we stop, until they
// have said what a connection begins with: TLS, if it is to be, and what HTTP/2 wants to
// hear first. Clients do so as they connect. gRPC would wait for 10s, and could end nothing
// meanwhile, for anybody who connects and says nothing.
const GreetTime = 250 * time.Millisecond

// HandoverGreet is the same after a handover, when nobody waits for this process and no
// call may fail, however busy the machine is.
const HandoverGreet = 2 * time.Second

// acceptedConn is a connection that a client has made.
type acceptedConn struct {
	net.Conn
	socket *Socket
	who    *Peer // nil before gRPC begins with it; socket.mu guards it, and what follows
	begun  bool  // gRPC has begun with it
}

// begin is called when gRPC begins with the connection.
func (a *acceptedConn) begin() {
	a.socket.mu.Lock()
	defer a.socket.mu.Unlock()
	a.beginLocked()
}

// is names the process that made the connection.
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

// leave is called when the handshakes have ended, or will never begin.
func (a *acceptedConn) leave() {
	a.socket.mu.Lock()
	defer a.socket.mu.Unlock()
	a.beginLocked()
	delete(a.socket.early, a)
}

// SetDeadline is for gRPC, which bounds the handshakes by it, and takes the bound away when
// they have ended.
func (a *acceptedConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		a.leave()
	}
	return a.Conn.SetDeadline(t)
}

// Close is for gRPC, when the handshakes have failed or it stops.
func (a *acceptedConn) Close() error {
	a.leave()
	return a.Conn.Close()
}

// isOpen asks the connection itself: when the handshakes have ended gRPC closes it without a word,
// since it reads from a net.UnixConn with less memory than from one of our own type.
func (a *acceptedConn) isOpen() bool {
	c, ok := a.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	return err == nil && raw.Control(func(uintptr) {}) == nil
}

// opensLocked takes note of a connection. Those that are closed are forgotten when there are many.
func (s *Socket) opensLocked(a *acceptedConn) {
	s.open[a] = struct{}{}
	if len(s.open) > s.many {
		maps.DeleteFunc(s.open, func(a *acceptedConn, _ struct{}) bool { return !a.isOpen() })
		s.many = 2*len(s.open) + 16
	}
}

// Counts returns how many connections have not ended their handshakes, which gRPC has begun with,
// and how many are remembered.
func (s *Socket) Counts() (early, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.early) - s.waiting, len(s.open)
}

// Connected counts the connections of each client: its name → how many.
func (s *Socket) Connected() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]int{}
	for a := range s.open {
		if !a.isOpen() {
			continue
		}
		who := "somebody who has said nothing yet"
		if a.who != nil {
			who = a.who.Program()
		}
		all[who]++
	}
	return all
}

// Pause stops accepting connections, which wait in the kernel for whoever else has
// the socket, and returns when gRPC has begun with those that were accepted: those
// with which it has not begun when it stops are closed unheard.
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
