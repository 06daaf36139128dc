package director

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mdlayher/vsock"
)

// The networks of addresses.
const (
	networkUnix  = "unix"
	networkTCP   = "tcp"
	networkVsock = "vsock"
)

const (
	vsockScheme = "vsock:"
	dnsScheme   = "dns:///"
)

// NetworkOf returns what kind of address a server has: "unix" for the absolute path of a
// socket; "vsock" for vsock:CID:PORT, a port of a virtual machine or, with CID 2, of its
// host; "tcp" for HOST:PORT and for dns:///HOST:PORT, which is all servers that DNS has
// of that name.
func NetworkOf(address string) (string, error) {
	rest, isVsock := strings.CutPrefix(address, vsockScheme)
	switch {
	case address == "":
		return "", errors.New("has no address; want the absolute path of a socket, HOST:PORT, dns:///HOST:PORT or vsock:CID:PORT")
	case filepath.IsAbs(address):
		return networkUnix, nil
	case isVsock:
		_, _, err := vsockAddress(rest)
		return networkVsock, err
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, dnsScheme))
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" {
		return "", fmt.Errorf("%q is no address; want the absolute path of a socket, HOST:PORT, dns:///HOST:PORT or vsock:CID:PORT", address)
	}
	return networkTCP, nil
}

func vsockAddress(s string) (cid, port uint32, err error) {
	c, p, _ := strings.Cut(s, ":")
	n, errC := strconv.ParseUint(c, 10, 32)
	m, errP := strconv.ParseUint(p, 10, 32)
	if errC != nil || errP != nil {
		return 0, 0, fmt.Errorf("%q is no address; want vsock:CID:PORT, two numbers", vsockScheme+s)
	}
	return uint32(n), uint32(m), nil
}

// dialAddress connects to one server. Addresses of DNS have been resolved.
func dialAddress(ctx context.Context, address string) (net.Conn, error) {
	rest, isVsock := strings.CutPrefix(address, vsockScheme)
	switch {
	case filepath.IsAbs(address):
		return (&net.Dialer{}).DialContext(ctx, networkUnix, address)
	case !isVsock:
		return (&net.Dialer{}).DialContext(ctx, networkTCP, address)
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
				_ = d.conn.Close() // nobody waits for it any more
			}
		}()
		return nil, ctx.Err()
	}
}
