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

// CRIOSuffix ends the paths that kubelet takes for CRI-O's socket. At such a path, kubelet asks over
// HTTP for statistics of containers.
const CRIOSuffix = "run/crio/crio.sock"

// beginsHTTP2 waits for the first bytes from a client, without consuming them, and reports whether they
// are those of HTTP/2. It also reports true for a client that sends nothing, and for a connection that it
// cannot peek into: the server handles these.
func beginsHTTP2(conn net.Conn) bool {
	const preface = "PRI" // HTTP/1 has no such method
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	begins := true
	_ = raw.Read(func(fd uintptr) bool { // the next read returns the error again
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

// maxOther bounds how many connections of a socket pass to Other at once. It also stops a loop, in which
// criproxy passes connections to itself.
const maxOther = 64

// other serves a connection that does not begin with HTTP/2: it copies bytes between the connection and
// that of the socket's Other until either side ends it. For the server, the handshake lasts that long.
func (s *Socket) other(conn net.Conn, peer *Peer) error {
	defer conn.Close()
	to, err := net.Conn(nil), errors.New("this socket serves only CRI")
	if n := s.passing.Add(1); n > maxOther {
		err = fmt.Errorf("%d other connections do not speak it either, which is the limit", maxOther)
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
	s.others.Store(conn, struct{}{})
	defer s.others.Delete(conn)
	if err := conn.SetDeadline(time.Time{}); err != nil { // removes the deadline of the handshake
		return err
	}
	var both sync.WaitGroup
	both.Go(func() { pass(to, conn) })
	both.Go(func() { pass(conn, to) })
	both.Wait()
	return credentials.ErrConnDispatched
}

// pass copies bytes from one connection to the other, and then closes the other one for writing: a client that has sent its
// request still gets the answer. If that fails, pass closes both, which ends the other direction as well.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = to.Close()
		_ = from.Close()
	}
}

// ServesHTTP reports whether the server of a unix socket speaks HTTP/1, as CRI-O does in addition to CRI.
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
