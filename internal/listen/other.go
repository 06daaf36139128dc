package listen

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"k8s.io/klog/v2"
)

// CRIOSuffix is what a path ends in that kubelet takes for CRI-O's socket: there it asks over
// HTTP for the figures of containers.
const CRIOSuffix = "run/crio/crio.sock"

// beginsHTTP2 waits for the first bytes from a client, without taking them, and reports whether they are
// those of HTTP/2. It reports true for a client that sends nothing, and for a connection that it cannot
// look into: the server finds out.
func beginsHTTP2(conn net.Conn) bool {
	const preface = "PRI" // no method of HTTP/1 is called that
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	begins := true
	_ = raw.Read(func(fd uintptr) bool { // an error comes again with the next read
		var first [len(preface)]byte
		n, _, err := unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return false
		}
		begins = err != nil || strings.HasPrefix(preface, string(first[:n]))
		return !begins || n <= 0 || n == len(preface)
	})
	return begins
}

// maxOther bounds how many connections of a socket pass on at once. It also ends a circle: a criproxy that
// passes to itself.
const maxOther = 64

// other serves a connection that does not begin with HTTP/2: it passes to where the socket's Other leads,
// byte for byte, until either side ends it. To the server the handshake goes on so long.
func (s *Socket) other(conn net.Conn, peer *Peer) error {
	defer conn.Close()
	to, err := net.Conn(nil), errors.New("nothing but CRI is served here")
	if n := s.passing.Add(1); n > maxOther {
		err = fmt.Errorf("%d others do not either", maxOther)
	} else if s.Other != nil {
		to, err = s.Other(s)
	}
	defer s.passing.Add(-1)
	if err != nil {
		if s.refusedOther.CompareAndSwap(false, true) {
			klog.InfoS("Closed a connection that does not begin with HTTP/2, as CRI does; further ones are not logged", "socket", s.Path, "client", peer.Program(), "err", err)
		}
		return fmt.Errorf("the client does not speak HTTP/2: %w", err)
	}
	defer to.Close()
	if err := conn.SetDeadline(time.Time{}); err != nil { // that of the handshake
		return err
	}
	var both sync.WaitGroup
	both.Go(func() { pass(to, conn) })
	both.Go(func() { pass(conn, to) })
	both.Wait()
	return credentials.ErrConnDispatched
}

// pass copies bytes from one connection to the other, and then closes the other one for writing. If it
// cannot be closed by half, pass closes both, which ends the other direction.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = to.Close()
		_ = from.Close()
	}
}

// ServesHTTP reports whether HTTP/1 is spoken at a unix socket, as CRI-O does beside CRI.
func ServesHTTP(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second)) // WriteString and the reader return its error
	if _, err := io.WriteString(conn, "HEAD /info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode < http.StatusInternalServerError
}
