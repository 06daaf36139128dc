// This file reads the addresses of gRPC servers in the configuration, and connects to them.

package transport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/mdlayher/vsock"
)

// The networks of addresses. Network says which one an address is of, and Dial connects to it; internal/server/listen has the
// listeners, and internal/config requires certificates on TCP.
const (
	Unix  = "unix"
	TCP   = "tcp"
	Vsock = "vsock"
)

// DNSScheme begins an address that stands for all servers that DNS knows by a name.
const DNSScheme = "dns:///"

const vsockScheme = "vsock:"

// Network returns the network of an address: [Unix] for the absolute path of a socket;
// [Vsock] for vsock:CID:PORT, a port of a virtual machine or, with CID 2, of its host; [TCP]
// for HOST:PORT and for dns:///HOST:PORT.
func Network(address string) (string, error) {
	rest, isVsock := strings.CutPrefix(address, vsockScheme)
	switch {
	case address == "":
		return "", errors.New("has no address; want the absolute path of a socket, HOST:PORT, dns:///HOST:PORT or vsock:CID:PORT")
	case filepath.IsAbs(address):
		return Unix, nil
	case isVsock:
		_, _, err := vsockAddress(rest)
		return Vsock, err
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, DNSScheme))
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" {
		return "", fmt.Errorf("invalid address %q: want the absolute path of a socket, HOST:PORT, dns:///HOST:PORT or vsock:CID:PORT", address)
	}
	return TCP, nil
}

// vsockAddress parses CID:PORT.
func vsockAddress(s string) (cid, port uint32, err error) {
	c, p, _ := strings.Cut(s, ":")
	n, errC := strconv.ParseUint(c, 10, 32)
	m, errP := strconv.ParseUint(p, 10, 32)
	if errC != nil || errP != nil {
		return 0, 0, fmt.Errorf("invalid address %q: want vsock:CID:PORT, two numbers", vsockScheme+s)
	}
	return uint32(n), uint32(m), nil
}

// notSocketError is why no connection to a file that is not a socket is possible. The kernel refuses it like one to a socket
// at which no process listens.
type notSocketError struct{ mode fs.FileMode }

func (e notSocketError) Error() string { return fmt.Sprintf("it is not a socket (%s)", e.mode) }
func (e notSocketError) Unwrap() error { return syscall.ECONNREFUSED }

// fileError returns the error of a connection to the file at path. It says so if the file is not a socket.
func fileError(path string, err error) error {
	var op *net.OpError
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &op) {
		return err
	}
	if info, failed := os.Stat(path); failed == nil && info.Mode().Type() != fs.ModeSocket {
		op.Err = notSocketError{info.Mode()}
	}
	return err
}

// Dial connects to a server, at an address that does not begin with [DNSScheme].
func Dial(ctx context.Context, address string) (net.Conn, error) {
	rest, isVsock := strings.CutPrefix(address, vsockScheme)
	switch {
	case filepath.IsAbs(address):
		conn, err := (&net.Dialer{}).DialContext(ctx, Unix, address)
		if err != nil {
			return nil, fileError(address, err)
		}
		return conn, nil
	case !isVsock:
		return (&net.Dialer{}).DialContext(ctx, TCP, address)
	}
	cid, port, err := vsockAddress(rest)
	if err != nil {
		return nil, err
	}
	type dialed struct {
		conn *vsock.Conn
		err  error
	}
	done := make(chan dialed, 1)
	go func() { // ends when the kernel gives up: there is no other way to stop it
		conn, err := vsock.Dial(cid, port, nil)
		done <- dialed{conn, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			return nil, d.err // not a nil *vsock.Conn
		}
		return d.conn, nil
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				_ = d.conn.Close() // no caller waits for it any more
			}
		}()
		return nil, ctx.Err()
	}
}
